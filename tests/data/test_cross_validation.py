"""Folds: the questions of train and dev dealt anew."""

import numpy as np
import pytest

from ltr.data.collection import Collection, open_collection
from ltr.data.cross_validation import Fold, collection_of_fold
from ltr.data.query_lists import QueryLists
from ltr.datamodules import LabelDataModule
from ltr.datamodules.evaluation import Evaluation
from tests.world.refusals import refused


@pytest.mark.parametrize("n_queries, of", [(3, 3), (11, 5), (40, 7)])
def test_each_question_is_tested_once_and_chooses_once(n_queries, of):
    query_rows = np.arange(n_queries) * 2
    folds = [Fold(number, of).deal(query_rows) for number in range(1, of + 1)]
    for splits in folds:
        dealt = np.concatenate(list(splits.values()))
        assert sorted(dealt) == query_rows.tolist()
        assert all((np.diff(rows) > 0).all() for rows in splits.values())
    for split in ("dev", "test"):
        over_folds = np.concatenate([splits[split] for splits in folds])
        assert sorted(over_folds) == query_rows.tolist()
    # What chooses the epoch of one fold is tested by the next one; behind the last comes the first.
    for splits, after in zip(folds, folds[1:] + folds[:1], strict=True):
        assert splits["dev"].tolist() == after["test"].tolist()
    sizes = [len(splits["test"]) for splits in folds]
    assert max(sizes) - min(sizes) <= 1


def test_the_deal_is_of_the_questions_and_not_of_their_order():
    query_rows = np.arange(20)
    for split, rows in Fold(2, 5).deal(query_rows).items():
        assert rows.tolist() == Fold(2, 5).deal(query_rows[::-1])[split].tolist()


def collection_of(folder) -> Collection:
    """Of the tiny one, with four questions in train and two in dev; one stands in both."""
    collection = open_collection(folder)
    train = QueryLists.from_rows([0, 0, 1, 2, 3], [5, 6, 1, 2, 3], [1, 0, 1, 2, 1])
    dev = QueryLists.from_rows([3, 4], [4, 4], [1, 1])
    test = QueryLists.from_rows([5], [0], [1])
    return collection._replace(qrels={"train": train, "dev": dev, "test": test}, candidates={})


def test_judgements_go_with_their_question_and_test_is_not_read(collection_folder):
    collection = collection_of(collection_folder)
    seen = {}
    for number in (1, 2, 3):
        fold = collection_of_fold(collection, Fold(number, 3))
        assert sum(len(lists.query_rows) for lists in fold.qrels.values()) == 5
        assert all(5 not in lists.query_rows for lists in fold.qrels.values())
        for row in fold.qrels["test"].query_rows.tolist():
            docs, grades = fold.qrels["test"].of(row)
            seen[row] = [*docs.tolist(), *grades.tolist()]
    # Question 3 has its judgement of train, and behind it that of dev.
    assert seen == {0: [5, 6, 1, 0], 1: [1, 1], 2: [2, 2], 3: [3, 4, 1, 1], 4: [4, 1]}


def test_candidates_go_with_their_question(collection_folder):
    collection = collection_of(collection_folder)
    pools = QueryLists.from_rows([0, 1, 2, 3], [1, 2, 3, 4], [0, 0, 0, 0])
    dev_pools = QueryLists.from_rows([4], [6], [0])
    collection = collection._replace(candidates={"train": pools, "dev": dev_pools, "test": pools})
    for number in (1, 2, 3):
        fold = collection_of_fold(collection, Fold(number, 3))
        for split, lists in fold.candidates.items():
            assert lists.query_rows.tolist() == fold.qrels[split].query_rows.tolist()
            assert lists.doc_rows.tolist() == [[1, 2, 3, 4, 6][row] for row in lists.query_rows]


@pytest.mark.parametrize(
    "qrels, candidates, words",
    [
        (
            ["train", "dev", "test"],
            ["train"],
            "there must be candidates for both of train and dev or for none, and dev has none; "
            "add candidates/dev.trec",
        ),
        (
            ["dev"],
            [],
            "train and dev must have at least 3 questions to be dealt into 3 folds, got 2",
        ),
        (["test"], [], "a fold is made of the judgements of train and dev, and there are none"),
    ],
)
def test_what_can_not_be_dealt_is_refused(qrels, candidates, words, collection_folder):
    whole = collection_of(collection_folder)
    judged = {split: whole.qrels[split] for split in qrels}
    pools = {split: whole.qrels[split] for split in candidates}
    with refused(words):
        collection_of_fold(whole._replace(qrels=judged, candidates=pools), Fold(1, 3))


@pytest.mark.parametrize(
    "number, of, words",
    [
        (1, 2, "fold.of must be at least 3, got 2"),
        (0, 3, "number must be from 1 to 3, got 0"),
        (4, 3, "number must be from 1 to 3, got 4"),
    ],
)
def test_a_fold_that_is_none_is_refused(number, of, words):
    with refused(words):
        Fold(number, of)


def test_labelled_texts_have_no_questions_to_deal():
    with refused("labelled texts have no questions to be dealt into folds"):
        LabelDataModule("x", evaluation=Evaluation(candidates=None, fold=Fold(1, 3)))
