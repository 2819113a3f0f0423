"""Who has started the processes of a run: Lightning, or a launcher such as torchrun or srun."""

import os
import warnings
from collections.abc import MutableMapping
from typing import Any

from lightning.fabric.plugins.environments import (
    ClusterEnvironment,
    LSFEnvironment,
    MPIEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only

from ltr.errors import InputError
from ltr.processes import host_group
from ltr.run import lightning_internals as internals

LAUNCHERS = (TorchElasticEnvironment, SLURMEnvironment, LSFEnvironment, MPIEnvironment)


def tell_lightning_rank() -> None:
    """Tell Lightning the number of this process. It reads the environment when it is imported, and
    Ray Train sets that later, in processes that have imported all.
    """
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        if name in os.environ:
            rank_zero_only.rank = int(os.environ[name])  # type: ignore[attr-defined]
            return


def restarts_line() -> str:
    """What is said beside bad input where torchrun will start all processes again; else nothing."""
    made = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    left = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) - made
    if left < 1:
        return ""
    return f"; torchrun starts it again, {left} times at most (--max-restarts), and gets the same answer: end torchrun first"


def is_rank_0() -> bool:
    """Whether this is rank 0 of the run, also before the processes have met."""
    return rank_zero_only.rank == 0  # type: ignore[attr-defined]  # Lightning sets it without declaring it


def has_launcher() -> bool:
    """Whether a launcher has started this process. It has started the others too, and they know each
    other once they have met (:func:`join_processes`).

    Else rank 0 begins alone, and Lightning starts the others when it trains.
    """
    return any(_is_started_by(launcher) for launcher in LAUNCHERS)


def _is_started_by(launcher: type[ClusterEnvironment]) -> bool:
    """Whether this launcher has started this process. Lightning's hint to use srun, where it is
    installed, is left out.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PossibleUserWarning)
        return launcher.detect()


def use_launched_processes(trainer_options: MutableMapping[str, Any]) -> None:
    """Let a trainer run on the processes that torchrun or srun has started, where its options name
    none. So the command stays the same where fewer nodes come back.

    Args:
        trainer_options: ``num_nodes`` and ``devices`` are set.

    Raises:
        InputError: if they name other processes, or the nodes have unequally many.
    """
    started = _launched()
    if started is None:
        return
    processes, processes_per_node = started
    if processes % processes_per_node:
        raise InputError(
            f"each node must have as many processes as any other, got {processes_per_node} of {processes} on this one; start equally many on each, or all of them on one"
        )
    if trainer_options["num_nodes"] == 1:
        trainer_options["num_nodes"] = processes // processes_per_node
    if trainer_options["devices"] == "auto":
        trainer_options["devices"] = processes_per_node
    named = trainer_options["num_nodes"], trainer_options["devices"]
    if isinstance(named[1], int) and named != (processes // processes_per_node, processes_per_node):
        raise InputError(
            f"trainer.num_nodes and trainer.devices must be the {processes // processes_per_node} nodes with {processes_per_node} processes each that the launcher has started, got {named[0]} and {named[1]}; leave them out"
        )


def _launched() -> tuple[int, int] | None:
    """How many processes torchrun or srun has started, in all and on this node; None without them."""
    if _is_started_by(TorchElasticEnvironment):
        return int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if _is_started_by(SLURMEnvironment):
        processes = int(os.environ["SLURM_NTASKS"])
        processes_per_node = os.environ.get("SLURM_NTASKS_PER_NODE")
        if processes_per_node is None:
            return processes, processes // int(os.environ.get("SLURM_NNODES", "1"))
        return processes, int(processes_per_node)
    return None


def has_launched_several() -> bool:
    """Whether a launcher has started other processes beside this one. Of LSF and MPI nobody knows."""
    started = _launched()
    return has_launcher() if started is None else started[0] > 1


def check_nodes(num_nodes: int) -> None:
    """Raise an InputError for several nodes without a launcher: each would take itself for the first."""
    if num_nodes > 1 and not has_launcher():
        raise InputError(
            f"num_nodes must be 1 where no launcher has started the processes, got {num_nodes}; start them by torchrun, or by srun in a job of SLURM",
            option="trainer.num_nodes",
        )


def join_processes(trainer: Trainer) -> None:
    """Let the processes meet that a launcher has started, as the trainer would when it runs."""
    if trainer.world_size > 1:
        environment = internals.cluster_environment(trainer)
        environment.validate_settings(trainer.num_devices, trainer.num_nodes)
        trainer.strategy.setup_environment()
        host_group(internals.longest_wait(trainer))  # now, and not in the first step
