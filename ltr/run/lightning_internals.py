"""What ltr.run needs of Lightning and Lightning does not publish: all such attributes and functions.

The keys in a checkpoint are in :mod:`ltr.run.counters`.

``tests/run/test_lightning_internals.py`` checks that each is there and takes what it is given.
"""

import inspect
import subprocess
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment
from lightning.fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from lightning.pytorch.trainer.call import _call_callbacks_state_dict
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.trainer.states import RunningStage
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


def cluster_environment(trainer: Trainer) -> ClusterEnvironment:
    """What a trainer knows of the launcher of its processes."""
    return trainer._accelerator_connector.cluster_environment


def keep_from_requeues(trainer: Trainer) -> None:
    """In a job of SLURM Lightning would answer SIGUSR1 by a checkpoint of its own, and put the job
    into the queue again. Before a trainer runs, keep it from that.
    """
    environment = cluster_environment(trainer)
    if isinstance(environment, SLURMEnvironment):
        environment.auto_requeue = False


def average_without_rounding(trainer: Trainer) -> None:
    """Where the weights of a run are averaged, let the average of equal numbers be that number. A
    moving average would round it to another one: weights that stay as they are would drift.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # Lightning sets it undeclared
        average = callback._average_model if isinstance(callback, WeightAveraging) else None
        if average is not None and average.avg_fn is not None:
            average.avg_fn = partial(_average, average.avg_fn)


def _average(
    average: Callable[[Tensor, Tensor, Tensor], Tensor],
    averaged: Tensor,
    weights: Tensor,
    count: Tensor,
) -> Tensor:
    rounded = average(averaged, weights, count).to(weights.dtype)
    return torch.where(averaged == weights, weights, rounded)  # equal numbers stay as they are


def limit_waiting(trainer: Trainer, longest: timedelta) -> None:
    """Before the processes meet, limit how long one waits for another in a collective operation,
    where the configuration does not: Lightning's own limit is half an hour.
    """
    strategy = trainer.strategy
    # The very object: a configuration may name half an hour, too.
    if isinstance(strategy, DDPStrategy) and strategy._timeout is default_pg_timeout:
        strategy._timeout = longest


def copy_gradients_together(trainer: Trainer) -> None:
    """Before the processes meet, let those on GPUs copy gradients to what they send together, and
    keep them there, where the configuration does not say how. By itself
    ``DistributedDataParallel`` launches two kernels for each weight, and keeps each gradient twice.

    Not on a CPU, where it gains nothing: the sums would be rounded otherwise.
    """
    strategy = trainer.strategy
    if not (isinstance(strategy, DDPStrategy) and on_gpus(trainer)):
        return
    known = inspect.signature(DistributedDataParallel).parameters
    for name in ("gradient_as_bucket_view", "batched_grad_copy"):
        if name in known:  # the second one since torch 2.13
            strategy._ddp_kwargs.setdefault(name, True)


def on_gpus(trainer: Trainer) -> bool:
    """Whether the processes of a trainer compute on GPUs."""
    return isinstance(trainer.accelerator, CUDAAccelerator)


def longest_wait(trainer: Trainer) -> timedelta | None:
    """How long a process waits for another one in a collective operation; None without a limit."""
    strategy = trainer.strategy
    return strategy._timeout if isinstance(strategy, DDPStrategy) else None


def place(trainer: Trainer) -> str:
    """Where a trainer is, in words."""
    stage = trainer.state.stage
    if stage is None:
        return "at the start"
    if stage is RunningStage.TRAINING:
        return f"in step {trainer.global_step + 1:,} of training"
    return f"while {stage.value}, after step {trainer.global_step:,}"


def leave_endings_to_us(trainer: Trainer) -> None:
    """Keep Lightning from what it does itself where a run of several processes ends early.

    At SIGTERM it would begin a collective operation, in which a process that got the signal alone
    waits. Before each step it asks by another one whether SIGTERM has come, and goes on if that
    fails. And it looks every five seconds whether one of the processes that it has started has
    failed, and then kills all of them, the first one in the midst of its last line.
    """
    trainer._signal_connector._sigterm_notifier_fn = lambda *_: None  # type: ignore[method-assign]
    epoch_loop = trainer.fit_loop.epoch_loop
    epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    for thread in threading.enumerate():
        if isinstance(thread, _ChildProcessObserver):
            thread._child_processes = []


def started_processes(trainer: Trainer) -> list[subprocess.Popen[bytes]]:
    """The other processes of a run, by rank from 1, where Lightning has started them from this one."""
    launcher = trainer.strategy.launcher
    return launcher.procs if isinstance(launcher, _SubprocessScriptLauncher) else []


def callback_states(trainer: Trainer) -> dict[str, Any]:
    """The states of all callbacks, as a checkpoint keeps them."""
    return _call_callbacks_state_dict(trainer)


def dump_checkpoint(trainer: Trainer) -> dict[str, Any]:
    """A whole checkpoint, which is not written to a file."""
    return trainer._checkpoint_connector.dump_checkpoint(weights_only=False)


def comes_of_restoring(error: BaseException) -> bool:
    """Whether an error came up while a trainer took its state from a checkpoint."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        restores = "restore" in frame.f_code.co_name
        if restores and isinstance(frame.f_locals.get("self"), _CheckpointConnector):
            return True
    return False


def logged_step(trainer: Trainer) -> int:
    """The step, counted from 0, at which loggers log what is trained or measured now."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def set_logged_step(trainer: Trainer, step: int) -> None:
    """Let loggers count on from this step, as after a resume from a validation, where Lightning
    counts one too many, or where weights are measured that were trained before.
    """
    trainer.fit_loop.epoch_loop._batches_that_stepped = step


def continue_tensorboard(logger: TensorBoardLogger, version: str, purge_step: int | None) -> None:
    """Let a logger that has not logged yet write where it is known to have written before.

    Args:
        logger: of TensorBoard.
        version: of the logger, unless it was given one.
        purge_step: what was logged before from this step on is not shown any more; None for
            nothing, or what the logger was given.
    """
    if logger._version is None:
        logger._version = version
    if logger._kwargs.get("purge_step") is None:  # so it comes from a configuration
        logger._kwargs["purge_step"] = purge_step


def validation_is_due(trainer: Trainer) -> bool:
    """Whether a validation follows the batch that has just been trained on."""
    fetcher = trainer.fit_loop._data_fetcher
    assert fetcher is not None, "a batch has been fetched"
    return trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher)


# What these say after a batch that was trained on:
#
#                        within the epoch   the last one   the one of max_steps, within the epoch
# epoch_has_begun        True               True           True
# fetched_last_batch     False              True           False
# all_batches_trained    False              True           False
# epoch_ends_here        False              True           True
#
# Of the last batch they say so while it trains, too.


def epoch_ends_here(trainer: Trainer) -> bool:
    """Whether no further batch of the epoch will be trained on: none is left, or ``max_steps`` ends
    training within the epoch.
    """
    return trainer.fit_loop.epoch_loop._is_training_done


def all_batches_trained(trainer: Trainer) -> bool:
    """Whether all batches of the epoch were trained on, so that the next epoch comes next."""
    return trainer.fit_loop.epoch_loop._num_ready_batches_reached()


def fetched_last_batch(trainer: Trainer) -> bool:
    """Whether the batch that was last fetched is the last one of its epoch."""
    return trainer.fit_loop.epoch_loop.batch_progress.is_last_batch


def epoch_has_begun(trainer: Trainer) -> bool:
    """Whether a batch of the epoch at hand was fetched."""
    return trainer.fit_loop.epoch_loop.batch_progress.current.ready > 0


def may_stop(trainer: Trainer) -> bool:
    """Whether ``min_epochs`` and ``min_steps`` allow training to stop."""
    return trainer.fit_loop._can_stop_early


def epochs_are_done(trainer: Trainer) -> bool:
    """Whether ``max_epochs`` epochs were trained."""
    loop = trainer.fit_loop
    # "processed" is declared by a parent class that mypy does not look at.
    processed = loop.epoch_progress.current.processed  # type: ignore[attr-defined]
    return loop.max_epochs is not None and 0 <= loop.max_epochs <= processed
