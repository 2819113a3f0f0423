"""Does the interval hold when a machine helps to judge?  python experiments/machine_labels.py

Two rankers order 20 documents of each of 200,000 queries by noisy views of their grades; people see the
grades, a machine sees them wrongly, in one of several ways. The truth is the difference of nDCG@10 over
all queries. 2,000 times, people judge 100 queries and the machine those and 2,000 others: shares of
intervals that hold the truth, by people alone, by the machine alone, and by both; and the mean width of
the interval of both over that of people alone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ltr.compare.machine_labels import correlation, powered_difference
from ltr.compare.statistics import estimate

QUERIES = 200_000
DOCS = 20
CUT = 10
SIMULATIONS = 2000
HUMAN = 100
MACHINE = 2000
SEEDS = 3


@dataclass(frozen=True)
class Population:
    """Queries, with what two rankers make of them.

    Attributes:
        grades: ``[Q, D]``, by people.
        lengths: ``[Q, D]``, of the documents, as deviations from the mean.
        scores: of each ranker ``[Q, D]``; the second one prefers long documents.
    """

    grades: np.ndarray
    lengths: np.ndarray
    scores: tuple[np.ndarray, np.ndarray]

    @classmethod
    def drawn(cls, rng: np.random.Generator, n_queries: int = QUERIES) -> "Population":
        shape = (n_queries, DOCS)
        grades = rng.choice(4, shape, p=[0.8, 0.1, 0.06, 0.04]).astype(np.float32)
        lengths = rng.normal(size=shape).astype(np.float32)
        first = grades + rng.normal(0, 1.5, shape)
        second = grades + 0.3 * lengths + rng.normal(0, 1.3, shape)
        return cls(grades, lengths, (first, second))

    def values(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``[Q]`` of each ranker: nDCG@10 by some labels; 0 for a query without a relevant document."""
        discounts = 1 / np.log2(np.arange(2, CUT + 2))
        ideal = -np.sort(-labels, axis=1)[:, :CUT] @ discounts
        of_rankers = []
        for scores in self.scores:
            best = np.argsort(-scores, axis=1)[:, :CUT]
            found = np.take_along_axis(labels, best, axis=1) @ discounts
            of_rankers.append(np.divide(found, ideal, out=np.zeros(len(labels)), where=ideal > 0))
        return of_rankers[0], of_rankers[1]


def lenient(of: Population, rng: np.random.Generator) -> np.ndarray:
    """One grade more for three of ten documents."""
    return np.minimum(3, of.grades + (rng.random(of.grades.shape) < 0.3))


def biased_to_length(of: Population, rng: np.random.Generator) -> np.ndarray:
    """Long documents get more, short ones less."""
    return np.clip(np.rint(of.grades + 0.7 * of.lengths), 0, 3)


def biased_to_a_ranker(of: Population, rng: np.random.Generator) -> np.ndarray:
    """Two grades more for half of the three documents that the first ranker likes best, as a machine
    does that is itself, or was made of, that ranker.
    """
    ranks = np.argsort(np.argsort(-of.scores[0], axis=1), axis=1)
    is_liked = (ranks < 3) & (rng.random(of.grades.shape) < 0.5)
    return np.minimum(3, of.grades + 2 * is_liked)


def noise(of: Population, rng: np.random.Generator) -> np.ndarray:
    """Grades that have nothing to do with the documents."""
    return rng.permuted(of.grades, axis=1)


JUDGES: dict[str, Callable[[Population, np.random.Generator], np.ndarray]] = {
    "lenient": lenient,
    "biased to length": biased_to_length,
    "biased to a ranker": biased_to_a_ranker,
    "noise": noise,
}


def judges(
    of: Population, rng: np.random.Generator
) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    """Each kind of judge, with the values ``[Q]`` of both rankers by its labels; the last one has a
    correlation of 0.7 with people.
    """
    for name, judge in JUDGES.items():
        yield name, of.values(judge(of, rng))
    first, second = of.values(of.grades)
    differences = first - second
    other = rng.permutation(differences)  # varies as much, and says nothing
    yield "correlation 0.7", (0.7 * differences + 0.51**0.5 * other, np.zeros(len(differences)))


@dataclass(frozen=True)
class Found:
    """What simulations have found: shares of intervals that hold the truth, and mean widths.

    Attributes:
        correlation: of people and the machine, over all queries.
        humans, machine, both: shares.
        width: the mean width of the intervals of both over that of people alone.
        error: the mean of the estimates by both less the truth, over its standard error.
    """

    correlation: float
    humans: float
    machine: float
    both: float
    width: float
    error: float


def simulated(
    human: tuple[np.ndarray, np.ndarray],
    machine: tuple[np.ndarray, np.ndarray],
    rng: np.random.Generator,
    n_simulations: int = SIMULATIONS,
    n_human: int = HUMAN,
    n_machine: int = MACHINE,
    n_seeds: int = 1,
) -> Found:
    """Draws of queries from a population, whose values ``[Q]`` by people and by the machine are known.
    Of several seeds each has a mean and values of its own, which the machine sees as well as the rest.
    """
    truth = float((human[0] - human[1]).mean())
    seen = correlation(human[0] - human[1], machine[0] - machine[1])
    unseen = (1 - seen**2) ** 0.5
    holds = np.zeros(3)
    widths = np.zeros(2)
    errors = []
    for _ in range(n_simulations):
        rows = rng.integers(len(human[0]), size=n_human + n_machine)
        of_humans = []
        of_machine = []
        for by_people, by_machine in zip(human, machine, strict=True):
            shape = (n_seeds, len(rows))
            of_seeds = np.zeros(shape)
            wrong = np.zeros(shape)
            if n_seeds > 1:
                of_seeds = rng.normal(0, 0.01, (n_seeds, 1)) + rng.normal(0, 0.1, shape)
                wrong = rng.normal(0, 0.1, shape)
            of_humans.append(by_people[rows] + of_seeds)
            of_machine.append(by_machine[rows] + seen * of_seeds + unseen * wrong)
        found = powered_difference(
            (of_humans[0][:, :n_human], of_humans[1][:, :n_human]),
            (of_machine[0][:, :n_human], of_machine[1][:, :n_human]),
            (of_machine[0][:, n_human:], of_machine[1][:, n_human:]),
        )
        alone = estimate(of_machine[0], of_machine[1])
        intervals = [each.interval() for each in (found.humans, alone, found.both)]
        holds += [low <= truth <= high for low, high in intervals]
        widths += [high - low for low, high in (intervals[0], intervals[2])]
        errors.append(found.both.mean - truth)
    return Found(
        seen,
        *(holds / n_simulations).tolist(),
        width=float(widths[1] / widths[0]),
        error=float(np.mean(errors) / (np.std(errors) / len(errors) ** 0.5)),
    )


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    of = Population.drawn(rng)
    human = of.values(of.grades)
    print(
        "| the machine is | people | seeds | correlation | people hold | machine alone holds | both hold "
        "| width | error of the mean |"
    )
    print("|" + " --- |" * 9)
    for name, machine in judges(of, rng):
        for n_human, n_seeds in ((HUMAN, 1), (HUMAN, SEEDS), (50, 1), (20, 1)):
            found = simulated(human, machine, rng, n_human=n_human, n_seeds=n_seeds)
            cells = [
                name,
                str(n_human),
                str(n_seeds),
                f"{found.correlation:.2f}",
                f"{found.humans:.1%}",
                f"{found.machine:.1%}",
                f"{found.both:.1%}",
                f"{found.width:.3f}",
                f"{found.error:+.1f}",
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
