"""Configuration files and arguments, before the parser sees them."""

import json
from pathlib import Path

import pytest

from ltr.checkpoint import FORMAT
from ltr.cli.configuration import _with_files_that_hold_options, full_command_line
from ltr.cli.run_paths import _data_options, data_of_run, data_path_option
from ltr.data.collection import open_collection
from ltr.data.files import seen_from
from ltr.errors import InputError
from ltr.mining.mined_negatives import NEGATIVES
from ltr.run.run_folder import RunFolder
from tests.world.commands import run_ltr


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_a_layer_that_holds_nothing_is_left_out(tmp_path, text):
    (tmp_path / "layer.yaml").write_text(text)
    (tmp_path / "one.yaml").write_text("model: {lr: 0.1}\n")
    one = str(tmp_path / "one.yaml")
    layer = str(tmp_path / "layer.yaml")
    words = ["--config", one, f"--config={layer}", "--config", layer, "--x", "1"]
    assert list(_with_files_that_hold_options(words)) == ["--config", one, "--x", "1"]


BROKEN = [
    (b"model:\n  lr: 0.1\n  lr: 0.2\n", ":3: a key must be given once, got 'lr' again"),
    ("model: {lr: 0.1}".encode("utf-16"), ": a configuration must be UTF-8, got byte 0xff"),
    (b"# caf\xe9\nmodel: {}\n", ": a configuration must be UTF-8, got byte 0xe9"),
    (b"just words\n", ": a configuration must be options with their values, got 'just words'"),
    (b"model: {lr: [0.1\n", ":2: a configuration must be YAML"),
]


@pytest.mark.parametrize(("content", "message"), BROKEN)
def test_a_broken_file_is_named(tmp_path, content, message):
    (tmp_path / "one.yaml").write_bytes(content)
    with pytest.raises(InputError) as error:
        list(_with_files_that_hold_options(["--config", str(tmp_path / "one.yaml")]))
    assert f"one.yaml{message}" in str(error.value)


@pytest.mark.parametrize(
    ("text", "key"), [("modle: {}", "modle"), ("trainer: {max_epoch: {}}", "trainer.max_epoch")]
)
def test_a_key_that_is_no_option_and_holds_nothing(text, key, tmp_path, capsys):
    (tmp_path / "one.yaml").write_text(text)
    model = "--model.ranker FeatureRanker --model.ranker.n_features 3 --model.loss RankNetLoss"
    data = "--data FeatureDataModule --data.path x"
    assert run_ltr(f"fit {data} {model} --config {tmp_path / 'one.yaml'}") == 2
    assert f"'{key}' is no option" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["data:", "data: x", "data: {init_args: [1]}", "{}"])
def test_data_of_another_form_is_left_to_the_parser(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    assert _data_options(tmp_path / "config.yaml") == {}


def write_metrics(run, directory):
    """They tell where the run was started."""
    metrics = {"format": FORMAT, "directory": str(directory)}
    (run / "metrics.json").write_text(json.dumps(metrics))


SOURCES = [
    {"path": "mine", "weight": 2, "negatives": {"mine": 3, "bm25": 1}},
    {"path": "gone", "negatives": "mine"},
]


@pytest.mark.parametrize("path", ["mine", SOURCES], ids=["one source", "several"])
def test_data_of_a_run_that_was_started_elsewhere(path, tmp_path, monkeypatch):
    """The path counts from where the run was started; here and there are told by metrics.json. What
    asks for the one collection of the run gets the sources, and no text that holds them.
    """
    there = tmp_path / "there"
    run = there / "run"
    run.mkdir(parents=True)
    (there / "mine").mkdir()
    (there / "bm25").mkdir()  # which as negatives are those of BM25
    config = {"data": {"class_path": "X", "init_args": {"path": path}}}
    (run / "config.yaml").write_text(json.dumps(config))  # which is YAML, too
    write_metrics(run, there)
    monkeypatch.chdir(tmp_path)
    mine = str(there / "mine")
    several = [
        {"path": mine, "weight": 2, "negatives": {mine: 3, "bm25": 1}},
        {"path": "gone", "negatives": mine},
    ]
    assert data_of_run(RunFolder(run)) == (mine if path == "mine" else several)
    option = mine if path == "mine" else json.dumps(several)
    assert data_path_option(RunFolder(run)) == ["--data.path", option]
    monkeypatch.chdir(there)
    assert data_of_run(RunFolder(run)) == path and data_path_option(RunFolder(run)) == []


def run_started_in(folder, **options):
    """A run in ``folder/run`` whose configuration has these options; its training has begun."""
    (folder / "run").mkdir(parents=True)
    for name in ("neg", "scores", "base", "bb", "candidates"):
        (folder / name).mkdir()
    model = {"ranker": {"class_path": "DualEncoder", "init_args": {"backbone": "org/model"}}}
    data = {"class_path": "TripletDataModule", "init_args": {"path": "c"}}
    model["ranker"]["init_args"] |= options.pop("ranker", {})
    data["init_args"] |= options.pop("data", {})
    config = {"model": model, "data": data} | options
    (folder / "run/config.yaml").write_text(json.dumps(config))
    write_metrics(folder / "run", folder)
    return str(folder / "run")


@pytest.mark.parametrize(
    ("command", "option", "value", "options"),
    [
        ("fit", "data.negatives", "neg", {"data": {"negatives": "neg"}}),
        ("fit", "data.negatives", "neg", {"data": {"negatives": {"bm25": 1, "neg": 2}}}),
        ("fit", "data.labels.scores", "scores", {"data": {"labels": {"scores": "scores"}}}),
        ("fit", "init_from", "base", {"init_from": "base"}),
        ("fit", "model.ranker.backbone", "bb", {"ranker": {"backbone": "bb"}}),
        ("test", "model.ranker.doc_backbone", "bb", {"ranker": {"doc_backbone": "bb"}}),
        (
            "fit",
            "trainer.callbacks.judge",
            "base",
            {"trainer": {"callbacks": [{"class_path": "X", "init_args": {"judge": "base"}}]}},
        ),
    ],
)
def test_a_path_from_where_the_run_was_started_is_not_looked_for_here(
    tmp_path, monkeypatch, command, option, value, options
):
    """Also not where something of the same name lies here."""
    run = run_started_in(tmp_path / "start", **options)
    words = [command, run, "--ckpt_path", "x.ckpt"]
    monkeypatch.chdir(tmp_path / "start")
    assert full_command_line(words)
    (tmp_path / "here" / value).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError) as error:
        full_command_line(words)
    where = f"a path from where the run was started; run the command there: cd {tmp_path / 'start'}"
    assert str(error.value) == f"{run}: {option} is {value!r}, {where}"
    assert full_command_line([*words, f"--{option}", "x"]), "said anew"
    (tmp_path / "here" / value).rmdir()
    (tmp_path / "here" / value).symlink_to(tmp_path / "start" / value)
    assert full_command_line(words), "it is the same folder"
    (tmp_path / "here" / value).unlink()
    (tmp_path / "start" / value).rmdir()
    assert full_command_line(words), "it is gone: what reads it says so"


def test_what_a_command_does_not_read_may_be_a_path_from_elsewhere(tmp_path, monkeypatch):
    """``candidates`` is a source of negatives, whatever lies there; only a run that begins reads
    init_from.
    """
    options = {"data": {"negatives": "neg", "labels": {"scores": "scores"}}, "init_from": "base"}
    run = run_started_in(tmp_path / "a", **options)
    other = run_started_in(tmp_path / "b", data={"negatives": "candidates"}, init_from="base")
    (tmp_path / "b/run/checkpoints").mkdir()
    (tmp_path / "b/run/checkpoints/last.ckpt").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert full_command_line(["test", run, "--ckpt_path", "x.ckpt"])
    assert full_command_line(["fit", other])


def test_an_error_about_a_relative_path_says_from_where_it_counts(here):
    assert seen_from("runs/neg") == f" (seen from {here})"
    assert seen_from(here / "runs/neg") == ""
    with pytest.raises(InputError, match=rf"there is no manifest.json \(seen from {here}\)$"):
        NEGATIVES.manifest(Path("runs/neg"))
    with pytest.raises(InputError, match=rf"data folder or file \(seen from {here}\)"):
        open_collection("nowhere")
