"""Which processes begin alone, and which have to meet first."""

import os
import sys
from types import SimpleNamespace

import pytest
from lightning.pytorch.utilities import rank_zero_only

from ltr.__main__ import main
from ltr.cli.training import RankerCLI
from ltr.errors import InputError
from ltr.run.launchers import (
    check_nodes,
    has_launched_several,
    has_launcher,
    is_rank_0,
    restarts_line,
    tell_lightning_rank,
    use_launched_processes,
)
from tests.child_processes import run_command

NAMES = ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK")
NAMES_OF_SLURM = ("SLURM_NTASKS", "SLURM_NNODES", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_NAME")
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


@pytest.fixture
def launched(monkeypatch):
    """``launched(**variables)``: the environment of a launcher, which has these and no others."""

    def launch(**variables: str) -> None:
        for name in {*NAMES, *NAMES_OF_SLURM, *RANKS}:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return launch


@pytest.mark.parametrize(
    ("variables", "is_launched"),
    [
        ({}, False),
        ({"TORCHELASTIC_RUN_ID": "7"}, True),  # torchrun
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, False),  # Lightning has started it
        ({"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "train"}, True),
        ({"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "bash"}, False),  # a shell of a job
    ],
)
def test_processes_of_a_launcher_are_told_by_its_variables(launched, variables, is_launched):
    launched(**variables)
    assert has_launcher() == is_launched
    check_nodes(1)
    if is_launched:
        check_nodes(2)
    else:
        with pytest.raises(InputError, match="num_nodes must be 1 where no launcher has started"):
            check_nodes(2)


def test_where_srun_is_installed_nobody_is_told_to_use_it(launched, monkeypatch, tmp_path, recwarn):
    launched()
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_launcher() and not has_launched_several()
    assert [str(warning.message) for warning in recwarn] == []


TORCHRUN = {"TORCHELASTIC_RUN_ID": "7", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2"}
SRUN = {"SLURM_NTASKS": "6", "SLURM_NNODES": "3", "SLURM_NTASKS_PER_NODE": "2"}


@pytest.mark.parametrize("variables", [TORCHRUN, SRUN, {"SLURM_NTASKS": "6", "SLURM_NNODES": "3"}])
def test_a_trainer_runs_on_the_processes_that_were_started(launched, variables):
    """6 processes, 2 of them on each node: 3 nodes."""
    launched(**variables)
    trainer = {"num_nodes": 1, "devices": "auto"}
    use_launched_processes(trainer)
    assert trainer == {"num_nodes": 3, "devices": 2}
    use_launched_processes(trainer)  # which names them now
    with pytest.raises(InputError, match="must be the 3 nodes with 2 processes each that the"):
        use_launched_processes({"num_nodes": 2, "devices": 2})
    with pytest.raises(InputError, match="got 3 and 1; leave them out"):
        use_launched_processes({"num_nodes": 1, "devices": 1})


def test_without_a_launcher_the_options_stay(launched):
    launched()
    trainer = {"num_nodes": 1, "devices": "auto"}
    use_launched_processes(trainer)
    assert trainer == {"num_nodes": 1, "devices": "auto"}


def test_nodes_with_unequally_many_processes_are_refused(launched):
    launched(**TORCHRUN | {"WORLD_SIZE": "3"})
    with pytest.raises(InputError, match="as many processes as any other, got 2 of 3 on this one"):
        use_launched_processes({"num_nodes": 1, "devices": "auto"})


@pytest.mark.parametrize("name", RANKS)
def test_a_process_gets_its_number_after_lightning_was_imported(launched, monkeypatch, name):
    """As under Ray Train: else each worker would take itself for the first, and speak."""
    launched()
    monkeypatch.setattr(rank_zero_only, "rank", 0)
    tell_lightning_rank()
    assert is_rank_0()
    launched(**{name: "1"})
    tell_lightning_rank()
    assert not is_rank_0()


def test_the_first_process_alone_says_how_a_training_has_ended(tmp_path):
    """The others would read the folder while it is still written: here there is nothing to read."""
    options = {"fast_dev_run": 0, "default_root_dir": str(tmp_path / "none")}
    trainer = SimpleNamespace(is_global_zero=False, **options)
    RankerCLI.after_fit(SimpleNamespace(trainer=trainer))


@pytest.mark.parametrize(("made", "left"), [("0", 9), ("7", 2), ("9", 0)])
def test_bad_input_says_that_torchrun_starts_it_again(monkeypatch, capsys, made, left):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "9")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", made)
    assert main(["fit", "--config", "none.yaml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (f"; torchrun starts it again, {left} times at most" in line) == (left > 0)
    assert ("torchrun" in line) == (left > 0)
    monkeypatch.delenv("TORCHELASTIC_MAX_RESTARTS")
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    assert restarts_line() == ""


@pytest.mark.parametrize("level", [None, "INFO"])
def test_the_addresses_of_functions_are_not_printed_unless_asked_for(level):
    """What the C++ of torch warns of where a process is gone; its level is read at its import."""
    environment = {name: value for name, value in os.environ.items() if "TORCH_CPP" not in name}
    if level is not None:
        environment["TORCH_CPP_LOG_LEVEL"] = level
    prints = "lambda: print(os.environ['TORCH_CPP_LOG_LEVEL']) or 0"
    code = f"import ltr.__main__ as m, os; m.main = {prints}; m.program()"
    told = run_command([sys.executable, "-c", code], env=environment)
    assert told.stdout.strip() == (level or "ERROR")
