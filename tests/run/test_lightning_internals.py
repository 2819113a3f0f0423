"""The private names of Lightning that a resume needs: there, and meaning what they mean to us."""

import inspect
import os
import signal
import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace
from unittest import mock

import torch
from lightning.fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from lightning.pytorch import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from torch.utils.data import DataLoader

from ltr.run import lightning_internals as internals
from ltr.run.checkpoints import Checkpoints
from ltr.run.counters import Moment, set_counters
from ltr.run.signals import CLUSTER_SIGNALS
from ltr.run.together import LONGEST_WAIT
from tests.run.plain import Plain
from tests.world.rankers import trainer as make_trainer


class Asks(Callback):
    """What each function says after each batch, and at the end of each epoch."""

    def __init__(self):
        self.after_batch = []
        self.after_epoch = []
        self.states = {}
        self.checkpoint = {}

    def state_dict(self):
        return {"seen": len(self.after_batch)}

    def on_train_batch_start(self, trainer, *_):
        internals.set_logged_step(trainer, trainer.global_step)

    def on_train_batch_end(self, trainer, *_):
        asked = (
            internals.validation_is_due,
            internals.epoch_ends_here,
            internals.fetched_last_batch,
            internals.epoch_has_begun,
            internals.epochs_are_done,
        )
        self.after_batch.append(tuple(each(trainer) for each in asked))

    def on_train_epoch_end(self, trainer, pl_module):
        asked = (internals.all_batches_trained, internals.may_stop)
        self.after_epoch.append(tuple(each(trainer) for each in asked))
        self.states = internals.callback_states(trainer)
        self.checkpoint = internals.dump_checkpoint(trainer)
        # It has the counters that are set.
        set_counters(self.checkpoint, Moment.EPOCH_END)


def test_each_says_what_it_means(tmp_path):
    asks = Asks()
    trainer = make_trainer(
        tmp_path, callbacks=[asks], max_epochs=2, min_epochs=2, val_check_interval=2
    )
    trainer.fit(Plain(), DataLoader(torch.ones(3, 1)), DataLoader(torch.ones(1, 1)))
    # Three batches an epoch, a validation after the second: due, ends, last, begun; the epochs
    # are counted at their ends.
    epoch = [(False, False), (True, False), (False, True)]
    assert [(due, ends) for due, ends, *_ in asks.after_batch] == epoch * 2
    assert [last for _, _, last, *_ in asks.after_batch] == [False, False, True] * 2
    assert all(begun for *_, begun, _ in asks.after_batch)
    assert not any(done for *_, done in asks.after_batch)
    assert internals.epochs_are_done(trainer)
    assert asks.after_epoch == [(True, False), (True, True)]
    (state,) = asks.states.values()
    assert state == {"seen": 6}
    assert asks.checkpoint["global_step"] == 6
    loops = asks.checkpoint["loops"]["fit_loop"]
    epochs = dict.fromkeys(("ready", "started", "processed", "completed"), 2)
    assert loops["epoch_progress"]["current"] == epochs
    assert loops["epoch_loop.state_dict"] == {"_batches_that_stepped": 6}


def test_each_takes_what_it_is_given():
    def names(function):
        return list(inspect.signature(function).parameters)

    assert names(_TrainingEpochLoop._should_check_val_fx) == ["self", "data_fetcher"]
    assert names(_TrainingEpochLoop._num_ready_batches_reached) == ["self"]
    assert names(_CheckpointConnector.dump_checkpoint) == ["self", "weights_only"]
    assert isinstance(_TrainingEpochLoop._is_training_done, property)
    assert isinstance(_FitLoop._can_stop_early, property)


def test_lightning_answers_no_signal_of_slurm(monkeypatch, tmp_path):
    """It would leave a checkpoint of its own, put the job into the queue again and train on."""
    job = {"SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "1", "SLURM_JOB_ID": "7"}
    job |= {"SLURM_JOB_NAME": "train", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    before = {known: signal.signal(known, signal.SIG_DFL) for known in CLUSTER_SIGNALS}
    try:
        trainer = make_trainer(tmp_path)
        assert internals.cluster_environment(trainer).auto_requeue
        Checkpoints().setup(trainer, Plain(), "fit")
        trainer._signal_connector.register_signal_handlers()
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)


def test_a_logger_of_tensorboard_goes_on(tmp_path, monkeypatch):
    """What its writer gets; the package need not be there."""
    writer = mock.Mock()
    tensorboard = SimpleNamespace(SummaryWriter=writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    monkeypatch.setattr("lightning.fabric.loggers.tensorboard._TENSORBOARD_AVAILABLE", True)
    own = {"purge_step": 3, "max_queue": 1}
    for given, version, expected in (
        ({}, "runs/seed=0", {"purge_step": 8}),
        ({"purge_step": None}, "runs/seed=0", {"purge_step": 8}),
        ({"version": "mine"} | own, "mine", own),
    ):
        logger = TensorBoardLogger(tmp_path, **given)
        internals.continue_tensorboard(logger, "runs/seed=0", 8)
        logger.log_metrics({"loss": 1.0}, step=8)
        folder = str(tmp_path / "lightning_logs" / version)
        assert writer.call_args.kwargs == {"log_dir": folder, **expected}
    logger = TensorBoardLogger(tmp_path)
    internals.continue_tensorboard(logger, "runs/seed=0", None)
    logger.log_metrics({"test": 1.0})
    assert writer.call_args.kwargs["purge_step"] is None, "a test forgets nothing"


def test_what_lightning_does_at_an_early_end_is_left_to_us(tmp_path):
    """It would begin a collective operation at SIGTERM and before each step, and kill processes."""
    assert callable(_SignalConnector._sigterm_notifier_fn)
    assert callable(_TrainingEpochLoop._broadcast_sigterm_tensor)
    trainer = make_trainer(tmp_path)
    failed = subprocess.Popen(["false"])
    observer = _ChildProcessObserver(main_pid=os.getpid(), child_processes=[failed])
    observer._termination_signal = signal.SIGCONT  # in place of SIGKILL
    observer._sleep_period = 0.1
    observer.start()
    internals.leave_endings_to_us(trainer)
    observer.join(5)
    assert not observer.is_alive()
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        trainer._signal_connector.register_signal_handlers()
        handler = signal.getsignal(signal.SIGTERM)
        assert [each("a number", None) for each in handler.signal_handlers] == [None]
        assert not trainer.received_sigterm
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_processes_that_lightning_has_started_are_known_by_rank(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(
        "lightning.pytorch.strategies.launchers.subprocess_script.subprocess.Popen",
        lambda command, env, cwd: started.append(env["LOCAL_RANK"]) or env["LOCAL_RANK"],
    )
    three = make_trainer(tmp_path, devices=3, strategy="ddp")
    three.strategy._configure_launcher()
    with mock.patch.dict(os.environ):  # Lightning writes the ranks into it
        three.strategy.launcher._call_children_scripts()
    assert internals.started_processes(three) == started == ["1", "2"]
    assert internals.started_processes(make_trainer(tmp_path)) == []


def test_gradients_are_copied_together_on_gpus_unless_the_configuration_says_how(
    tmp_path, monkeypatch
):
    together = {"gradient_as_bucket_view": True, "batched_grad_copy": True}
    own = DDPStrategy(gradient_as_bucket_view=False)
    for strategy, gpus, expected in (
        ("ddp", True, together),
        ("ddp", False, {}),
        (own, True, together | {"gradient_as_bucket_view": False}),
    ):
        monkeypatch.setattr(internals, "on_gpus", lambda _, gpus=gpus: gpus)
        trainer = make_trainer(tmp_path, strategy=strategy, devices=2)
        internals.copy_gradients_together(trainer)
        assert trainer.strategy._ddp_kwargs == expected
    monkeypatch.undo()
    alone = make_trainer(tmp_path)
    assert not internals.on_gpus(alone)
    internals.copy_gradients_together(alone)


def test_waiting_is_limited_unless_the_configuration_limits_it(tmp_path):
    for strategy, expected in (
        ("ddp", 600),
        (DDPStrategy(timeout=timedelta(seconds=5)), 5),
        (DDPStrategy(timeout=timedelta(minutes=30)), 1800),
        ("auto", None),
    ):
        devices = 1 if strategy == "auto" else 2
        trainer = make_trainer(tmp_path, strategy=strategy, devices=devices)
        internals.limit_waiting(trainer, LONGEST_WAIT)
        limit = internals.longest_wait(trainer)
        assert (limit and limit.total_seconds()) == expected
