"""Which processes begin alone, and which have to meet first."""

import pytest

from ltr.errors import InputError
from ltr.run.launchers import check_nodes, has_launcher, take_launched


@pytest.mark.parametrize(
    ("variables", "launched"),
    [
        ({}, False),
        ({"TORCHELASTIC_RUN_ID": "7"}, True),  # torchrun
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, False),  # Lightning has started it
        ({"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "train"}, True),
        ({"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "bash"}, False),  # a shell of a job
    ],
)
def test_processes_of_a_launcher_are_told_by_its_variables(monkeypatch, variables, launched):
    for name in ("TORCHELASTIC_RUN_ID", "LOCAL_RANK", "SLURM_NTASKS", "SLURM_JOB_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_launcher() == launched
    check_nodes(1)
    if launched:
        check_nodes(2)
    else:
        with pytest.raises(InputError, match="num_nodes must be 1 where no launcher has started"):
            check_nodes(2)


def launched(monkeypatch, **variables: str) -> None:
    for name in (*TORCHRUN, *SRUN, "SLURM_JOB_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


TORCHRUN = {"TORCHELASTIC_RUN_ID": "7", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2"}
SRUN = {"SLURM_NTASKS": "6", "SLURM_NNODES": "3", "SLURM_NTASKS_PER_NODE": "2"}


@pytest.mark.parametrize("variables", [TORCHRUN, SRUN, {"SLURM_NTASKS": "6", "SLURM_NNODES": "3"}])
def test_a_trainer_runs_on_the_processes_that_were_started(monkeypatch, variables):
    """6 processes, 2 of them on each node: 3 nodes."""
    launched(monkeypatch, **variables)
    trainer = {"num_nodes": 1, "devices": "auto"}
    take_launched(trainer)
    assert trainer == {"num_nodes": 3, "devices": 2}
    take_launched(trainer)  # which names them now
    with pytest.raises(InputError, match="must be the 3 nodes with 2 processes each that the"):
        take_launched({"num_nodes": 2, "devices": 2})
    with pytest.raises(InputError, match="got 3 and 1; leave them out"):
        take_launched({"num_nodes": 1, "devices": 1})


def test_without_a_launcher_the_options_stay(monkeypatch):
    launched(monkeypatch)
    trainer = {"num_nodes": 1, "devices": "auto"}
    take_launched(trainer)
    assert trainer == {"num_nodes": 1, "devices": "auto"}


def test_nodes_with_unequally_many_processes_are_refused(monkeypatch):
    launched(monkeypatch, **TORCHRUN | {"WORLD_SIZE": "3"})
    with pytest.raises(InputError, match="as many processes as any other, got 2 of 3 on this one"):
        take_launched({"num_nodes": 1, "devices": "auto"})
