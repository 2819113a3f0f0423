"""Who has started the processes of a run: Lightning, or a launcher such as torchrun or srun."""

import os
import socket

from lightning.fabric.plugins.environments import (
    LSFEnvironment,
    MPIEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only

from ltr.errors import InputError
from ltr.processes import gather_objects
from ltr.run import lightning_internals as internals

LAUNCHERS = (TorchElasticEnvironment, SLURMEnvironment, LSFEnvironment, MPIEnvironment)


def is_rank_0() -> bool:
    """Whether this is the first process of the run."""
    return rank_zero_only.rank == 0  # type: ignore[attr-defined]  # Lightning sets it without declaring it


def has_launcher() -> bool:
    """Whether a launcher has started this process. It has started the others too, and they know each
    other once they have met (:func:`join_processes`).

    Else the first process begins alone, and Lightning starts the others when it trains.
    """
    return any(launcher.detect() for launcher in LAUNCHERS)


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


def who_computes() -> str:
    """The processes of a run, by machine, process number and launcher: what tells the starts of a
    run apart in its log. Every process must ask.
    """
    hosts = gather_objects(socket.gethostname())
    number = "1 process" if len(hosts) == 1 else f"{len(hosts)} processes"
    parts = [f"{number} on {', '.join(dict.fromkeys(hosts))}"]
    parts.append(f"the first is process {os.getpid()} of {hosts[0]}")
    if TorchElasticEnvironment.detect():
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        parts.append(f"torchrun {os.environ['TORCHELASTIC_RUN_ID']}, restart {restarts}")
    if "SLURM_JOB_ID" in os.environ:
        requeues = os.environ.get("SLURM_RESTART_COUNT", "0")
        parts.append(f"job {os.environ['SLURM_JOB_ID']} of SLURM, restart {requeues}")
    return "; ".join(parts)
