"""The model card."""

from pathlib import Path

import numpy as np
import pytest

from ltr.models import DualEncoder
from ltr.use.card import _training, card
from ltr.use.export import export
from ltr.use.load import load
from tests.world.backbones import make_backbone
from tests.world.tested_runs import QUERIES, write_run


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


def test_a_measure_without_values_leaves_the_others_on_the_card(retriever, tmp_path):
    """No query has a document of grade 4."""
    values = np.linspace(0.0, 1.0, len(QUERIES))
    conventions = {"AP": "all count", "AP(rel=4)": "those without are left out"}
    report = {"AP(rel=4)": None, "conventions": conventions}
    run = write_run(tmp_path / "run", values, report=report)
    header, *rows = (run / "per_query.tsv").read_text().splitlines()
    lines = [f"{header}\tAP(rel=4)", *(f"{row}\tnan" for row in rows)]
    (run / "per_query.tsv").write_text("\n".join(lines) + "\n")
    text = card(run, "sentence-transformers", retriever.model)
    assert "| AP | 0.5000 | " in text and "fewer than two queries, too few" not in text
    assert "Fewer than two queries have a value of AP(rel=4)." in text


def test_a_measure_of_fewer_queries_says_so_on_the_card(retriever, tmp_path):
    """All but two queries have a document of grade 3."""
    values = np.linspace(0.0, 1.0, len(QUERIES))
    conventions = {"AP": "all count", "AP(rel=3)": "those without are left out"}
    report = {"AP(rel=3)": 0.5, "conventions": conventions}
    run = write_run(tmp_path / "run", values, report=report)
    header, *rows = (run / "per_query.tsv").read_text().splitlines()
    lines = [f"{header}\tAP(rel=3)"]
    lines += [f"{row}\t{'nan' if i < 2 else 0.5}" for i, row in enumerate(rows)]
    (run / "per_query.tsv").write_text("\n".join(lines) + "\n")
    text = card(run, "sentence-transformers", retriever.model)
    n = len(QUERIES)
    assert f"{n} test queries." in text and f" AP(rel=3) is of {n - 2} of them." in text
    assert "AP is of" not in text


def test_what_labels_are_stands_on_the_card():
    data = {"relevant_from": 2, "labels": {"scores": None, "divide_by": 5.0}}
    config = {
        "model": {"ranker": "R"},
        "data": {"init_args": data},
        "trainer": {"precision": "32-true"},
    }
    text = _training(config, {})
    assert "| relevant from | 2 |" in text and "| labels divided by | 5.0 |" in text
    assert "| labels |" not in text
    data["labels"] = {"scores": "taught"}
    assert "| labels | taught |" in _training(config, {})


@pytest.mark.parametrize(
    "plugins, is_said", [(None, True), ([], True), ([{"class_path": "P"}], False)]
)
def test_a_precision_that_a_plugin_may_have_said_is_left_out(plugins, is_said):
    trainer = {"precision": "32-true", "plugins": plugins}
    config = {"model": {"ranker": "R"}, "data": {}, "trainer": trainer}
    assert ("| precision | 32-true |" in _training(config, {})) == is_said


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
