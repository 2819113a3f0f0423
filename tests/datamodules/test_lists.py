"""Graded lists: what they hold, and what long ones become."""

import logging
from collections import Counter

import pytest
import torch

from ltr.data.bm25 import bm25_lists
from ltr.data.formats import ApartTexts, JoinedPairs, SingleTexts
from ltr.data.query_lists import QueryLists
from ltr.datamodules import ListDataModule
from ltr.datamodules.lists import ListRows
from ltr.errors import InputError
from tests.conftest import wordpiece_tokenizer, write_collection


def opened(path, text_format=None, **options) -> ListDataModule:
    data = ListDataModule(str(path), **{"batch_size": 4, "seed": 0} | options)
    data.text_format = text_format or JoinedPairs(wordpiece_tokenizer(), 24)
    data.setup("fit")
    return data


def batches(data, epoch) -> list:
    loader = data.train_dataloader()
    loader.sampler.position = lambda: (epoch, 0)
    return list(loader)


def rows_of(grades: dict[int, float], pool: list[int], list_size=None, relevant="all") -> ListRows:
    """One query, number 3."""
    judged = QueryLists.from_rows([3] * len(grades), grades.keys(), grades.values())
    pools = QueryLists.from_rows([3] * len(pool), pool, [0.0] * len(pool))
    return ListRows(judged, pools, list_size, relevant, seed=0, where="here")


def drawn(rows: ListRows, epochs: int) -> list[dict[int, float]]:
    lists = [rows.draw(epoch, 0) for epoch in range(epochs)]
    assert all(len(set(one.doc_rows.tolist())) == len(one.doc_rows) for one in lists)
    return [dict(zip(one.doc_rows.tolist(), one.labels.tolist(), strict=True)) for one in lists]


def test_a_list_is_the_pool_and_the_judged_documents_beside_it():
    rows = rows_of({9: 2, 4: 0, 7: 1}, pool=[5, 7, 6])
    one = rows.draw(0, 0)
    assert one.query_row == 3 and one.doc_rows.tolist() == [5, 7, 6, 9, 4] and one.labels.tolist() == [0, 1, 0, 2, 0]
    assert one.judged_rows.tolist() == [9, 4, 7] and one.judged_grades.tolist() == [2, 0, 1] and one.ideal is None


def test_the_relevant_documents_of_a_long_list_stay_and_others_are_drawn():
    """2 relevant and 8 others in lists of 4: both relevant ones, best first, and each other in a quarter of the epochs."""
    rows = rows_of({0: 1, 1: 3, 2: 0}, pool=list(range(2, 10)), list_size=4)
    lists = drawn(rows, 400)
    assert all(list(one)[:2] == [1, 0] and list(one.values()) == [3, 1, 0, 0] for one in lists)
    counts = Counter(doc for one in lists for doc in one)
    assert all(60 < counts[doc] < 140 for doc in range(2, 10))  # each expected 100 times, with a deviation of 9


def test_of_too_many_relevant_documents_the_best_graded_stay():
    """Grades 3, 2, 2, 1, 1 in lists of 4: 3, 2, 2 and either of the last two, never an irrelevant one."""
    lists = drawn(rows_of({0: 1, 1: 2, 2: 3, 3: 2, 4: 1}, pool=[5, 6], list_size=4), 30)
    assert all(list(one.values()) == [3, 2, 2, 1] for one in lists) and {list(one)[3] for one in lists} == {0, 4}


@pytest.mark.parametrize("others, expected", [({}, [1, 1, 0]), ({9: 2}, [2, 1, 1])])
def test_a_list_always_has_something_to_rank(others, expected):
    """Five documents of grade 1 would fill a list of 3: one of another grade has the last place, if none is there already."""
    lists = drawn(rows_of({doc: 1 for doc in range(5)} | others, pool=[5, 6, 7], list_size=3), 30)
    assert all(list(one.values()) == expected for one in lists)
    assert drawn(rows_of({0: 2, 1: 2, 2: 1, 3: 2}, pool=[2], list_size=2), 1)[0] in ({d: 2.0, 2: 1.0} for d in (0, 1, 3))


def test_a_sample_favours_no_document():
    """Of 10 documents 4 are drawn, each in two fifths of 500 epochs."""
    lists = drawn(rows_of({0: 1, 1: 3}, pool=list(range(2, 10)), list_size=4, relevant="sample"), 500)
    counts = Counter(doc for one in lists for doc in one)
    assert all(150 < counts[doc] < 250 for doc in range(10)) and {len(one) for one in lists} == {4}  # 200, deviation 11
    assert all(one[doc] == (1 if doc == 0 else 3 if doc == 1 else 0) for one in lists for doc in one)


@pytest.mark.parametrize("candidates", ["candidates", "bm25"])
def test_a_batch_holds_whole_lists_of_a_collection(collection_folder, candidates):
    """Eight documents in each pool, the relevant one among them; BM25's lists have three documents and the judged two."""
    data = opened(collection_folder, candidates=candidates, depth=3 if candidates == "bm25" else None)
    judged, seen = data.collection.judgements("train"), []
    for batch in batches(data, 0):
        for query, docs, labels, mask in zip(batch.query_rows.tolist(), batch.doc_rows, batch.labels, batch.mask, strict=True):
            docs, labels = docs[mask].tolist(), labels[mask].tolist()
            rows, grades = judged.of(query)
            known = dict(zip(rows.tolist(), grades.tolist(), strict=True))
            assert set(rows.tolist()) <= set(docs) and labels == [known.get(doc, 0.0) for doc in docs]
            if candidates == "candidates":
                assert sorted(docs) == sorted(data.collection.pools("train", "x").of(query)[0].tolist())
            assert 3 <= len(docs) <= (8 if candidates == "candidates" else 5)
            seen.append(query)
    assert sorted(seen) == judged.query_rows.tolist()


def test_pools_are_the_sources_own_or_bm25s_where_the_corpus_is_searched(tmp_path):
    """Two of the source's pool, which are the judged ones; without one, at least as many by BM25."""
    folder = write_collection(tmp_path / "c", n_queries=6)
    tokenizer = wordpiece_tokenizer()
    apart = ApartTexts(SingleTexts(tokenizer, 24), SingleTexts(tokenizer, 24))
    data = opened(folder, apart, candidates="corpus", depth=2)
    queries = range(6)
    assert [data.train.plan.rows.draw(0, q).doc_rows.tolist() for q in queries] == [
        data.collection.judgements("train").of(row)[0].tolist() for row in data.train.plan.rows.query_rows
    ]
    (folder / "candidates/train.trec").unlink()
    data = opened(folder, apart, candidates="corpus", depth=2)
    found = bm25_lists(data.collection, data.collection.judgements("train").query_rows, 2)
    for q, row in enumerate(data.train.plan.rows.query_rows):
        assert data.train.plan.rows.draw(0, q).doc_rows[:2].tolist() == found.of(row)[0].tolist()


def test_the_tokens_of_a_batch_are_those_of_its_rows(collection_folder):
    tokenizer = wordpiece_tokenizer()
    data = opened(collection_folder, list_size=4, batch_size=5)
    batch, collection = data.train[1, 2], data.collection
    assert batch.labels.shape == (5, 4)
    rows = [(q, d) for q, docs in zip(batch.query_rows.tolist(), batch.doc_rows.tolist(), strict=True) for d in docs]
    for (q, d), ids in zip(rows, batch.pairs.ids.split(batch.pairs.lengths.tolist()), strict=True):
        texts = collection.queries.texts[q], collection.corpus.texts[d]
        assert ids.tolist() == tokenizer(*texts, truncation="only_second", max_length=24)["input_ids"]
    apart = opened(collection_folder, ApartTexts(SingleTexts(tokenizer, 24), SingleTexts(tokenizer, 24)), batch_size=5)
    batch = apart.train[1, 2]
    assert len(batch.queries.lengths) == 5 and len(batch.docs.lengths) == batch.mask.sum() and batch.judged_rows.shape == (5, 2)


def test_workers_change_nothing_and_epochs_and_seeds_do(collection_folder):
    alone, helped, other = (opened(collection_folder, list_size=4, **o) for o in ({}, {"num_workers": 2}, {"seed": 1}))
    epochs = [batches(alone, epoch) for epoch in (0, 1)]
    for epoch, expected in enumerate(epochs):
        for a, b in zip(expected, batches(helped, epoch), strict=True):
            assert torch.equal(a.doc_rows, b.doc_rows) and torch.equal(a.pairs.ids, b.pairs.ids)
    by_query = [
        {q: docs for b in e for q, docs in zip(b.query_rows.tolist(), b.doc_rows.tolist(), strict=True)}
        for e in (*epochs, batches(other, 0))
    ]
    assert by_query[0].keys() == by_query[1].keys() and by_query[0] != by_query[1] and by_query[0] != by_query[2]


def test_ranks_share_out_the_lists(collection_folder, monkeypatch):
    monkeypatch.setattr(ListDataModule, "world_size", 2)
    seen = []
    for rank in range(2):
        monkeypatch.setattr(ListDataModule, "rank", rank)
        seen.append([q for b in batches(opened(collection_folder, batch_size=3), 0) for q in b.query_rows.tolist()])
    assert len(seen[0]) == len(seen[1]) == 15 and len(set(seen[0] + seen[1])) == 30


def test_without_unjudged_documents_no_pool_is_needed(tmp_path, caplog):
    """Two judged documents a query, of grades 1 and 0; query 2 has two of one grade and is left out."""
    folder = write_collection(tmp_path / "c", n_queries=6)
    (folder / "candidates/train.trec").unlink()
    qrels = folder / "qrels/train.tsv"
    qrels.write_text(qrels.read_text().replace("train-q2-d1\t0", "train-q2-d1\t1"))
    with pytest.raises(InputError, match="no candidates for the split 'train'.*set data.init_args.candidates: bm25"):
        opened(folder)
    with caplog.at_level(logging.INFO, "ltr"):
        data = opened(folder, unjudged="skip")
    assert "1 of 6 queries have no two documents of different grades and are left out" in caplog.text
    names = [data.collection.queries.ids[q] for b in batches(data, 0) for q in b.query_rows.tolist()]
    assert sorted(names) == [f"train-q{q}" for q in (0, 1, 3, 4, 5)]
    assert all(sorted(labels) == [0, 1] for b in batches(data, 0) for labels in b.labels.tolist())
    qrels.write_text("train-q2\ttrain-q2-d0\t1\n")
    with pytest.raises(InputError, match="split 'train': no query has two documents of different grades"):
        opened(folder, unjudged="skip")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"list_size": 1}, "list_size must be at least 2, got 1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"unjudged": "drop"}, r"unjudged must be one of \('irrelevant', 'skip'\), got 'drop'"),
        ({"relevant": "best"}, r"relevant must be one of \('all', 'sample'\), got 'best'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        ListDataModule("x", **options)
