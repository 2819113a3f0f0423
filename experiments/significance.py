"""How often do tests call equal ways to train different?  python experiments/significance.py

Two rankers of several seeds whose values have the same expectation, 200 queries: a paired t-test
over queries of the means over the seeds, the test of ltr.compare, and 95 % intervals by percentiles
of a bootstrap over queries and seeds. Shares of 400 simulations. Then the test of ltr.compare
alone, where the two have different numbers of seeds: shares of 2,000.
"""

import numpy as np
from scipy import stats

from ltr.compare.statistics import estimate

SIMULATIONS = 400
QUERIES = 200
DRAWS = 500  # of a bootstrap
MORE_SIMULATIONS = 2000  # of the second table


def bootstrap_holds(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> bool:
    """Whether the interval of the difference holds 0."""
    differences = []
    for _ in range(DRAWS):
        queries = rng.integers(QUERIES, size=QUERIES)
        seeds_of_a, seeds_of_b = rng.integers(len(a), size=(2, len(a)))
        by_query = a[seeds_of_a].mean(axis=0) - b[seeds_of_b].mean(axis=0)
        differences.append(by_query[queries].mean())
    low, high = np.percentile(differences, [2.5, 97.5])
    return bool(low <= 0 <= high)


def main() -> None:
    """Print a table."""
    rng = np.random.default_rng(0)
    print(
        "| seeds | spread of seeds | of queries | of both "
        "| t-test over queries | ltr.compare | bootstrap holds 0 |"
    )
    print("|" + " --- |" * 7)
    for n_seeds in (2, 3, 5):
        for seeds, queries, both in ((0.0, 0.1, 0.1), (0.02, 0.1, 0.2), (0.02, 0.1, 0.05)):
            counts = np.zeros(3)  # simulations in which each column's answer is yes
            for _ in range(SIMULATIONS):
                shape = (2, n_seeds, QUERIES)
                values = (
                    rng.normal(0, seeds, (2, n_seeds, 1))
                    + rng.normal(0, queries, (2, 1, QUERIES))
                    + rng.normal(0, both, shape)
                )
                a, b = values
                over_queries = stats.ttest_1samp(a.mean(axis=0) - b.mean(axis=0), 0).pvalue < 0.05
                counts += (over_queries, estimate(a, b).p < 0.05, bootstrap_holds(a, b, rng))
            shares = " | ".join(f"{share:.1%}" for share in counts / SIMULATIONS)
            print(f"| {n_seeds} | {seeds} | {queries} | {both} | {shares} |", flush=True)
    print("\n| seeds | ltr.compare |\n| --- | --- |")
    rng = np.random.default_rng(0)
    for first, second in (
        (2, 2),
        (2, 4),
        (2, 5),
        (2, 20),
        (3, 3),
        (3, 6),
        (3, 20),
        (4, 20),
        (5, 20),
        (10, 20),
    ):
        n_differ = 0
        for _ in range(MORE_SIMULATIONS):
            queries = rng.normal(0, 0.02, QUERIES)
            sides = [
                queries + rng.normal(0, 0.02, (n, 1)) + rng.normal(0, 0.05, (n, QUERIES))
                for n in (first, second)
            ]
            n_differ += estimate(*sides).p < 0.05
        print(f"| {first} and {second} | {n_differ / MORE_SIMULATIONS:.1%} |", flush=True)


if __name__ == "__main__":
    main()
