"""Who has started the processes of a run: Lightning, or a launcher such as torchrun or srun."""

from lightning.fabric.plugins.environments import (
    LSFEnvironment,
    MPIEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only

from ltr.errors import InputError
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
