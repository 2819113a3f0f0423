"""What int8 costs."""

import numpy as np
import onnx
import onnxruntime
import pytest
import pytrec_eval
from transformers import AutoTokenizer

import ltr
from ltr.__main__ import main
from ltr.data.collection import open_collection


@pytest.mark.parametrize("kind", ["cross", pytest.param("dual", marks=pytest.mark.long)])
def test_int8_is_measured_beside_float32(exported, collection_folder, tmp_path, capsys, kind):
    folder, _, _ = exported
    source = folder / f"run-{kind}/run"
    out = tmp_path / "out"
    assert (
        main(["export", str(source), str(out), "--to", "onnx", "--int8", str(collection_folder)])
        == 0
    )
    told = capsys.readouterr().out
    # float32's value, by the run itself and trec_eval
    collection = open_collection(str(collection_folder))
    ranker = ltr.load(source, "32-true")
    judged = collection.learnable("dev")
    pools = collection.candidates["dev"]
    qrels = {}
    run = {}
    for row in judged.query_rows.tolist():
        documents = pools.of(row)[0].tolist()
        asked = collection.queries.texts[row]
        scores = ranker.score([(asked, collection.corpus.texts[doc]) for doc in documents]).tolist()
        run[str(row)] = {f"{doc:04}": score for doc, score in zip(documents, scores, strict=True)}
        qrels[str(row)] = {
            f"{doc:04}": int(grade) for doc, grade in zip(*judged.of(row), strict=True)
        }
    by_query = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut_10"}).evaluate(run).values()
    expected = np.mean([one["ndcg_cut_10"] for one in by_query])
    assert 0.1 < expected < 1 and f"float32: nDCG@10 {expected:.4f} on dev" in told
    table = (out / "README.md").read_text().partition("## Int8")[2]
    assert f"| float32 | {expected:.4f} |" in table and "| int8 |" in table
    # The weights of int8 are int8, and its outputs are near those of float32, not equal.
    weights = {
        one.data_type
        for one in onnx.load(out / "model_int8.onnx").graph.initializer
        if len(one.dims) == 2
    }
    assert onnx.TensorProto.INT8 in weights and onnx.TensorProto.FLOAT not in weights
    texts = dict(
        AutoTokenizer.from_pretrained(out)(
            [f"w{n} w{n + 3}" for n in range(30)], return_tensors="np"
        )
    )
    both = (
        onnxruntime.InferenceSession(str(out / name)) for name in ("model.onnx", "model_int8.onnx")
    )
    plain, small = (
        one.run(None, {part.name: texts[part.name] for part in one.get_inputs()})[0] for one in both
    )
    assert 0 < np.abs(plain - small).max() < 0.1 * np.ptp(plain)
