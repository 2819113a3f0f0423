"""``ltr negatives audit``: from a folder of negatives to a table and an overlay that a run trains
on.
"""

import csv
import json
import logging
import shutil

import numpy as np
import pytest
import yaml
from transformers import BertConfig, BertForSequenceClassification

from ltr.cli.negatives import audit
from ltr.data.collection import open_collection
from ltr.errors import InputError
from ltr.mining.judge import open_judge
from ltr.mining.miner import Miner
from ltr.mining.overlay import Overlay
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.search.encoding_places import TemporaryEncodings
from tests.world.backbones import wordpiece_tokenizer
from tests.world.commands import refusal, run_ltr


@pytest.fixture(scope="module")
def mined(tmp_path_factory, collection_folder, backbone):
    """A run folder with negatives."""
    collection = open_collection(str(collection_folder))
    folder = tmp_path_factory.mktemp("run")
    miner = Miner(DualEncoder(backbone, max_length=24), collection, collection.judgements("train"))
    miner.mine(TemporaryEncodings(folder)).save(folder / "negatives/step=0", collection)
    (folder / "config.yaml").write_text(
        yaml.safe_dump({"data": {"init_args": {"path": str(collection_folder)}}})
    )
    return folder / "negatives/step=0"


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.INFO, "ltr.cli.negatives")
    return lambda: caplog.messages


def test_it_lists_them_and_writes_an_overlay(mined, collection_folder, backbone, tmp_path, told):
    audit(
        str(mined),
        judge=backbone,
        data=str(collection_folder),
        margin=0.01,
        max_length=24,
        tsv=str(tmp_path / "all.tsv"),
        policy="relabel",
        grade=2,
    )
    said = "\n".join(told())
    with open(tmp_path / "all.tsv", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    folder = mined.with_name("step=0.relabel-1")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["counts"]["suspects"] == len(rows) > 10
    assert (manifest["margin"], manifest["grade"]) == (0.01, 2)
    assert f"likely false negatives: {len(rows):,}" in said
    assert said.count("  negative ") == 10 and f"--data.negatives {folder}" in said
    collection = open_collection(str(collection_folder))
    ids = np.load(mined / "ids.npy")
    distances = np.load(mined / "distances.npy")
    gaps = []
    for row in rows:
        query = collection.queries.row(row["query_id"])
        doc = collection.corpus.row(row["doc_id"])
        at = query, int(row["place"])
        assert ids[at] == doc and float(row["distance"]) == pytest.approx(distances[at], rel=1e-5)
        assert row["doc"] == collection.corpus.texts[doc]
        assert row["query"] == collection.queries.texts[query]
        gaps.append(float(row["score"]) - float(row["relevant_score"]))
    assert min(gaps) > -0.0101 and gaps == sorted(gaps, reverse=True)
    assert len(Overlay.open(folder, collection).labels.doc_rows) == len(rows)


def test_the_collection_is_that_of_the_run(mined, backbone, tmp_path, told):
    before = sorted(mined.parent.iterdir())
    audit(str(mined), judge=backbone, margin=-9.0, policy="drop")
    assert "likely false negatives: 0 (0.0%), of 0 queries" in told()
    assert sorted(mined.parent.iterdir()) == before, "there is nothing to drop"
    expected = "lies in no run that tells its collection; name it: --data FOLDER"
    with pytest.raises(InputError, match=expected):
        audit(str(tmp_path), judge=backbone)


def test_negatives_of_dev_are_judged_beside_the_relevant_documents_of_dev(
    mined, collection_folder, backbone, tmp_path, told
):
    """The tiny world has 30 queries in each split; ltr mine writes the split into the manifest."""
    collection = open_collection(str(collection_folder))
    miner = Miner(DualEncoder(backbone, max_length=24), collection, collection.judgements("dev"))
    negatives = miner.mine(TemporaryEncodings(tmp_path))
    negatives.manifest["split"] = "dev"
    negatives.save(tmp_path / "dev", collection)
    options = {"judge": backbone, "data": str(collection_folder), "margin": 0.01, "max_length": 24}
    audit(str(tmp_path / "dev"), tsv=str(tmp_path / "all.tsv"), **options)
    count = len(negatives.lists.doc_rows)
    assert f"{count:,} negatives of 30 queries are judged" in told()
    queries = [line.split("\t")[0] for line in open(tmp_path / "all.tsv")][1:]
    assert queries and {query[:4] for query in queries} == {"dev-"}
    with pytest.raises(InputError, match="for training, and these .* queries of dev; leave --po"):
        audit(str(tmp_path / "dev"), policy="drop", **options)
    assert not list(tmp_path.glob("dev.drop*"))


def test_a_judge_is_a_ready_cross_encoder_or_else_a_dual_encoder(backbone, tmp_path):
    tokenizer = wordpiece_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    config = BertConfig(
        vocab_size=len(tokenizer),
        num_labels=1,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    judge = open_judge(str(tmp_path), 24)
    assert isinstance(judge, PairWiseBertRanker)
    assert judge.has_own_head and judge.reads.max_length == 24
    assert isinstance(open_judge(backbone), DualEncoder)


def test_the_level_of_the_mining_is_that_of_the_audit(mined, collection_folder, backbone, tmp_path):
    """The grade of what is relabelled, where none is said; and what is relevant: of grades 0 and 1
    nothing is from 2 on.
    """
    for level, copy in ((0.5, tmp_path / "half"), (2.0, tmp_path / "two")):
        shutil.copytree(mined, copy)
        about = json.loads((copy / "manifest.json").read_text())
        (copy / "manifest.json").write_text(json.dumps(about | {"relevant_from": level}))
    words = {"judge": backbone, "data": str(collection_folder), "max_length": 24}
    audit(str(tmp_path / "half"), policy="relabel", margin=0.01, **words)
    overlay = json.loads((tmp_path / "half.relabel-1/manifest.json").read_text())
    assert overlay["grade"] == 0.5
    with pytest.raises(InputError, match="has a document with a grade of 2 or above"):
        audit(str(tmp_path / "two"), **words)


def test_what_does_not_fit_is_one_line(mined, backbone, tmp_path):
    for options, text in (
        ({"judge": str(tmp_path / "none")}, "--judge .*none: there is no run, checkpoint or model"),
        ({"judge": backbone, "grade": 0.0}, "--grade must be above 0, got 0"),
        ({}, "needs a ranker that judges; name it: --judge MODEL"),
    ):
        with pytest.raises(InputError, match=text):
            audit(str(mined), **options)


NOT_A_CONFIGURATION = "config.yaml: a configuration must be options with their values"
NO_PATH = "config.yaml must tell the collection as data.init_args.path, got"
NOT_OF_A_RUN = {
    "data: [": "config.yaml:1: a configuration must be YAML",
    "[1]": NOT_A_CONFIGURATION,
    "hello": NOT_A_CONFIGURATION,
    "data:": f"{NO_PATH} None; name it: --data",
    "data: {init_args: }": f"{NO_PATH} None",
    "data: {init_args: {path: 3}}": f"{NO_PATH} 3",
}


@pytest.mark.parametrize("text", NOT_OF_A_RUN)
def test_a_configuration_without_a_collection_is_one_line(text, mined, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(mined, run / "negatives/step=0")
    (run / "config.yaml").write_text(text)
    line = refusal(capsys, f"negatives audit {run}/negatives/step=0 --judge none")
    assert line.startswith(f"ltr: {run}/") and NOT_OF_A_RUN[text] in line


def test_as_it_is_typed_with_the_judge_of_a_run(mined, copied_run, tmp_path, capsys):
    judge = copied_run(tmp_path, "cross")
    assert isinstance(open_judge(str(judge)), PairWiseBertRanker)
    capsys.readouterr()
    assert run_ltr(f"negatives audit {mined} --judge {judge} --policy drop") == 0
    assert f"--data.negatives {mined}.drop-1" in capsys.readouterr().out
