"""What a run says while it trains and measures."""

import logging
from types import SimpleNamespace

import pytest
from lightning.pytorch.callbacks import RichProgressBar, Timer, TQDMProgressBar
from rich.progress import TaskID

from ltr.callbacks.loss_schedule import LossChange, LossSchedule
from ltr.losses import LambdaRankLoss, RankNetLoss
from ltr.run.progress_lines import (
    ProgressLines,
    ResultLines,
    RunBar,
    place_in_training,
    with_bar,
)
from tests.world.rankers import feature_ranker


class CountedLoss:
    """Of a GPU, which the host waits for."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.n_reads = 0

    def item(self) -> float:
        self.n_reads += 1
        return self.value


def test_the_loss_of_every_nth_step_is_read(monkeypatch):
    """Of the first one too, as a bar without a loss looks broken."""
    monkeypatch.setattr(RichProgressBar, "get_metrics", lambda *_: {"v_num": 1})
    module = feature_ranker(2, RankNetLoss())
    bar = RunBar()
    read = []
    for step in range(1, 8):
        loss = CountedLoss(step)
        module.last_step = SimpleNamespace(loss=loss)
        trainer = SimpleNamespace(training=True, global_step=step, log_every_n_steps=3)
        shown = bar.get_metrics(trainer, module)
        read.append((shown, loss.n_reads))
    assert [shown for shown, _ in read] == [{"loss": n} for n in (1, 1, 3, 3, 3, 6, 6)]
    assert [n for _, n in read] == [1, 0, 1, 0, 0, 1, 0]
    trainer.training = False
    assert bar.get_metrics(trainer, module) == {}


def test_on_a_cpu_lightning_shows_the_loss_of_each_step(monkeypatch):
    """It has been logged for the bar, as whatever a user's module logs for it."""
    logged = {"v_num": 0, "train/loss": 0.5, "val/nDCG@10": 0.25, "mine": 7.0}
    monkeypatch.setattr(RichProgressBar, "get_metrics", lambda *_: dict(logged))
    module = feature_ranker(2, RankNetLoss())
    module.last_step = SimpleNamespace(loss=CountedLoss(2.0))
    trainer = SimpleNamespace(training=True, global_step=1, log_every_n_steps=1)
    shown = RunBar().get_metrics(trainer, module)
    assert shown == {"loss": 0.5, "nDCG@10": 0.25, "mine": 7.0}


def trainer_at(step: int, total: float, **more) -> SimpleNamespace:
    return SimpleNamespace(
        global_step=step, estimated_stepping_batches=total, current_epoch=1, **more
    )


def test_a_place_in_training():
    assert place_in_training(trainer_at(1047, 12000)) == "step 1,047 of 12,000, epoch 2"
    assert place_in_training(trainer_at(3, float("inf"))) == "step 3, epoch 2"


def test_the_bar_says_step_epoch_speed_and_four_digits():
    bar = RunBar()
    trainer = trainer_at(
        0, 9, state=SimpleNamespace(fn="fit"), sanity_checking=False, training=True, max_epochs=3
    )
    bar._trainer = trainer  # as setup does
    trainer.progress_bar_callback = bar
    columns = bar.configure_columns(trainer)
    task = SimpleNamespace(speed=3.7123, description="step 2 of 9, epoch 1", id=TaskID(0))
    assert str(columns[-1].render(task)) == "3.71 batches/s"
    assert "{task.description}" in columns[0].text_format
    assert format(1 / 3, bar.theme.metrics_format) == "0.3333"
    assert format(1.0, bar.theme.metrics_format) == "1.000"
    for steps, words in ((float("inf"), "dev, before training"), (2, "some of dev, as a trial")):
        trainer.num_sanity_val_steps = steps
        assert bar.sanity_check_description == words


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_among_the_callbacks_is_the_bar_also_without_a_terminal(terminal, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    callbacks = [Timer(), TQDMProgressBar()]
    assert with_bar(callbacks, None) == (callbacks, True)
    others, has_bar = with_bar(callbacks[:1], None)
    assert others[0] is callbacks[0] and has_bar == terminal
    assert [type(each) for each in others[1:]] == [RunBar if terminal else ProgressLines]
    off, has_bar = with_bar(callbacks[:1], False)
    assert type(off[1]) is ProgressLines and not has_bar


def test_a_schedule_is_named_by_its_losses(caplog):
    module = feature_ranker(2, RankNetLoss())
    schedule = LossSchedule([LossChange(epoch=1, loss=LambdaRankLoss())])
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device="cpu"), precision="32-true")
    schedule.setup(trainer, module, "validate")
    with caplog.at_level(logging.INFO, "ltr"):
        ResultLines().on_fit_start(trainer, module)
    assert caplog.messages[-1].startswith("training FeatureRanker with RankNetLoss: ")


@pytest.mark.parametrize(
    ("metrics", "lines"),
    [
        (
            {"test/nDCG@10": 0.875, "test/AP": 0.8333333134651184, "val/AP": 0.1},
            ["test.clean: nDCG@10 0.8750, AP 0.8333"],
        ),
        (
            {"test/AP": 0.5, "test/medquad/AP": 0.75, "test/wiki/qa/AP": float("nan")},
            [
                "test.clean: AP 0.5000",
                "test.clean, medquad: AP 0.7500",
                "test.clean, wiki/qa: AP has no value",
            ],
        ),
    ],
)
def test_a_measured_split_is_a_line_for_each_source(metrics, lines, caplog, monkeypatch):
    monkeypatch.setattr(
        "ltr.run.progress_lines.data_of", lambda _: SimpleNamespace(tested_split="test.clean")
    )
    with caplog.at_level(logging.INFO, "ltr"):
        ResultLines().on_test_end(SimpleNamespace(callback_metrics=metrics), None)
    assert [record.getMessage() for record in caplog.records] == lines
