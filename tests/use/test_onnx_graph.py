"""ONNX graphs give the same scores."""

import json

import numpy as np
import onnxruntime
import pytest
from transformers import AutoTokenizer, BertConfig, BertModel

from ltr.__main__ import main
from ltr.models import DualEncoder
from ltr.use.export import export
from ltr.use.load import load
from ltr.use.onnx_graph import Session
from tests.use.exported import PAIRS
from tests.world.tokenizers import byte_level_bpe


@pytest.mark.parametrize(
    "name", ["cross", "dual", "bert", "cls", pytest.param("max", marks=pytest.mark.long)]
)
def test_onnx(exported, name, tmp_path):
    folder, own, _ = exported
    source = folder / f"run-{name}/run" if name in ("cross", "dual") else folder / f"to-{name}"
    out = tmp_path / "onnx"
    assert main(["export", str(source), str(out), "--to", "onnx"]) == 0
    settings = json.loads((out / "ltr.json").read_text())
    session = onnxruntime.InferenceSession(str(out / "model.onnx"))
    tokenizer = AutoTokenizer.from_pretrained(out)

    def output(*texts, **options):
        given = tokenizer(
            *map(list, texts),
            padding=True,
            return_tensors="np",
            max_length=settings["model"]["max_length"],
            **options,
        )
        return session.run(None, {one.name: given[one.name] for one in session.get_inputs()})[0]

    if name == "dual":
        queries, documents = (output(side, truncation=True) for side in zip(*PAIRS, strict=True))
        lengths = np.linalg.norm(queries, axis=1) * np.linalg.norm(documents, axis=1)
        found = (queries * documents).sum(axis=1) / lengths / 0.1
    else:
        found = output(*zip(*PAIRS, strict=True), truncation="only_second")
    assert found == pytest.approx(own[name], abs=1e-4)


def test_a_model_with_few_positions(tmp_path):
    """The texts of the self-check are longer: each word has a token for every letter or two."""
    positions = 8
    tokenizer = byte_level_bpe()
    tokenizer.model_max_length = positions
    tokenizer.save_pretrained(tmp_path / "plain")
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=positions,
    )
    BertModel(config).save_pretrained(tmp_path / "plain")
    DualEncoder(str(tmp_path / "plain")).save(tmp_path / "dual")
    export(tmp_path / "dual", tmp_path / "out", "onnx")
    texts = ["w1", "w2 w3 " * 20]
    padded = tokenizer(texts, truncation=True, max_length=positions, padding=True)
    inputs = {name: np.array(padded[name]) for name in ("input_ids", "attention_mask")}
    found = Session(tmp_path / "out/model.onnx").output(inputs)
    expected = load(tmp_path / "dual", "32-true", "cpu").encode(texts)
    assert found == pytest.approx(expected, abs=1e-5)
