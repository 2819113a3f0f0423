"""What a proof says of how texts are read, and what tokenizer.json must not say."""

import json
from pathlib import Path

import pytest

from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.use import export as room
from ltr.use.proof.contract import open_proof
from ltr.use.verify.verification import verify
from tests.use.proof.exported import make_cased_backbone


@pytest.fixture(scope="module")
def backbone(tmp_path_factory) -> str:
    return str(make_cased_backbone(tmp_path_factory.mktemp("backbone") / "cased"))


RANKERS = {
    "dual": lambda backbone, length: DualEncoder(backbone, max_length=length),
    "towers": lambda backbone, length: DualEncoder(
        backbone, doc_backbone=backbone, max_length=length
    ),
    "prompts": lambda backbone, length: DualEncoder(
        backbone, max_length=length, query_prompt="Question: ", doc_prompt="Passage: "
    ),
    "cross": lambda backbone, length: PairWiseBertRanker(backbone, max_length=length),
}


@pytest.mark.parametrize(("kind", "length"), [("dual", 4), ("cross", 40)])
def test_special_tokens_are_known_where_every_probe_is_cut(backbone, tmp_path, kind, length):
    RANKERS[kind](backbone, length).eval().save(tmp_path / "own")
    room.export(tmp_path / "own", tmp_path / "out")
    proof = open_proof(tmp_path / "out")
    if kind != "cross":
        assert {len(row.ids) for rows in proof.rows.values() for row in rows} == {length}
    assert proof.contract["adds_special_tokens"]
    assert all(special["before"] == [1] for special in proof.contract["special_tokens"].values())
    assert verify(tmp_path / "out").finding is None


@pytest.mark.parametrize("kind", RANKERS)
@pytest.mark.parametrize("form", ["sentence-transformers", "onnx"])
def test_tokenizer_json_keeps_no_truncation(backbone, tmp_path, monkeypatch, kind, form):
    """Of what was read before it was saved."""
    ranker = RANKERS[kind](backbone, 40).eval()
    towers = [ranker] if kind == "cross" else ranker.towers
    for tower in towers:
        tower.tokenizer(["a", "a b"], truncation=True, padding=True, max_length=7)
    if form == "onnx":

        def only_read(file: Path, graph, tokenizer) -> None:
            tokenizer(["a", "a b"], truncation=True, padding=True, max_length=7)

        monkeypatch.setattr(room, "write_graph", only_read)
        (tmp_path / "out").mkdir()
        room._write_onnx(tmp_path / "out", ranker)
    else:
        ranker.save(tmp_path / "out")
    files = list((tmp_path / "out").rglob("tokenizer.json"))
    assert len(files) == (2 if kind == "towers" else 1)
    for file in files:
        settings = json.loads(file.read_text())
        assert settings["truncation"] is None and settings["padding"] is None
