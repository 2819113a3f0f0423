"""The model card."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard import metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.lora import Lora, save_adapter
from ltr.models.encoder.text_encoder import TextEncoder, encoders_of
from ltr.use.card import _training, card
from ltr.use.export import export
from ltr.use.load import load
from tests.world.backbones import make_backbone
from tests.world.tested_runs import CONVENTION, QUERIES, edit_metrics, write_run


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


@pytest.mark.long
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


def head_of(text: str, folder: Path) -> dict:
    """The head of a card as the hub's own parser reads it."""
    (folder / "CARD.md").write_text(text)
    head: dict = metadata_load(folder / "CARD.md")
    return head


def changed_config(run: Path, **changes) -> None:
    """Other options of the data of a run, and of the run."""
    file = run / "config.yaml"
    config = yaml.safe_load(file.read_text())
    config["data"]["init_args"] |= changes.pop("data", {})
    file.write_text(yaml.safe_dump(config | changes))


def test_the_hub_reads_the_numbers_of_the_run(retriever, tmp_path):
    """Two measures, one of them of errors; each with its value in metrics.json, digit by digit, and
    with how it is counted.
    """
    values = np.linspace(0.1, 0.9, len(QUERIES)) ** 2
    swapped = np.linspace(0.0, 3.0, len(QUERIES))
    conventions = {"AP": CONVENTION, "swapped_pairs": "two labels"}
    mean = float(np.float32(np.round(swapped[2:], 6).mean()))
    report = {"swapped_pairs": mean, "conventions": conventions}
    report["lower_is_better"] = ["swapped_pairs"]
    run = write_run(tmp_path / "runs/mine/seed=0", values, report=report)
    header, *rows = (run / "per_query.tsv").read_text().splitlines()
    lines = [f"{header}\tswapped_pairs"]
    for number, (row, value) in enumerate(zip(rows, swapped, strict=True)):
        lines.append(f"{row}\t{'nan' if number < 2 else round(value, 6)}")
    (run / "per_query.tsv").write_text("\n".join(lines) + "\n")
    changed_config(run, data={"path": "datasets:org/data:small"})
    text = card(run, "sentence-transformers", retriever.model, license="mit", language=["en", "de"])
    (tmp_path / "README.md").write_text(text)

    data = ModelCard.load(tmp_path / "README.md").data
    assert (data.license, data.language, data.datasets) == ("mit", ["en", "de"], ["org/data"])
    assert data.library_name == "sentence-transformers"
    assert data.pipeline_tag == "sentence-similarity"
    assert data.tags == ["dual-encoder", "learning-to-rank", "ltr"]
    assert data.model_name == "mine"
    stored = json.loads((run / "metrics.json").read_text())["test"]
    name, results = model_index_to_eval_results(head_of(text, tmp_path)["model-index"])
    assert name == "mine" and results == data.eval_results
    assert {each.metric_name: each.metric_value for each in results} == {
        "AP": stored["AP"],
        "swapped_pairs": stored["swapped_pairs"],
    }
    for each in results:
        assert (each.dataset_type, each.dataset_config) == ("org/data", "small")
        assert each.dataset_split == "test"
        assert each.dataset_args == {"candidates": "bm25", "depth": 50}
        assert each.metric_args["convention"] == stored["conventions"][each.metric_name]
    ap, errors = (each.metric_args for each in results)
    assert ap["queries"] == len(QUERIES) and "lower_is_better" not in ap
    assert errors["queries"] == len(QUERIES) - 2 and errors["lower_is_better"]


def test_what_nobody_says_is_left_out_of_the_head(retriever, tmp_path):
    """The backbone lies in a folder, the data too; nobody names a licence, and nothing was measured."""
    run = write_run(tmp_path / "run", np.full(len(QUERIES), 0.5))
    (run / "per_query.tsv").unlink()
    head = head_of(card(run, "sentence-transformers", retriever.model, files=["a.json"]), tmp_path)
    assert set(head) == {"library_name", "pipeline_tag", "tags", "ltr_files"}


def test_a_measure_without_values_is_none_of_the_hub(retriever, tmp_path):
    conventions = {"AP": "all count", "AP(rel=4)": "those without are left out"}
    report = {"AP(rel=4)": None, "conventions": conventions}
    run = write_run(tmp_path / "run", np.full(len(QUERIES), 0.5), report=report)
    header, *rows = (run / "per_query.tsv").read_text().splitlines()
    lines = [f"{header}\tAP(rel=4)", *(f"{row}\tnan" for row in rows)]
    (run / "per_query.tsv").write_text("\n".join(lines) + "\n")
    head = head_of(card(run, "sentence-transformers", retriever.model), tmp_path)
    (result,) = head["model-index"][0]["results"]
    assert [metric["name"] for metric in result["metrics"]] == ["AP"]
    assert result["dataset"]["name"] == "letor" and result["dataset"]["type"] == "unknown"


def test_two_sources_are_two_results_of_the_hub(retriever, tmp_path):
    """Their means are 0.25 and 0.75; the hub's parser must not take one for the other."""
    values = np.repeat([0.25, 0.75], len(QUERIES) // 2)
    report = {"sources": ["one", "two"]}
    run = write_run(tmp_path / "run", values, report=report)
    header, *rows = (run / "per_query.tsv").read_text().splitlines()
    sources = np.repeat(["one", "two"], len(QUERIES) // 2)
    lines = [f"{source}/{row}" for source, row in zip(sources, rows, strict=True)]
    (run / "per_query.tsv").write_text("\n".join([header, *lines]) + "\n")
    changed_config(run, data={"path": [{"path": "data/one"}, {"path": "data/two"}]})
    head = head_of(card(run, "sentence-transformers", retriever.model), tmp_path)
    _, results = model_index_to_eval_results(head["model-index"])
    found = {each.dataset_name: each.metric_value for each in results}
    assert found == {"one": 0.25, "two": 0.75}


def test_a_model_of_the_hub_is_the_base_where_training_began_with_it(retriever, tmp_path):
    run = write_run(tmp_path / "run", np.full(len(QUERIES), 0.5))
    model = retriever.model
    for tower in model.towers:
        tower.encoder.model.name_or_path = "org/encoder"
    assert head_of(card(run, "onnx", model), tmp_path)["base_model"] == "org/encoder"
    changed_config(run, init_from="runs/other/seed=0")
    assert "base_model" not in head_of(card(run, "onnx", model), tmp_path)


def test_a_card_of_the_hub_loads_the_model_from_there(retriever):
    text = card(Path("a"), "sentence-transformers", retriever.model, hub_id="user/name")
    assert 'SentenceTransformer("user/name")' in text and "FOLDER" not in text
    text = card(Path("a"), "onnx", retriever.model, hub_id="user/name")
    assert 'embed(["a question"], "FOLDER"' in text
    assert "`hf download user/name --local-dir FOLDER`" in text


def test_the_numbers_on_a_card_are_those_of_its_weights(retriever, tmp_path):
    """A run whose best weights were tested; then its last ones."""
    run = write_run(tmp_path / "run", np.full(len(QUERIES), 0.5))
    (run / "checkpoints").mkdir()
    for name in ("best.ckpt", "last.ckpt"):
        (run / "checkpoints" / name).touch()
    best, last = (run / "checkpoints/best.ckpt", run / "checkpoints/last.ckpt")

    def has_numbers(source: Path) -> bool:
        text = card(source, "sentence-transformers", retriever.model)
        untested = "These weights were not tested." in text
        assert ("model-index" in head_of(text, tmp_path)) == ("| AP | 0.5" in text) != untested
        return not untested

    assert [has_numbers(source) for source in (run, best, last)] == [True, True, False]
    edit_metrics(run, test={"checkpoint": str(last)})
    assert [has_numbers(source) for source in (run, best, last)] == [False, False, True]
    best.unlink()
    assert has_numbers(run), "a run without best weights is exported with its last ones"


@pytest.mark.parametrize(
    "tested, name, kind",
    [("datasets:org/other", "org/other", "org/other"), ("o/x", "x", "unknown")],
)
def test_the_hub_reads_on_which_data_a_run_was_tested(retriever, tmp_path, tested, name, kind):
    run = write_run(tmp_path / "run", np.full(len(QUERIES), 0.5), report={"path": tested})
    changed_config(run, data={"path": "datasets:org/data"})
    head = head_of(card(run, "sentence-transformers", retriever.model), tmp_path)
    (result,) = head["model-index"][0]["results"]
    assert (result["dataset"]["name"], result["dataset"]["type"]) == (name, kind)
    assert head["datasets"] == ["org/data"], "it was trained on that"


@pytest.mark.parametrize(
    "name, said",
    [
        ("/home/me/clients/acme", "acme"),
        ("../acme", "acme"),
        ("data/letor", "data/letor"),
        ("datasets:org/data", "datasets:org/data"),
        ("org/encoder", "org/encoder"),
        ("package:weights", "package:weights"),
    ],
)
def test_a_card_tells_no_folders_of_this_machine(name, said):
    config = {
        "model": {"ranker": {"class_path": "R", "init_args": {"backbone": name}}},
        "data": {"init_args": {"path": [{"path": name}]}},
        "trainer": {"precision": "32-true"},
    }
    text = _training(config, {})
    assert f"| data | {said} |" in text and f"| start | {said} |" in text
    text = _training(config | {"init_from": name}, {})
    assert f"| start | {said} |" in text


@pytest.mark.parametrize("kind", [DualEncoder, PairWiseBertRanker])
def test_adapters_of_a_model_of_a_package_say_which_one(kind, backbone, tmp_path, monkeypatch):
    pytest.importorskip("peft")
    shutil.copytree(backbone, tmp_path / "tiny_base")
    (tmp_path / "tiny_base/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    model = kind("package:tiny_base", max_length=20, encoder=TextEncoder.Options(lora=Lora(r=2)))
    text = card(Path("run"), "adapter", model)
    assert "in the Python package tiny_base, which must be installed\n" in text
    assert '.from_pretrained("BASE", dtype="float32")' in text and str(tmp_path) not in text
    assert "base_model" not in head_of(text, tmp_path)
    save_adapter(tmp_path, encoders_of(model)[0].model)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "package:tiny_base"
