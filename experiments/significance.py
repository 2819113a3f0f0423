"""How often do tests call equal ways to train different?  python experiments/significance.py

Two rankers of several seeds whose values have the same expectation, 200 queries: a paired t-test
over queries of the means over the seeds, the test of ltr.compare, and 95 % intervals by percentiles
of a bootstrap over queries and seeds. Shares of 400 simulations. Then the test of ltr.compare
alone, where the two have different numbers of seeds: shares of 2,000; where somebody looks after
each seed that was added; and how often it finds the difference that ltr check says few seeds can
show.
"""

import numpy as np
from scipy import stats

from ltr.check.power import difference_of_seeds
from ltr.compare.statistics import estimate

SIMULATIONS = 400
QUERIES = 200
DRAWS = 500  # of a bootstrap
MORE_SIMULATIONS = 2000  # of the other tables
FEW_QUERIES = 100  # of the last two tables
MOST_SEEDS = 10


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


def way_to_train(rng: np.random.Generator, queries: np.ndarray, n_seeds: int) -> np.ndarray:
    """``[S, Q]`` values of one way to train: how queries, seeds, and both together vary."""
    of_seeds = rng.normal(0, 0.02, (n_seeds, 1))
    return queries + of_seeds + rng.normal(0, 0.1, (n_seeds, len(queries)))


def print_looks() -> None:
    """How often equal ways to train are called different by one look, and by a look after each
    seed.
    """
    rng = np.random.default_rng(0)
    at_the_end = 0
    at_some_look = 0
    for _ in range(MORE_SIMULATIONS):
        queries = rng.normal(0, 0.3, FEW_QUERIES)
        a = way_to_train(rng, queries, MOST_SEEDS)
        b = way_to_train(rng, queries, MOST_SEEDS)
        looks = []
        for n_seeds in range(2, MOST_SEEDS + 1):
            looks.append(estimate(a[:n_seeds], b[:n_seeds]).p < 0.05)
        at_the_end += looks[-1]
        at_some_look += any(looks)
    print("\n| looks | ltr.compare |\n| --- | --- |")
    print(f"| one, with {MOST_SEEDS} seeds | {at_the_end / MORE_SIMULATIONS:.1%} |")
    print(f"| after each of 2 to {MOST_SEEDS} seeds | {at_some_look / MORE_SIMULATIONS:.1%} |")


def print_power() -> None:
    """How often a difference is found that tested seeds say as many seeds can show."""
    rng = np.random.default_rng(0)
    print("\n| seeds | the difference named is found | median difference |")
    print("| --- | --- | --- |")
    for n_seeds in (2, 3, 5, 10):
        n_shown = 0
        named = []
        for _ in range(MORE_SIMULATIONS):
            queries = rng.normal(0, 0.3, FEW_QUERIES)
            tested = difference_of_seeds(way_to_train(rng, queries, n_seeds))
            named.append(tested.planned(FEW_QUERIES, n_seeds).detectable())
            better = way_to_train(rng, queries, n_seeds) + named[-1]
            n_shown += estimate(better, way_to_train(rng, queries, n_seeds)).p < 0.05
        share = n_shown / MORE_SIMULATIONS
        print(f"| {n_seeds} | {share:.1%} | {np.median(named):.3f} |", flush=True)


def main() -> None:
    """Print the tables."""
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
    print_looks()
    print_power()


if __name__ == "__main__":
    main()
