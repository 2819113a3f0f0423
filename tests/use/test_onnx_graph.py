"""ONNX graphs give the same scores, and what int8 costs is measured."""

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import onnx
import pytest
import pytrec_eval
from onnxruntime import InferenceSession
from transformers import AutoTokenizer

import ltr
from ltr.__main__ import main
from ltr.data.collection import open_collection
from ltr.data.query_lists import QueryLists
from ltr.models import DualEncoder
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.use import int8
from ltr.use.export import export
from ltr.use.load import load
from ltr.use.onnx_graph import Session
from tests.use.exported import PAIRS
from tests.world.backbones import make_backbone
from tests.world.collections import write_collection
from tests.world.tokenizers import byte_level_bpe


@pytest.fixture(scope="module")
def graphs(exported, collection_folder, tmp_path_factory):
    """``graphs(name)``: the ranker of this name, a folder of its graph, and what was said. Graphs of
    runs are there in int8, too.
    """
    folder, _, _ = exported
    place = tmp_path_factory.mktemp("graphs")
    said: dict[str, str] = {}

    def written(name: str) -> tuple[Path, Path, str]:
        is_run = name in ("cross", "dual")
        source = folder / (f"run-{name}/run" if is_run else f"to-{name}")
        out = place / name
        if name not in said:
            int8 = ["--int8", str(collection_folder)] if is_run else []
            with redirect_stdout(StringIO()) as told:
                assert main(["export", str(source), str(out), "--to", "onnx", *int8]) == 0
            said[name] = told.getvalue()
        return source, out, said[name]

    return written


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "name",
    ["cross", *(pytest.param(name, marks=LONG) for name in ("bert", "dual", "cls", "max"))],
)
def test_onnx(exported, graphs, name):
    _, own, _ = exported
    _, out, _ = graphs(name)
    length = json.loads((out / "ltr.json").read_text())["model"]["max_length"]
    session = InferenceSession(str(out / "model.onnx"))
    tokenizer = AutoTokenizer.from_pretrained(out)

    def output(*texts, **options):
        options |= {"padding": True, "return_tensors": "np", "max_length": length}
        given = tokenizer(*map(list, texts), **options)
        return session.run(None, {one.name: given[one.name] for one in session.get_inputs()})[0]

    if name == "dual":
        queries, documents = (output(side, truncation=True) for side in zip(*PAIRS, strict=True))
        lengths = np.linalg.norm(queries, axis=1) * np.linalg.norm(documents, axis=1)
        found = (queries * documents).sum(axis=1) / lengths / 0.1
    else:
        found = output(*zip(*PAIRS, strict=True), truncation="only_second")
    assert found == pytest.approx(own[name], abs=1e-4)


@pytest.mark.long
def test_a_model_with_few_positions(tmp_path):
    """The texts of the self-check are longer: each word has a token for every letter or two. The
    first token is pooled.
    """
    positions = 8
    tokenizer = byte_level_bpe()
    tokenizer.model_max_length = positions
    sizes = {"num_hidden_layers": 1, "max_position_embeddings": positions}
    plain = str(make_backbone(tmp_path / "plain", tokenizer, **sizes))
    DualEncoder(plain, encoder=TextEncoder.Options(pooling="cls")).save(tmp_path / "dual")
    export(tmp_path / "dual", tmp_path / "out", "onnx")
    texts = ["w1", "w2 w3 " * 20]
    padded = tokenizer(texts, truncation=True, max_length=positions, padding=True)
    inputs = {name: np.array(padded[name]) for name in ("input_ids", "attention_mask")}
    found = Session(tmp_path / "out/model.onnx").output(inputs)
    expected = load(tmp_path / "dual", "32-true", "cpu").encode(texts)
    assert found == pytest.approx(expected, abs=1e-5)


def test_int8_ranks_the_best_of_a_pool_and_a_pool_without_an_order_whole(tmp_path, monkeypatch):
    """The documents of the second query have one score."""
    folder = write_collection(tmp_path / "c", n_queries=12)
    collection = open_collection(str(folder))
    first, second = collection.learnable("dev").query_rows[:2].tolist()
    pools = QueryLists.from_rows([first] * 3 + [second] * 3, [9, 5, 2] * 2, [4, 3, 1, 0, 0, 0])
    collection = collection._replace(candidates={"dev": pools})
    monkeypatch.setattr(int8, "DEPTH", 2)
    ranked = []
    monkeypatch.setattr(int8, "_measure", lambda *given: ranked.append(given[-2]))
    int8.add_int8_graphs(tmp_path, None, collection)
    docs_of_first, docs_of_second = (ranked[0].of(row)[0].tolist() for row in (first, second))
    assert docs_of_first == [9, 5] and sorted(docs_of_second) == [2, 5, 9]


@pytest.mark.parametrize("kind", ["cross", pytest.param("dual", marks=LONG)])
def test_int8_is_measured_beside_float32(graphs, collection_folder, kind):
    source, out, told = graphs(kind)
    # float32's value, by the run itself and trec_eval
    collection = open_collection(str(collection_folder))
    ranker = ltr.load(source, "32-true")
    judged = collection.learnable("dev")
    pools = collection.candidates["dev"]
    qrels = {}
    run = {}
    for row in judged.query_rows.tolist():
        documents = [int(doc) for doc in pools.of(row)[0]]
        asked = collection.queries.texts[row]
        scores = ranker.score([(asked, collection.corpus.texts[doc]) for doc in documents]).tolist()
        run[str(row)] = {f"{doc:04}": score for doc, score in zip(documents, scores, strict=True)}
        grades = zip(*judged.of(row), strict=True)
        qrels[str(row)] = {f"{doc:04}": int(grade) for doc, grade in grades}
    by_query = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut_10"}).evaluate(run).values()
    expected = np.mean([one["ndcg_cut_10"] for one in by_query])
    assert 0.1 < expected < 1 and f"float32: nDCG@10 {expected:.4f} on dev" in told
    table = (out / "README.md").read_text().partition("## Int8")[2]
    assert f"| float32 | {expected:.4f} |" in table and "| int8 |" in table
    # The weights of int8 are int8, and its outputs are near those of float32, not equal.
    weights = onnx.load(out / "model_int8.onnx").graph.initializer
    types = {one.data_type for one in weights if len(one.dims) == 2}
    assert onnx.TensorProto.INT8 in types and onnx.TensorProto.FLOAT not in types
    texts = [f"w{n} w{n + 3}" for n in range(30)]
    inputs = AutoTokenizer.from_pretrained(out)(texts, return_tensors="np")
    outputs = []
    for name in ("model.onnx", "model_int8.onnx"):
        session = InferenceSession(str(out / name))
        given = {part.name: inputs[part.name] for part in session.get_inputs()}
        outputs.append(session.run(None, given)[0])
    plain, small = outputs
    assert 0 < np.abs(plain - small).max() < 0.1 * np.ptp(plain)
