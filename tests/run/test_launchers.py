"""Which processes begin alone, and which have to meet first."""

import pytest

from ltr.errors import InputError
from ltr.run.launchers import check_nodes, has_launcher


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
