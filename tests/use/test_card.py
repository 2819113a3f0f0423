"""The model card."""

from pathlib import Path

import pytest

from ltr.models import DualEncoder
from ltr.use.card import card
from ltr.use.export import export
from ltr.use.load import load
from tests.world.backbones import make_backbone


def results_of_code(card: str, folder: Path) -> dict:
    """What the names of a card's code hold when it has run on a folder."""
    code = card.partition("```python\n")[2].partition("```")[0]
    found: dict = {}
    exec(code.replace("FOLDER", str(folder)), found)  # noqa: S102  # the card's own
    return found


def test_a_card_says_what_it_is(exported):
    folder, _, _ = exported
    text = (folder / "to-cross/README.md").read_text()
    for part in ("ltr.losses.SoftmaxLoss", "95 % interval", "nDCG@10", "@software{ltr"):
        assert part in text
    for row in ("| negatives | candidates |", "| seed | 0 |"):
        assert row in text
    assert len(results_of_code(text, folder / "to-cross")["scores"]) == 2
    assert "Training" not in (folder / "to-bert/README.md").read_text(), "nothing is known of it"


def test_a_model_of_the_hub_was_not_trained_by_a_run_in_the_working_directory(
    retriever, tmp_path, monkeypatch
):
    """The name of a model is no path, though ``owner/name`` looks like one."""
    (tmp_path / "config.yaml").write_text("model: {lr: 0.1}\n")
    monkeypatch.chdir(tmp_path)
    text = card(Path("owner/name"), "sentence-transformers", retriever.model)
    assert "# A dual encoder trained with ltr" in text and "## Training" not in text


@pytest.mark.parametrize("towers", [1, 2])
def test_the_code_of_onnx_embeds_both_sides_as_the_ranker_does(tmp_path, towers):
    folder = tmp_path / "out"
    backbone = str(make_backbone(tmp_path / "backbone", num_hidden_layers=1))
    second = backbone if towers == 2 else None
    prompts = {"query_prompt": "w1 w2 ", "doc_prompt": "w3 "}
    model = DualEncoder(backbone, doc_backbone=second, projection=8, max_length=8, **prompts)
    model.save(tmp_path / "dual")
    export(tmp_path / "dual", folder, "onnx")
    files = {file.name for file in folder.iterdir()}
    graphs = {1: {"model.onnx"}, 2: {"query.onnx", "document.onnx"}}
    assert {name for name in files if name.endswith(".onnx")} == graphs[towers]
    assert ({"query", "document"} <= files) == (towers == 2)
    found = results_of_code((folder / "README.md").read_text(), folder)
    ranker = load(tmp_path / "dual", "32-true", "cpu")
    queries = ranker.encode(["a question"], "query")
    documents = ranker.encode(["a document", "another document"])
    assert found["queries"] == pytest.approx(queries, abs=1e-4)
    assert found["documents"] == pytest.approx(documents, abs=1e-4)
