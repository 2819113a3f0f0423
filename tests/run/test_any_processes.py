"""Which processes compute a run doesn't matter; python tests/run/any_processes.py tries more of it."""

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.run.any_processes import CHOSEN, distance, last_weights
from tests.run.interrupted import fit, step_of, written
from tests.run.kills import Child, start, waiting
from tests.run.resumes import VARIANTS


@pytest.mark.usefixtures("programs_begin_warm")
@pytest.mark.long
@pytest.mark.parametrize("variant", CHOSEN.values())
def test_a_run_goes_on_with_any_number_of_processes(variant, world, tmp_path, capfd):
    """Three processes that share eight or four lists unevenly are ended in the fourth step, and one
    goes on: to the weights of one process that was never interrupted, but for rounding. The
    validations have the same queries, so their values are equal but for a few swapped documents.
    """
    begin = tmp_path / "begin/run"
    frozen = {"trainer.max_steps": 1, "trainer.max_epochs": -1, "model.lr": 0.0}
    assert fit(world, begin, frozen, variant) == 0

    callbacks = VARIANTS[variant].get("trainer.callbacks", [])
    wait = waiting(tmp_path / "waits", step=3, within="step")
    three = {
        "trainer.devices": 3,
        "trainer.strategy": "ddp",
        "trainer.callbacks": [*callbacks, wait],
    }
    run = tmp_path / "run"
    output = tmp_path / "output"
    child = Child(start(run, written(world, tmp_path, three, variant)), output, processes=3)
    child.until(tmp_path / "waits")
    child.send(signal.SIGTERM)
    code = child.end()
    assert code == 143, (code, output.read_text())
    steps = step_of(run)
    assert 3 < steps < 8
    alone = tmp_path / "alone/run"
    here = {"class_path": "tests.run.interrupted.TerminatedAt", "init_args": {"step": steps}}
    assert fit(world, alone, {"trainer.callbacks": [*callbacks, here]}, variant) == 143
    assert step_of(alone) == steps
    largest, moved = distance(run, alone, last_weights(begin))
    assert moved > 1e-3
    assert largest < 1e-2 * moved, (largest, moved)
    assert fit(world, alone, variant=variant) == 0
    capfd.readouterr()
    assert fit(world, run, variant=variant) == 0
    assert "the run went on so far with 3 processes, and goes on with 1" in capfd.readouterr().out
    largest, moved = distance(run, alone, last_weights(begin))
    assert moved > 1e-3
    # Of documents whose scores are equal but for rounding, a refresh may keep another one. The steps
    # after it then learn from other texts.
    swapped = share_of_other_negatives(run, alone)
    assert swapped < 0.05
    assert largest < 1e-2 * moved or swapped > 0, (largest, moved)


def share_of_other_negatives(run: Path, other: Path) -> float:
    """Of the negatives of all refreshes of a run, those that the other has not; 0 without refreshes."""
    n_other = 0
    n_all = 0
    for file in sorted(run.glob("negatives/*/ids.npy")):
        kept = np.load(file)
        others = np.load(other / file.relative_to(run))
        n_all += kept.size
        n_other += sum(
            len({*row} - {*other_row})
            for row, other_row in zip(kept.tolist(), others.tolist(), strict=True)
        )
    return n_other / n_all if n_all else 0.0
