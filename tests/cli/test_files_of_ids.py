"""Data as MS MARCO ships it and BGE's files with scores: trained one step on, and measured."""

import json

import pytest

from ltr.data.collection import open_collection
from ltr.data.teacher_scores import TeacherScores
from tests.world.collections import WORDS, by_ids
from tests.world.commands import run_ltr
from tests.world.configurations import write_config

ONE_STEP = {"trainer.max_steps": 1, "trainer.max_epochs": 1}


@pytest.fixture(scope="module")
def ms_marco(tmp_path_factory):
    """Queries 100 to 107 and 200 to 203, whose documents 10 q and 10 q + 1 are relevant or not."""
    folder = tmp_path_factory.mktemp("msmarco")
    lines = {"collection": [], "scores": [], "hard": []}
    for split, queries in {"train": range(100, 108), "dev.small": range(200, 204)}.items():
        texts = {query: WORDS[query % 50] for query in queries}
        lines[f"queries.{split}"] = [f"{query}\t{text}" for query, text in texts.items()]
        lines[f"qrels.{split}"] = [f"{query}\t0\t{10 * query}\t1" for query in queries]
        for query, text in texts.items():
            docs = [f"{10 * query}\t{text} {WORDS[3]}", f"{10 * query + 1}\t{WORDS[51]} {WORDS[2]}"]
            lines["collection"] += docs
            lines["scores"] += [f"{query}\t{10 * query}\t7.5", f"{query}\t{10 * query + 1}\t-2.5"]
            neg = {"bm25": [10 * query + 1, 1001], "ance": [1011]}
            lines["hard"].append(json.dumps({"qid": query, "pos": [10 * query], "neg": neg}))
    top = [f"{query}\t{10 * query + n}\tx\ty" for query in range(200, 204) for n in (1, 0)]
    lines["top1000.dev"] = top
    for name, content in lines.items():
        ending = {"hard": ".jsonl", "top1000.dev": ""}.get(name, ".tsv")
        (folder / f"{name}{ending}").write_text("\n".join(content) + "\n")
    return folder


def test_train_and_measure_on_ms_marco(tmp_path, ms_marco, backbone, capsys):
    negatives = tmp_path / "negatives"
    words = f"negatives import {ms_marco}/hard.jsonl {negatives} --data {ms_marco} --systems bm25"
    assert run_ltr(words) == 0
    # 1001 is that of query 100 as well: once there. 1001 is no relevant document of any.
    assert f"{negatives}: 23 negatives of 12 queries, without distances" in capsys.readouterr().out
    changes = {"data.init_args.negatives": str(negatives), **ONE_STEP}
    changes |= {"data.init_args.negatives_per_query": 1}
    config = write_config(tmp_path, backbone, ms_marco, **changes)
    learns = [
        "--data.labels.scores",
        str(ms_marco / "scores.tsv"),
        "--data.labels.unscored",
        "leave_out",
        "--model.loss",
        "ltr.losses.MarginMSELoss",
    ]
    assert run_ltr(f"fit --config {config}", *learns) == 0
    assert run_ltr(f"test {tmp_path / 'run'} --split dev.small") == 0
    told = capsys.readouterr().out
    assert "nDCG@10" in told


def test_scores_of_a_bge_file_are_those_of_its_texts(tmp_path):
    rows = [
        {"query": "a", "pos": ["x", "y"], "neg": ["z"], "pos_scores": [3, 2.5], "neg_scores": [1]},
        {"query": "b", "pos": ["z"], "neg": ["x"], "pos_scores": [0.5], "neg_scores": [-1]},
    ]
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = {"a": {"x": 3.0, "y": 2.5, "z": 1.0}, "b": {"z": 0.5, "x": -1.0}}
    assert scores_by_text(file, file) == expected
    # The same in the data folder that is made of it.
    assert run_ltr(f"import {file} {tmp_path / 'folder'}") == 0
    assert scores_by_text(tmp_path / "folder", file) == expected


def scores_by_text(data, file):
    collection = open_collection(str(data))
    scores = by_ids(collection, TeacherScores.open(file, collection).lists)
    text_of_query = dict(zip(collection.queries.ids, collection.queries.texts, strict=True))
    text_of_doc = dict(zip(collection.corpus.ids, collection.corpus.texts, strict=True))
    return {
        text_of_query[query]: {text_of_doc[doc]: score for doc, score in docs.items()}
        for query, docs in scores.items()
    }
