"""What is evaluated of a collection: candidates, or a search of the corpus."""

import json
from typing import get_args

import pytest

from ltr.data.bm25 import ALL_WORDS, Bm25Words
from ltr.datamodules import (
    FeatureDataModule,
    GroupDataModule,
    LabelDataModule,
    ListDataModule,
    PoolDataModule,
    TripletDataModule,
)
from ltr.errors import InputError
from ltr.run.same_options import Asking, deciding_options
from tests.datamodules.read import reads_of
from tests.world.collections import small_collection, write_collection
from tests.world.data_modules import data_module


@pytest.mark.parametrize(
    "kind", [TripletDataModule, ListDataModule, GroupDataModule, LabelDataModule]
)
def test_texts_must_know_how_they_are_read(kind, collection_folder):
    for reads, came in (
        ("nothing", "got nothing"),
        ("features", "got a ranker of feature vectors"),
    ):
        with pytest.raises(
            InputError,
            match=f"{kind.__name__} serves texts and must know .* {came}; .* set data.reads = ranker.reads",
        ):
            data_module(kind, str(collection_folder), reads=reads_of(reads)).setup("fit")


def test_a_cross_encoder_can_neither_search_nor_learn_from_groups(collection_folder):
    path = str(collection_folder)
    with pytest.raises(
        InputError,
        match="only a dual encoder can search the corpus: .* set evaluation.candidates to auto",
    ):
        data_module(
            TripletDataModule, path, candidates="corpus", depth=5, reads=reads_of("pairs")
        ).setup("fit")
    with pytest.raises(InputError, match="a cross-encoder can't learn from groups"):
        data_module(GroupDataModule, path, reads=reads_of("pairs")).setup("fit")


def test_evaluated_documents_come_from_somewhere(collection_folder):
    data = data_module(
        PoolDataModule, str(collection_folder), candidates=None, reads=reads_of("pairs")
    )
    with pytest.raises(
        InputError,
        match="nothing to evaluate without candidates; set evaluation.candidates to auto",
    ):
        data.setup("validate")


def test_a_query_that_bm25_finds_nothing_for_is_not_lost(tmp_path, caplog):
    """To predict as to measure: it counts as nothing found, and the log says so."""
    folder = write_collection(tmp_path / "c", n_queries=3)
    queries = (folder / "queries.jsonl").read_text().splitlines()
    queries = [
        json.dumps({"_id": "test-q1", "text": "xylophone"}) if '"test-q1"' in line else line
        for line in queries
    ]
    (folder / "queries.jsonl").write_text("\n".join(queries) + "\n")
    for stage in ("test", "predict"):
        caplog.clear()
        data = data_module(
            PoolDataModule, str(folder), candidates="bm25", depth=5, reads=reads_of("pairs")
        )
        data.setup(stage)
        lists = [one for batch in data.eval_batches("test").batches for one in batch]
        assert sorted(len(one.doc_rows) for one in lists) == [0, 5, 5]
        assert "1 of 3 test queries have no candidates; they count as nothing found" in caplog.text


def test_what_others_may_know_of_the_data(collection_folder, letor_folder):
    reads = reads_of("apart")
    data = data_module(
        ListDataModule,
        str(collection_folder),
        candidates="corpus",
        depth=5,
        index="IVF4,Flat",
        reads=reads,
    )
    assert not data.corpora and not data.needs_in_batch
    data.setup("fit")
    (corpus,) = data.corpora
    assert (corpus.reads, corpus.depth, corpus.index) == (reads, 5, "IVF4,Flat")
    assert (corpus.own_docs == -1).all(), "no query is a document"
    assert (
        (len(corpus.queries), len(corpus.docs))
        == (len(data.collection.queries), len(data.collection.corpus))
        == (90, 720)
    )
    assert data.conventions("dev") == {"candidates": "corpus", "depth": 5, "index": "IVF4,Flat"}
    assert (
        sorted(data.query_rows_of_rank("dev"))
        == data.collection.judgements("dev").query_rows.tolist()
    )
    assert data.query_rows_of_rank("test").tolist() == []  # not set up
    groups = data_module(GroupDataModule, str(collection_folder), reads=reads)
    groups.setup("fit")
    assert (
        not groups.corpora
        and groups.needs_in_batch
        and groups.conventions("dev") == {"candidates": "candidates", "depth": None}
    )
    features = FeatureDataModule(str(letor_folder))
    assert (
        not features.corpora and not features.needs_in_batch and features.conventions("dev") == {}
    )


def test_the_queries_of_two_ranks_are_all_queries(collection_folder, monkeypatch):
    monkeypatch.setattr(ListDataModule, "world_size", 2)
    seen = []
    for rank in range(2):
        monkeypatch.setattr(ListDataModule, "rank", rank)
        data = data_module(
            ListDataModule,
            str(collection_folder),
            candidates="corpus",
            depth=5,
            eval_batch_size=7,
            reads=reads_of("apart"),
        )
        data.setup("validate")
        seen += data.query_rows_of_rank("dev").tolist()
    assert sorted(seen) == data.collection.judgements("dev").query_rows.tolist()


@pytest.mark.parametrize("made", [TripletDataModule, ListDataModule])
def test_the_words_of_bm25_are_stemmed_for_negatives_and_candidates(tmp_path, made):
    """By hand: the query "the cats" shares a word with all but the bird, and a stem, without the
    article, with the first two documents.
    """
    docs = {"a": "Felix purrs at the cats", "b": "the cat ran", "c": "the dogs", "d": "a bird"}
    judged = [("q", "a", 2)]
    small_collection(tmp_path / "c", docs, {"q": "the cats"}, judged, test=judged)
    found = {}
    for words in (ALL_WORDS, Bm25Words("english", "english")):
        options = {"negatives": "bm25"} if made is TripletDataModule else {}
        data = data_module(
            made, str(tmp_path / "c"), candidates="bm25", depth=9, bm25=words, **options
        )
        data.reads = reads_of("pairs")
        data.setup("fit")
        data.setup("test")
        (trained,) = data.train_dataloader()
        (tested,) = data.test_dataloader()
        rows = [set(batch.doc_rows[batch.mask].tolist()) for batch in (trained, tested)]
        assert rows[0] == rows[1]
        found[words] = rows[0], data.conventions("test").get("bm25")
    assert found == {
        ALL_WORDS: ({0, 1, 2}, None),
        Bm25Words("english", "english"): ({0, 1}, "stemmer english, stopwords english"),
    }


def test_other_words_of_bm25_learn_other_things():
    config = {"data": {"class_path": "x.y", "init_args": {"bm25": {"stemmer": "english"}}}}
    for asking in get_args(Asking):
        assert deciding_options(config, asking)["data.bm25.stemmer"] == "english"
