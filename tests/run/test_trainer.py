"""The trainer for Python."""

import logging
import math
import os
import sys
import termios
from contextlib import suppress

from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger

from ltr.datamodules import FeatureDataModule
from ltr.losses import RankNetLoss
from ltr.run.progress_lines import RunBar
from ltr.run.trainer import RankerTrainer
from tests.world.features import write_letor
from tests.world.rankers import feature_ranker


def test_it_prints_and_writes_nothing_and_says_lines(here, capfd, caplog):
    """What a logger or a callback of the user does stays."""
    write_letor(here / "letor", n_features=5)
    module = feature_ranker(5, RankNetLoss())
    data = FeatureDataModule(str(here / "letor"), batch_size=4)
    with caplog.at_level(logging.INFO, "ltr"):
        trainer = RankerTrainer(max_epochs=2, accelerator="cpu")
        trainer.fit(module, data)
        tested = trainer.test(module, data)
    assert capfd.readouterr() == ("", "")
    assert {file.name for file in here.iterdir()} == {"letor"}
    lines = [record.getMessage() for record in caplog.records]
    (model,) = [
        line for line in lines if line.startswith("training FeatureRanker with RankNetLoss: ")
    ]
    start = lines.index(model) + 1
    heads = [line.partition(":")[0] for line in lines[start:]]
    epochs = [f"step {6 * epoch} of 12, epoch {epoch}" for epoch in (1, 2)]
    assert heads == ["before training, all of dev", *epochs, "test"]
    assert f"AP {tested[0]['test/AP']:.4f}" in lines[-1]


def bars(**options) -> list[type]:
    trainer = RankerTrainer(accelerator="cpu", **options)
    return [
        type(each)
        for each in trainer.callbacks
        if isinstance(each, (RichProgressBar, TQDMProgressBar))
    ]


def test_what_the_user_gives_stays(tmp_path, monkeypatch):
    assert bars() == [] and bars(enable_progress_bar=True) == [RunBar]
    assert bars(enable_progress_bar=True, callbacks=TQDMProgressBar()) == [TQDMProgressBar]
    assert bars(callbacks=TQDMProgressBar()) == [TQDMProgressBar]  # not on a terminal
    logger = CSVLogger(tmp_path)
    saves = ModelCheckpoint(tmp_path)
    trainer = RankerTrainer(accelerator="cpu", logger=logger, callbacks=[saves])
    assert trainer.loggers == [logger] and trainer.checkpoint_callbacks == [saves]
    assert RankerTrainer(accelerator="cpu").checkpoint_callbacks == []
    assert RankerTrainer(accelerator="cpu", enable_checkpointing=True).checkpoint_callbacks


def test_a_bar_of_lightning_is_shown_on_a_terminal(tmp_path, monkeypatch):
    """One with a size, which ``script`` and :mod:`pty` leave at 0 × 0: tqdm draws nothing there."""
    write_letor(tmp_path / "letor", n_features=5)
    data = FeatureDataModule(str(tmp_path / "letor"), batch_size=4)
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    with open(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        trainer = RankerTrainer(max_steps=1, accelerator="cpu", callbacks=TQDMProgressBar())
        trainer.fit(feature_ranker(5, RankNetLoss()), data)
    drawn = b""
    with suppress(OSError):  # a read gives a part; with the last writer gone, EIO is the end
        while part := os.read(ours, 1 << 16):
            drawn += part
    os.close(ours)
    assert b"Epoch 0: 100%" in drawn and b"1/1" in drawn


def test_barebones(monkeypatch):
    """Neither a bar nor a measurement before training, also on a terminal."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert bars(barebones=True) == [] and bars() == [RunBar]
    assert RankerTrainer(accelerator="cpu", barebones=True).num_sanity_val_steps == 0
    assert RankerTrainer(accelerator="cpu").num_sanity_val_steps == math.inf
    assert RankerTrainer(accelerator="cpu", num_sanity_val_steps=3).num_sanity_val_steps == 3
