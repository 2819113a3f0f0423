"""What Lightning's bar shows of the loss."""

from types import SimpleNamespace

import torch
from lightning.pytorch.callbacks import RichProgressBar

from ltr.losses import RankNetLoss
from ltr.run.progress_lines import LossBar
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
    bar = LossBar()
    read = []
    for step in range(1, 8):
        loss = CountedLoss(step)
        module.last_step = SimpleNamespace(loss=loss)
        trainer = SimpleNamespace(training=True, global_step=step, log_every_n_steps=3)
        shown = bar.get_metrics(trainer, module)["train/loss"]
        read.append((shown, loss.n_reads))
    assert [shown for shown, _ in read] == ["1.000", "1.000"] + ["3.000"] * 3 + ["6.000"] * 2
    assert [n for _, n in read] == [1, 0, 1, 0, 0, 1, 0]
    trainer.training = False
    assert "train/loss" not in bar.get_metrics(trainer, module)


def test_on_a_cpu_lightning_shows_the_loss_of_each_step(monkeypatch):
    """It has been logged for the bar."""
    monkeypatch.setattr(RichProgressBar, "get_metrics", lambda *_: {"train/loss": "0.500"})
    module = feature_ranker(2, RankNetLoss())
    module.last_step = SimpleNamespace(loss=torch.tensor(2.0))
    trainer = SimpleNamespace(training=True, global_step=1, log_every_n_steps=1)
    assert LossBar().get_metrics(trainer, module) == {"train/loss": "0.500"}
