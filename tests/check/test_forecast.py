"""Forecasts: how often a training does what, what a run keeps, and the line at its end."""

import json
from types import MethodType, SimpleNamespace

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import (
    DeviceStatsMonitor,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    TQDMProgressBar,
)

from ltr.callbacks import HardNegativeMining
from ltr.check import kept_forecast
from ltr.check.forecast import Forecast, Schedule, Work, forecast_section, schedule_of, works_of
from ltr.check.kept_forecast import difference_line
from ltr.cli.check import _check_fits_data, _LeakageOptions, _sampling_trainer, check, run_check
from ltr.cli.parsed import ParsedCommand
from ltr.datamodules import FeatureDataModule, LabelDataModule
from ltr.errors import InputError
from tests.cli.conftest import config  # noqa: F401
from tests.world.collections import write_collection, write_jsonl
from tests.world.commands import run_ltr
from tests.world.configurations import write_config
from tests.world.runs import metrics


def trainer(**changes):
    options = {
        "num_training_batches": 10,
        "accumulate_grad_batches": 1,
        "estimated_stepping_batches": 40,
        "val_check_interval": 1.0,
        "check_val_every_n_epoch": 1,
    }
    return SimpleNamespace(**options | changes)


# What differs, and then the validations while training.
VALIDATIONS = [
    ({}, 4),
    ({"check_val_every_n_epoch": 2}, 2),
    ({"val_check_interval": 0.5}, 8),
    ({"val_check_interval": 4}, 8),  # after batches 4 and 8 of each epoch
    ({"val_check_interval": 15, "check_val_every_n_epoch": None}, 2),
    ({"estimated_stepping_batches": 25}, 2),
    ({"estimated_stepping_batches": 25, "val_check_interval": 0.5}, 5),
    ({"accumulate_grad_batches": 2, "estimated_stepping_batches": 20}, 4),
]


def scheduled(trainer, validates_first=False, mining=None, mines_first=False):
    return schedule_of(
        trainer, validates_first=validates_first, mining=mining, mines_first=mines_first
    )


@pytest.mark.parametrize(("changes", "expected"), VALIDATIONS)
def test_validations_by_hand(changes, expected):
    assert scheduled(trainer(**changes)).validations == expected
    assert scheduled(trainer(**changes), validates_first=True).validations == expected + 1


@pytest.mark.parametrize(
    ("steps", "batches", "validations"),
    [(30, 100, 10), (7, 24, 2), (float("inf"), 10, 1)],
)
def test_an_epochs_last_step_may_have_fewer_batches(steps, batches, validations):
    """Epochs of ten batches, four a step: three steps of 4, 4 and 2 batches. Ten epochs are 100
    batches; seven steps are two epochs and 4 batches.
    """
    of_four = trainer(accumulate_grad_batches=4, estimated_stepping_batches=steps)
    schedule = scheduled(of_four, mining=HardNegativeMining(every_n_epochs=1), mines_first=True)
    assert (schedule.batches, schedule.validations) == (batches, validations)
    assert schedule.batches_per_step == batches / schedule.steps
    assert schedule.refreshes == -(-batches // 10)  # before each epoch


@pytest.mark.parametrize(
    "callback",
    [
        ModelCheckpoint(),
        OnExceptionCheckpoint("kept"),
        EarlyStopping("val/nDCG@10"),
        DeviceStatsMonitor(),
        LearningRateMonitor(),
        TQDMProgressBar(),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_a_sample_has_no_callbacks_that_it_can_not_have(tmp_path, callback):
    """Without checkpoints, logger, bar and validation these would end the check."""
    command = SimpleNamespace(
        callbacks=lambda: [callback],
        made=SimpleNamespace(trainer={}),
        instantiate_trainer=lambda **options: Trainer(accelerator="cpu", **options),
    )
    command.trainer_without_outputs = MethodType(ParsedCommand.trainer_without_outputs, command)
    sampling, sample = _sampling_trainer(command, tmp_path)
    assert callback not in sampling.callbacks
    assert sample in sampling.callbacks


@pytest.mark.parametrize("second", [["--config", "b.yaml"], ["--config=b.yaml"]])
def test_a_second_configuration_is_refused(second):
    """It would take the place of the first one."""
    with pytest.raises(InputError, match="takes one --config, got several"):
        run_check(["check", "--config", "a.yaml", *second])


def test_refreshes_by_hand():
    """Four epochs of ten steps: before the first, and before each of the three others; or after
    steps 15 and 30.
    """
    each = HardNegativeMining(every_n_epochs=1)
    steps = HardNegativeMining(every_n_steps=15)
    once = HardNegativeMining(every_n_epochs=None)
    for mining, mines_first, expected in ((each, True, 4), (steps, False, 2), (once, True, 1)):
        found = scheduled(trainer(), mining=mining, mines_first=mines_first)
        assert found.refreshes == expected


def test_a_training_without_end_is_forecast_for_an_epoch():
    endless = trainer(estimated_stepping_batches=float("inf"))
    schedule = scheduled(endless)
    assert (schedule.steps, schedule.batches, schedule.has_end) == (10, 10, False)
    section = forecast_section(Forecast([Work("step", 10, 0.5)], disk=2_000_000), schedule)
    assert section.entries["seconds"] == 5.0
    of_an_epoch = "the training has no last step: this is one epoch of it"
    assert section.lines == [of_an_epoch, "disk 2 MB"]


def test_seconds_by_hand():
    """10 × 3 s + 2 × 15 s = 60 s."""
    forecast = Forecast([Work("step", 10, 3.0), Work("validation", 2, 15.0)])
    section = forecast_section(forecast, Schedule(10, 10, True, False, 2, 0))
    assert forecast.seconds == section.entries["seconds"] == 60
    assert section.tables[0].rows[-1] == ["all", "", "", "1 min 00 s"]


def test_the_works_are_those_whose_seconds_are_known_as_often_as_the_schedule_has_them():
    """A training that never validates writes one checkpoint."""
    schedule = Schedule(10, 10, has_end=True, validates_first=False, choices=0, refreshes=4)
    seconds = {"step": 0.5, "refresh of negatives": 3.0, "checkpoint": 1.0}
    works = works_of(schedule, seconds)
    assert works == [
        Work("step", 10, 0.5),
        Work("refresh of negatives", 4, 3.0),
        Work("checkpoint", 1, 1.0),
    ]
    assert [work.total_seconds for work in works] == [5.0, 12.0, 1.0]


def test_no_checkpoint_is_written_of_the_weights_that_a_training_starts_from():
    """Four epochs: five validations, and a checkpoint after the four that come while training."""
    schedule = scheduled(trainer(), validates_first=True)
    works = works_of(schedule, {"validation": 2.0, "checkpoint": 1.0})
    assert works == [Work("validation", 5, 2.0), Work("checkpoint", 4, 1.0)]


def test_the_difference_of_a_run():
    works = {"step": 80.0, "validation": 20.0}
    forecast = {"seconds": 100.0, "works": works}
    took = {"seconds": 110.0, "validations": 20.0, "refreshes": 0.0}
    results = {"forecast": forecast, "took": took}
    assert difference_line(results) == "forecast 1 min 40 s, took 1 min 50 s (+10 %)"
    results = {
        "forecast": {"seconds": 100.0, "works": {"step": 100.0}},
        "took": {"seconds": 200.0, "validations": 110.0, "refreshes": 0.0},
    }
    said = "forecast 1 min 40 s, took 1 min 30 s without validations (-10 %)"
    assert difference_line(results) == said
    results["took"] = {"seconds": 200.0, "validations": 80.0, "refreshes": 30.0}
    said = "forecast 1 min 40 s, took 1 min 30 s without validations and refreshes (-10 %)"
    assert difference_line(results) == said
    assert difference_line({"took": {"seconds": 1.0}}) is None


def test_a_configuration_is_checked_and_nothing_is_left(config, capsys, tmp_path):
    """All sections; 8 steps an epoch, 2 epochs; a validation before each and after the last."""
    before = sorted(tmp_path.rglob("*"))
    file = tmp_path / "out.json"
    words = ["--data.loading.num_workers", "0", "--json", str(file)]
    assert run_ltr(f"check --config {config}", *words) == 0
    sections = {section["title"]: section for section in json.loads(file.read_text())["sections"]}
    titles = ["Judgements", "What will be cut", "What dev and test can show", "Forecast"]
    assert [title for title in sections if title in titles] == titles
    entries = sections["Forecast"]["entries"]
    assert (entries["steps"], entries["validation"]["times"]) == (16, 3)
    assert entries["seconds"] > 0 and entries["memory"] > 1e7 and entries["disk"] > 1e4
    assert sorted(tmp_path.rglob("*")) == sorted([*before, file])


@pytest.fixture
def forecast_of_six(monkeypatch):
    """A run of 16 steps makes a forecast after 1 + 5 of them; one of the project makes none of so
    few.
    """
    for name, value in {"LEAST_BATCHES": 16, "WARM_UP": 1, "COUNTED": 5}.items():
        monkeypatch.setattr(kept_forecast, name, value)


@pytest.mark.usefixtures("forecast_of_six")
def test_a_run_keeps_a_forecast_and_says_the_difference(config, capsys):
    assert run_ltr(f"fit --config {config}") == 0
    said = capsys.readouterr().out
    results = metrics(config.parent / "run")
    assert results["forecast"]["after_batches"] == 6
    works = results["forecast"]["works"]
    assert set(works) == {"step", "validation"}
    assert results["forecast"]["seconds"] == pytest.approx(sum(works.values()), abs=0.01)
    assert 0 < results["took"]["validations"] < results["took"]["seconds"]
    assert results["took"]["disk"] > 1e4
    assert "in all (step 16 times: " in said and ", took " in said


@pytest.mark.usefixtures("forecast_of_six")
@pytest.mark.parametrize("batches", [0, 2])
def test_validations_that_were_not_timed_are_left_out(config, capsys, batches):
    """A sanity check of two batches is not the time of a validation."""
    assert run_ltr(f"fit --config {config} --trainer.num_sanity_val_steps {batches}") == 0
    said = capsys.readouterr().out
    assert set(metrics(config.parent / "run")["forecast"]["works"]) == {"step"}
    assert "without 2 validations, of which none was timed yet" in said
    assert " without validations (" in said


def test_a_fold_has_no_clean_split(tmp_path, backbone, collection_folder, capsys):
    """In a fold, questions of train and dev stand in the place of test."""
    fold = {"data.init_args.evaluation.fold": {"number": 1, "of": 3}}
    config = write_config(tmp_path, backbone, collection_folder, **fold)
    assert run_ltr(f"check --config {config} --write") == 2
    assert "--write makes a clean split of test, and in a fold" in capsys.readouterr().err
    assert not (collection_folder / "qrels/test.clean.tsv").exists()


NO_EFFECT = _LeakageOptions([], 0.6, False)
OTHER_DATA = _LeakageOptions(["a"], 0.6, False)
WRITTEN = _LeakageOptions([], 0.6, True)


@pytest.mark.parametrize(
    ("kind", "run", "leakage_options", "message"),
    [
        (FeatureDataModule, "a.run", NO_EFFECT, "--run is for collections of texts"),
        (FeatureDataModule, None, OTHER_DATA, "--trained_on is for collections"),
        (LabelDataModule, None, OTHER_DATA, "those of labelled texts are not"),
        (LabelDataModule, None, WRITTEN, "those of labelled texts are not"),
    ],
)
def test_what_has_no_effect_on_the_data_is_refused(kind, run, leakage_options, message):
    data = object.__new__(kind)
    _check_fits_data(data, None, NO_EFFECT)
    with pytest.raises(InputError, match=message):
        _check_fits_data(data, run, leakage_options)


def test_the_severe_lines_are_said_once_by_a_fit(tmp_path, backbone, capsys):
    """Pairs of up to 21 tokens are cut to 8, and a query of test has the text of one of train."""
    data = write_collection(tmp_path / "data", n_queries=8)
    queries = [json.loads(line) for line in (data / "queries.jsonl").read_text().splitlines()]
    text_of = {query["_id"]: query["text"] for query in queries}
    text_of["test-q3"] = text_of["train-q0"]
    write_jsonl(data / "queries.jsonl", [{"_id": i, "text": text_of[i]} for i in text_of])
    changes = {"model.ranker.init_args.max_length": 8, "trainer.max_epochs": 1}
    assert run_ltr(f"fit --config {write_config(tmp_path, backbone, data, **changes)}") == 0
    told = capsys.readouterr()
    lines = (told.out + told.err).splitlines()
    (line,) = [line for line in lines if "are cut by max_length" in line]
    assert "of the documents of train are cut by max_length 8" in line
    (line,) = [line for line in lines if "queries of test" in line]
    assert " of 8 queries of test (" in line


def test_a_configuration_and_a_backbone_are_not_both_taken(config, capsys):
    assert run_ltr(f"check --config {config} --backbone x") == 2
    assert "leave out --backbone" in capsys.readouterr().err
    assert run_ltr(f"check {config.parent / 'nowhere'}") == 2
    assert "must be a run folder, but there is no" in capsys.readouterr().err


def test_options_of_a_configuration_hold(config, capsys, monkeypatch, tmp_path):
    """As for every other command: other data, and another length."""
    told = []
    monkeypatch.setattr(
        "ltr.cli.check._experiment_sections", lambda *words: told.append(words) or []
    )
    options = [
        "--data.path",
        "a",
        "--model.ranker.init_args.max_length=9",
        "--data.batch_size",
        "2",
    ]
    assert run_ltr(f"check --config {config} --threshold 0.7", *options) == 0
    ((_, file, configured, _, leakage_options),) = told
    assert (file, configured) == (str(config), options) and leakage_options.threshold == 0.7
    assert run_ltr(f"check --config {config} --data b --model.lr 0.1") == 0
    assert told[1][2] == ["--model.lr", "0.1", "--data.path", "b"]
    capsys.readouterr()
    assert run_ltr("check --data.path a") == 2
    assert "--data.path is an option of a configuration, and none" in capsys.readouterr().err
    assert run_ltr(f"check --config {config} --data a --data.path b") == 2
    assert "the data is named twice" in capsys.readouterr().err


@pytest.mark.parametrize("data", [None, "elsewhere", "runs/a"])
def test_a_run_is_checked_whatever_data_says(monkeypatch, data):
    """Also where ``--data`` has the name of the run folder."""
    monkeypatch.setattr("ltr.cli.check.open_collection", lambda path: pytest.fail("no run"))
    asked = []
    monkeypatch.setattr(
        "ltr.cli.check._experiment_sections", lambda *words: asked.append(words) or []
    )
    check("runs/a", data=data)
    configured = [] if data is None else ["--data.path", data]
    assert [(*words[:2], list(words[2])) for words in asked] == [("runs/a", None, configured)]
