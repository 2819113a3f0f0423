"""``auto``: of each source and split the pools that it has, else the best of BM25."""

import dataclasses
import json
import logging
import shutil

import pytest
import torch

from ltr.cli.import_data import import_data
from ltr.data.collection import open_collection
from ltr.data.cross_validation import Fold
from ltr.data.layouts import JoinedPairs
from ltr.datamodules import (
    Evaluation,
    GroupDataModule,
    ListDataModule,
    TripletDataModule,
)
from ltr.models import DualEncoder
from ltr.run.same_options import are_same
from ltr.use.teaching import lists_to_score
from tests.world.collections import write_collection
from tests.world.data_modules import data_module
from tests.world.tokenizers import wordpiece_tokenizer

READS = JoinedPairs(wordpiece_tokenizer(), 24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pools for test alone."""
    folder = write_collection(tmp_path_factory.mktemp("auto") / "c", n_queries=12)
    for split in ("train", "dev"):
        (folder / f"candidates/{split}.trec").unlink()
    return folder


def opened(kind, path, *stages, reads=READS, **options):
    options = {"batch_size": 4, "seed": 0} | options
    if kind is GroupDataModule:
        del options["batch_size"]
    data = data_module(kind, path, reads=reads, **options)
    for stage in stages:
        data.setup(stage)
    return data


def epoch(data):
    data.train_dataloader().sampler.set_epoch(0)
    return list(data.train_dataloader())


def evaluated(data, split):
    return [
        (labelled.query_row, labelled.doc_rows.tolist())
        for batch in data.eval_batches(split).batches
        for labelled in batch
    ]


@pytest.mark.parametrize("kind", [TripletDataModule, ListDataModule])
def test_without_pools_it_is_bm25_to_the_last_token(folder, kind):
    explicit = {"candidates": "bm25", "depth": 100}
    if kind is TripletDataModule:
        explicit |= {"negatives": "bm25", "negatives_depth": 100}
    auto = opened(kind, str(folder), "fit")
    named = opened(kind, str(folder), "fit", **explicit)
    for ours, theirs in zip(epoch(auto), epoch(named), strict=True):
        assert torch.equal(ours.doc_rows, theirs.doc_rows)
        assert torch.equal(ours.pairs.ids, theirs.pairs.ids)
        assert torch.equal(ours.distances.isnan(), theirs.distances.isnan())
    assert evaluated(auto, "dev") == evaluated(named, "dev")
    assert auto.digests == named.digests
    assert auto.evaluation_digests("dev") == named.evaluation_digests("dev")
    assert (
        auto.conventions("dev") == named.conventions("dev") == {"candidates": "bm25", "depth": 100}
    )


@pytest.mark.parametrize("kind", [TripletDataModule, ListDataModule])
def test_with_pools_it_is_these(collection_folder, kind):
    explicit = {"candidates": "candidates"}
    if kind is TripletDataModule:
        explicit["negatives"] = "candidates"
    auto = opened(kind, str(collection_folder), "fit")
    named = opened(kind, str(collection_folder), "fit", **explicit)
    for ours, theirs in zip(epoch(auto), epoch(named), strict=True):
        assert torch.equal(ours.doc_rows, theirs.doc_rows)
    assert evaluated(auto, "dev") == evaluated(named, "dev")
    assert auto.digests == named.digests
    assert auto.conventions("dev") == {"candidates": "candidates", "depth": None}


def test_each_split_is_asked_by_itself_and_said_in_a_line(folder, caplog):
    with caplog.at_level(logging.INFO, "ltr"):
        data = opened(TripletDataModule, str(folder), "fit", "test")
    said = [line for line in caplog.messages if ": auto takes " in line]
    assert [line.removeprefix(f"{folder}: ") for line in said] == [
        "split 'train': negatives: auto takes the best 100 of BM25, as the split has no pools",
        "split 'dev': evaluation.candidates: auto takes the best 100 of BM25, as the split has no pools",
        "split 'test': evaluation.candidates: auto takes the pools of the split",
    ]
    assert data.conventions("dev") == {"candidates": "bm25", "depth": 100}
    assert data.conventions("test") == {"candidates": "candidates", "depth": None}
    assert data.taken == {
        "evaluation.candidates of dev": "bm25, 100 deep",
        "negatives of train": "bm25, 100 deep",
        "evaluation.candidates of test": "candidates",
    }


@pytest.mark.parametrize("kind", [TripletDataModule, ListDataModule])
def test_pools_without_an_order_stay_whole(tmp_path, caplog, kind):
    """A depth would keep the documents whose ids come first: of 12 pools all but one have one score
    throughout, and that one is cut.
    """
    folder = write_collection(tmp_path / "c", n_queries=12)
    for split in ("train", "test"):
        file = folder / f"candidates/{split}.trec"
        lines = [line.split() for line in file.read_text().splitlines()]
        ordered = lines[0][0]
        for line in lines:
            line[4] = line[4] if line[0] == ordered else "0"
        file.write_text("".join(" ".join(line) + "\n" for line in lines))
    whole = dict(evaluated(opened(kind, str(folder), "test"), "test"))
    options = {"depth": 2} | ({"negatives_depth": 2} if kind is TripletDataModule else {})
    data = opened(kind, str(folder), "fit", "test", **options)
    came = dict(evaluated(data, "test"))
    assert min(map(len, whole.values())) > 2
    cut = {query for query in whole if came[query] != whole[query]}
    assert {query: came[query] for query in cut} == {query: whole[query][:2] for query in cut}
    assert len(cut) == 1
    for split in ("train", "test"):
        said = f"{folder}: the pools of {len(whole) - 1} of {len(whole)} queries of {split} have no order"
        assert caplog.text.count(said) == 1
    # No depth is told that most lists exceed.
    assert data.conventions("test") == {"candidates": "candidates", "depth": None}
    assert data.taken["evaluation.candidates of test"] == "candidates"
    assert "'test': evaluation.candidates: auto takes the pools of the split (" not in caplog.text


def test_a_depth_holds(folder, caplog):
    """Of all 288 documents 96 are of a split; a query has three words, so BM25 finds more than 3."""
    options = {"depth": 3, "negatives_depth": 2, "negatives_per_query": 7}
    with caplog.at_level(logging.INFO, "ltr"):
        data = opened(TripletDataModule, str(folder), "fit", "test", **options)
    assert {len(docs) for _, docs in evaluated(data, "dev")} == {3}
    assert {len(docs) for _, docs in evaluated(data, "test")} == {3}
    assert max(int(batch.mask.sum(1).max()) for batch in epoch(data)) <= 1 + 2
    assert "takes the best 2 of BM25" in caplog.text and "takes the best 3 of BM25" in caplog.text
    assert "takes the pools of the split (the best 3)" in caplog.text
    assert data.conventions("dev") == {"candidates": "bm25", "depth": 3}
    assert data.conventions("test") == {"candidates": "candidates", "depth": 3}


def test_a_split_without_the_pools_that_are_asked_for_cannot_be_measured(folder, tmp_path):
    """Nothing names it as the next to measure."""
    shutil.copytree(folder, tmp_path / "c")
    (tmp_path / "c/candidates/test.trec").rename(tmp_path / "c/candidates/dev.trec")
    for candidates, splits in (("candidates", {"dev"}), ("auto", {"dev", "test"})):
        data = opened(TripletDataModule, str(tmp_path / "c"), candidates=candidates)
        data.open_collections()
        assert data.measurable_splits == splits


def test_each_source_is_asked_by_itself(folder, collection_folder):
    path = [{"path": str(folder), "name": "a"}, {"path": str(collection_folder), "name": "b"}]
    data = opened(TripletDataModule, path, "fit")
    assert data.taken == {
        "a evaluation.candidates of dev": "bm25, 100 deep",
        "b evaluation.candidates of dev": "candidates",
        "a negatives of train": "bm25, 100 deep",
        "b negatives of train": "candidates",
    }
    assert data.conventions("dev") == {"candidates": "bm25 of a and candidates of b", "depth": None}


def test_lists_of_a_searched_corpus_and_groups(folder, backbone, caplog):
    """Where the corpus is searched, or nothing is evaluated, training lists have what auto takes."""
    reads = DualEncoder(backbone, max_length=20).reads
    for evaluation in ({"candidates": "corpus", "depth": 5}, {"candidates": None}):
        caplog.clear()
        with caplog.at_level(logging.INFO, "ltr"):
            opened(ListDataModule, str(folder), "fit", reads=reads, **evaluation)
        assert "split 'train': training lists: auto takes the best" in caplog.text
    groups = opened(GroupDataModule, str(folder), "fit", reads=reads, groups=4)
    assert groups.taken == {"evaluation.candidates of dev": "bm25, 100 deep"}


def labelled_rows(folder, n_with_others):
    """Ten queries with one relevant text each; some of them have one that is not."""
    folder.mkdir()
    rows = []
    for number in range(10):
        rows.append(
            {"query": f"query text {number}", "document": f"good text {number}", "label": 1}
        )
        if number < n_with_others:
            rows.append(
                {"query": f"query text {number}", "document": f"bad text {number}", "label": 0}
            )
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for split in ("train", "dev", "test"):
        (folder / f"{split}.jsonl").write_text(lines)
    return str(folder)


@pytest.mark.parametrize(("n_with_others", "taken"), [(0, "bm25"), (1, "bm25"), (5, "candidates")])
def test_pools_of_relevant_texts_alone_are_not_taken(tmp_path, caplog, n_with_others, taken):
    """Whatever ranked them, each measure would be 1; and training would leave nine of ten out."""
    path = labelled_rows(tmp_path / "rows", n_with_others)
    with caplog.at_level(logging.INFO, "ltr"):
        data = opened(TripletDataModule, path, "fit", "test")
    assert data.conventions("test")["candidates"] == taken
    assert data.taken["negatives of train"].split(",")[0] == taken
    why = "the pools of 9 of 10 queries hold nothing below their best documents"
    assert caplog.text.count(why) == (3 if n_with_others == 1 else 0)
    ranked_perfectly = "5 of 10 test queries have relevant documents of one grade alone"
    assert (ranked_perfectly in caplog.text) is (n_with_others == 5)


def test_pools_that_were_imported_are_asked_the_same(tmp_path):
    import_data(labelled_rows(tmp_path / "rows", 1), str(tmp_path / "folder"))
    collection = open_collection(tmp_path / "folder")
    assert "test" in collection.candidates
    assert collection.taken_by_auto("test") == "bm25"


def test_pools_that_are_asked_for_and_say_nothing_are_counted(tmp_path, caplog):
    path = labelled_rows(tmp_path / "rows", 1)
    opened(TripletDataModule, path, "test", candidates="candidates")
    assert "9 of 10 test queries have relevant documents of one grade alone" in caplog.text


def test_rated_pairs_of_one_list_are_what_is_learnt(tmp_path, monkeypatch):
    """A loss that learns from one document learns from the pairs, not from BM25's documents."""
    path = labelled_rows(tmp_path / "rows", 1)
    data = data_module(ListDataModule, path, reads=READS, batch_size=4, seed=0)
    monkeypatch.setattr(ListDataModule, "learns_from_one_document", True)
    data.setup("fit")
    assert data.taken["evaluation.candidates of train"] == ("candidates")
    assert sum(int(batch.mask.sum()) for batch in epoch(data)) == 11


def test_a_teacher_says_what_auto_takes(folder, collection_folder, caplog):
    with caplog.at_level(logging.INFO, "ltr"):
        lists_to_score(open_collection(folder), "train", "auto")
        lists_to_score(open_collection(collection_folder), "train", "auto")
    assert "documents: auto takes the best 100 of BM25, as the split has no pools" in caplog.text
    assert "documents: auto takes the pools of the split" in caplog.text


def test_a_fold_has_the_pools_of_what_it_is_made_of(folder, collection_folder):
    for path, taken in ((folder, "bm25"), (collection_folder, "candidates")):
        data = TripletDataModule(str(path), evaluation=Evaluation(fold=Fold(1, of=3)))
        data.reads = READS
        data.setup("test")
        assert data.conventions("test")["candidates"] == taken


def test_pools_that_came_later_are_other_content(tmp_path):
    """So a resume is refused, and two such runs are no seeds of one experiment."""
    whole = write_collection(tmp_path / "c", n_queries=12)
    pools = (whole / "candidates").rename(tmp_path / "later")
    before = opened(TripletDataModule, str(whole), "fit")
    pools.rename(whole / "candidates")
    after = opened(TripletDataModule, str(whole), "fit")
    assert before.digests.keys() == after.digests.keys()
    changed = {name for name in before.digests if before.digests[name] != after.digests[name]}
    assert changed == {"negatives"}
    dev = [data.evaluation_digests("dev") for data in (before, after)]
    assert dev[0]["candidates"] != dev[1]["candidates"]
    assert dev[0]["judgements"] == dev[1]["judgements"]


@pytest.mark.parametrize(
    ("name", "value", "other", "same"),
    [
        ("data.negatives", "auto", "bm25", True),
        ("data.negatives", "candidates", "auto", True),
        ("data.negatives", "auto", "random", False),
        ("data.negatives", "bm25", "candidates", False),
        ("data.negatives", "auto", None, False),
        ("data.evaluation.candidates", "bm25", "auto", True),
        ("data.evaluation.candidates", "corpus", "auto", False),
        ("model.margin", "auto", "bm25", False),
    ],
)
def test_auto_is_the_same_as_what_it_may_have_taken(name, value, other, same):
    """Whether it has taken that, the digests of the content tell."""
    assert are_same(name, value, other) is same


def test_what_is_taken_is_an_evaluation(folder):
    collection = opened(TripletDataModule, str(folder), "test").collection
    auto = Evaluation(batch_size=5)
    assert auto.candidates == "auto" and auto.depth is None
    assert auto.of_split(collection, "test") == dataclasses.replace(auto, candidates="candidates")
    bm25 = dataclasses.replace(auto, candidates="bm25", depth=100)
    assert auto.of_split(collection, "dev") == bm25
    assert Evaluation("bm25", batch_size=5).of_split(collection, "test") == bm25
    assert Evaluation(None).of_split(collection, "test") == Evaluation(None)
