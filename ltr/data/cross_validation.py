"""Folds: the queries of train and dev dealt anew, so that each is tested once and the test split is
never read. The folds of a LETOR data set are other ones: its files say what they are
(:mod:`ltr.data.letor_splits`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists
from ltr.errors import InputError, at_least

SEED = 0  # of the deal: the same for all runs of a cross-validation, whatever their seeds


@dataclass(frozen=True)
class Fold:
    """Which part of a cross-validation is tested.

    The queries of ``train`` and ``dev`` are dealt into ``of`` parts of about one size. Part
    ``number`` takes the place of ``test``, the part after it that of ``dev`` (after the last comes
    the first), and a run is trained on the others. This is the custom of LETOR's five folds: three
    to train, one to choose the epoch, one to test. The test split of the collection is not read.

    Args:
        number: the part that is tested, from 1 to ``of``.
        of: how many parts, at least 3.

    Raises:
        InputError: for a number that is none of these.
    """

    number: int
    of: int

    def __post_init__(self) -> None:
        at_least(3, **{"evaluation.fold.of": self.of})
        if not 1 <= self.number <= self.of:
            raise InputError(
                f"number must be from 1 to {self.of}, got {self.number}",
                option="evaluation.fold.number",
            )

    def __str__(self) -> str:
        return f"{self.number} of {self.of}"

    def deal(self, query_rows: np.ndarray) -> dict[str, np.ndarray]:
        """The queries of each split, of all ``[Q]``; the order of these has no effect.

        >>> {split: rows.tolist() for split, rows in Fold(3, of=3).deal(np.arange(4)).items()}
        {'train': [1], 'dev': [0, 2], 'test': [3]}
        """
        order = np.random.default_rng(SEED).permutation(len(query_rows))
        parts = np.array_split(np.sort(query_rows)[order], self.of)
        test = parts.pop(self.number - 1)
        # The parts behind the tested one have moved up by one place.
        dev = parts.pop((self.number - 1) % len(parts))
        return {
            "train": np.sort(np.concatenate(parts)),
            "dev": np.sort(dev),
            "test": np.sort(test),
        }


def collection_of_fold(collection: Collection, fold: Fold) -> Collection:
    """The collection with other splits: those of a fold.

    Raises:
        InputError: for a collection with fewer queries than parts, or with candidates for one of
            train and dev alone.
    """
    given = [split for split in ("train", "dev") if split in collection.qrels]
    if not given:
        raise InputError(
            f"{collection.source}: a fold is made of the judgements of train and dev, and there are none",
            option="evaluation.fold",
        )
    judged = _joined(collection.qrels, given)
    n_queries = len(judged.query_rows)
    if n_queries < fold.of:
        raise InputError(
            f"{collection.source}: train and dev must have at least {fold.of} questions to be dealt into {fold.of} folds, got {n_queries}",
            option="evaluation.fold.of",
        )
    with_pools = [split for split in given if split in collection.candidates]
    if with_pools and with_pools != given:
        (without,) = set(given) - set(with_pools)
        raise InputError(
            f"{collection.source}: there must be candidates for both of {' and '.join(given)} or for none, and {without} has none; {collection.how_to_add_pools.format(split=without)}",
            option="evaluation.fold",
        )
    pools = _joined(collection.candidates, with_pools) if with_pools else None
    qrels = {}
    candidates = {}
    for split, query_rows in fold.deal(judged.query_rows).items():
        qrels[split] = judged.of_queries(query_rows)
        if pools is not None:
            candidates[split] = pools.of_queries(query_rows)
    return collection._replace(qrels=qrels, candidates=candidates)


def _joined(lists_of_split: dict[str, QueryLists], splits: Sequence[str]) -> QueryLists:
    lists = lists_of_split[splits[0]]
    for split in splits[1:]:
        lists = lists.joined(lists_of_split[split])
    return lists
