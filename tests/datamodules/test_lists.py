"""Graded lists: what they hold, and what long ones become."""

import logging

import pytest
import torch

from ltr.data.bm25 import bm25_lists
from ltr.data.layouts import ApartTexts, JoinedPairs, SingleTexts
from ltr.datamodules import ListDataModule
from ltr.errors import InputError
from tests.world.backbones import wordpiece_tokenizer
from tests.world.collections import write_collection
from tests.world.data_modules import batches, data_module


def opened(path, reads=None, **options) -> ListDataModule:
    reads = reads or JoinedPairs(wordpiece_tokenizer(), 24)
    data = data_module(
        ListDataModule, str(path), **{"batch_size": 4, "seed": 0, "reads": reads} | options
    )
    data.setup("fit")
    return data


@pytest.mark.parametrize("candidates", ["candidates", "bm25"])
def test_a_batch_holds_whole_lists_of_a_collection(collection_folder, candidates):
    """Eight documents in each pool, the relevant one among them; BM25's lists have three documents
    and the judged two.
    """
    data = opened(
        collection_folder, candidates=candidates, depth=3 if candidates == "bm25" else None
    )
    judged = data.collection.judgements("train")
    seen = []
    for batch in batches(data, 0):
        for query, docs, labels, mask in zip(
            batch.query_rows.tolist(), batch.doc_rows, batch.labels, batch.mask, strict=True
        ):
            docs = docs[mask].tolist()
            labels = labels[mask].tolist()
            rows, grades = judged.of(query)
            known = dict(zip(rows.tolist(), grades.tolist(), strict=True))
            assert set(rows.tolist()) <= set(docs) and labels == [
                known.get(doc, 0.0) for doc in docs
            ]
            if candidates == "candidates":
                assert sorted(docs) == sorted(
                    data.collection.pools("train", option="x").of(query)[0].tolist()
                )
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
        data.collection.judgements("train").of(row)[0].tolist()
        for row in data.train.plan.rows.query_rows
    ]
    (folder / "candidates/train.trec").unlink()
    data = opened(folder, apart, candidates="corpus", depth=2)
    found = bm25_lists(data.collection, data.collection.judgements("train").query_rows, 2)
    for q, row in enumerate(data.train.plan.rows.query_rows):
        assert data.train.plan.rows.draw(0, q).doc_rows[:2].tolist() == found.of(row)[0].tolist()


def test_the_tokens_of_a_batch_are_those_of_its_rows(collection_folder):
    tokenizer = wordpiece_tokenizer()
    data = opened(collection_folder, list_size=4, batch_size=5)
    batch = data.train[1, 2]
    collection = data.collection
    assert batch.labels.shape == (5, 4)
    rows = [
        (q, d)
        for q, docs in zip(batch.query_rows.tolist(), batch.doc_rows.tolist(), strict=True)
        for d in docs
    ]
    for (q, d), ids in zip(rows, batch.pairs.ids.split(batch.pairs.lengths.tolist()), strict=True):
        texts = collection.queries.texts[q], collection.corpus.texts[d]
        assert (
            ids.tolist() == tokenizer(*texts, truncation="only_second", max_length=24)["input_ids"]
        )
    apart = opened(
        collection_folder,
        ApartTexts(SingleTexts(tokenizer, 24), SingleTexts(tokenizer, 24)),
        batch_size=5,
    )
    batch = apart.train[1, 2]
    assert (
        len(batch.queries.lengths) == 5
        and len(batch.docs.lengths) == batch.mask.sum()
        and batch.judged_rows.shape == (5, 2)
    )


def test_workers_change_nothing_and_epochs_and_seeds_do(collection_folder):
    alone, helped, other = (
        opened(collection_folder, list_size=4, **o) for o in ({}, {"num_workers": 2}, {"seed": 1})
    )
    epochs = [batches(alone, epoch) for epoch in (0, 1)]
    for epoch, expected in enumerate(epochs):
        for a, b in zip(expected, batches(helped, epoch), strict=True):
            assert torch.equal(a.doc_rows, b.doc_rows) and torch.equal(a.pairs.ids, b.pairs.ids)
    by_query = [
        {
            q: docs
            for b in e
            for q, docs in zip(b.query_rows.tolist(), b.doc_rows.tolist(), strict=True)
        }
        for e in (*epochs, batches(other, 0))
    ]
    assert (
        by_query[0].keys() == by_query[1].keys()
        and by_query[0] != by_query[1]
        and by_query[0] != by_query[2]
    )


def test_ranks_share_out_the_lists(collection_folder, monkeypatch):
    monkeypatch.setattr(ListDataModule, "world_size", 2)
    seen = []
    for rank in range(2):
        monkeypatch.setattr(ListDataModule, "rank", rank)
        seen.append(
            [
                q
                for b in batches(opened(collection_folder, batch_size=3), 0)
                for q in b.query_rows.tolist()
            ]
        )
    # Of each of ten batches of three the first rank has two, and the other one.
    assert len(seen[0]) == 20 and len(seen[1]) == 10 and len(set(seen[0] + seen[1])) == 30


def test_without_unjudged_documents_no_pool_is_needed(tmp_path, caplog):
    """Two judged documents a query, of grades 1 and 0; query 2 has two of one grade and is left
    out.
    """
    folder = write_collection(tmp_path / "c", n_queries=6)
    (folder / "candidates/train.trec").unlink()
    qrels = folder / "qrels/train.tsv"
    qrels.write_text(qrels.read_text().replace("train-q2-d1\t0", "train-q2-d1\t1"))
    with pytest.raises(
        InputError, match="no candidates for the split 'train'.*set evaluation.candidates to auto"
    ):
        opened(folder, candidates="candidates")
    with caplog.at_level(logging.INFO, "ltr"):
        data = opened(folder, unjudged="skip")
    assert (
        "1 of 6 queries have no two documents of different grades and are left out" in caplog.text
    )
    names = [
        data.collection.queries.ids[q] for b in batches(data, 0) for q in b.query_rows.tolist()
    ]
    assert sorted(names) == [f"train-q{q}" for q in (0, 1, 3, 4, 5)]
    assert all(sorted(labels) == [0, 1] for b in batches(data, 0) for labels in b.labels.tolist())
    qrels.write_text("train-q2\ttrain-q2-d0\t1\n")
    with pytest.raises(
        InputError, match="split 'train': no query has two documents of different grades"
    ):
        opened(folder, unjudged="skip")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"list_size": 1}, "list_size must be at least 2, got 1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"unjudged": "drop"}, "unjudged must be one of irrelevant, skip, got 'drop'"),
        ({"keep": "best"}, "keep must be one of relevant, any, all, got 'best'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        data_module(ListDataModule, "x", **options)
