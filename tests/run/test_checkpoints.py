"""Every resume is exact; what ends a run otherwise leaves its checkpoint."""

import itertools
import os
import signal
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

from ltr.__main__ import main
from ltr.losses import RankNetLoss
from ltr.run.checkpoint_options import BestOptions, best_first
from ltr.run.checkpoints import Checkpoints
from tests.run.interrupted import (
    VALIDATED,
    check_resume,
    fit,
    slow,
    step_of,
    uninterrupted,
)
from tests.run.kills import Child, start, torn, waiting
from tests.run.plain import Plain
from tests.run.resumes import differences, outcome, try_variant
from tests.world.configurations import QUIET

# Those that went wrong once. The long ones are parts of others, or have a shorter test elsewhere:
# adapters in test_adapters.py, accumulation and rarer validations in the one of mined negatives.
TRIED = (
    "no dev split",
    "asked to stop at step 4, not before the second epoch",
)
TRIED_LONG = (
    "early stopping",
    "negatives mined every step, the newest kept, accumulation of 2, validation every 3",
    "validation every second epoch",
    "accumulation of 2, validation every 3, the three best",
    "a miner trained beside a cross-encoder that scores anew",
    "adapters, averaged, on a base in bfloat16",
    "early stopping within epochs, not before the sixth",
    "a cross-encoder with dropout",
    "negatives mined every 2 steps, the newest kept",
)


@pytest.mark.parametrize(
    "variant", [*TRIED, *(pytest.param(name, marks=pytest.mark.long) for name in TRIED_LONG)]
)
def test_a_resume_from_a_checkpoint_is_exact(variant, world, tmp_path):
    """From some of them; resumes.py tries all."""
    n_resumes, wrong = try_variant(variant, world, tmp_path / "variant", levels=1, most=3)
    assert n_resumes == 3 and wrong == []


@pytest.mark.long
def test_a_resume_of_a_resume_is_exact(world, tmp_path):
    """Epochs that end without a validation, and a stop within the next one."""
    n_resumes, wrong = try_variant("no validation", world, tmp_path / "variant", levels=2)
    assert n_resumes > 15 and wrong == []


def test_the_comparison_sees_one_other_bit(world, tmp_path):
    assert fit(world, tmp_path / "a/run") == 0
    a = outcome(tmp_path / "a/run")
    changed = outcome(uninterrupted(world))
    assert list(differences(a, changed)) == []
    moment = next(iter(changed["optimizer_states"][0]["state"].values()))["exp_avg"].view(-1)
    moment[0] = torch.nextafter(moment[0], torch.tensor(9.0))
    assert len(list(differences(a, changed))) == 1
    assert fit(world, tmp_path / "b/run", {"seed_everything": 4}) == 0
    assert len(list(differences(a, outcome(tmp_path / "b/run")))) > 5


def test_the_best_are_the_highest_scores_and_of_equal_ones_the_earliest():
    assert best_first({6: 0.5, 4: 0.7, 2: 0.5}) == [4, 2, 6]
    assert BestOptions("val/nDCG@10").sign == 1 and BestOptions("val/swapped_pairs").sign == -1


def test_a_second_fit_does_not_go_on_with_the_validation_that_ended_the_first(tmp_path):
    """Its sanity check is no validation of a training, and saves nothing."""
    saved = []

    class Watched(Checkpoints):
        def _save(self, trainer, moment):
            saved.append(trainer.global_step)

    class Failing(Plain):
        def validation_step(self, batch, batch_idx):
            if self.global_step:
                raise RuntimeError("a validation of my own")

    checkpoints = Watched(BestOptions(monitor=None))

    def fit(model, n_sanity):
        trainer = Trainer(
            **QUIET,
            default_root_dir=tmp_path,
            callbacks=[checkpoints],
            max_epochs=1,
            num_sanity_val_steps=n_sanity,
            logger=False,
        )
        trainer.fit(model, DataLoader(torch.ones(3, 1)), DataLoader(torch.ones(1, 1)))

    with pytest.raises(RuntimeError, match="my own"):
        fit(Failing(), 0)
    assert saved == []
    fit(Plain(), 1)
    assert saved == [3]


def test_an_exception_leaves_the_checkpoint_before(world, tmp_path, monkeypatch):
    """Of six steps an epoch the eighth fails; the last checkpoint is that of the first epoch."""
    calls = itertools.count(1)
    forward = RankNetLoss.forward

    def fails(loss, scores, *args, **options):
        is_of_a_step = scores.grad_fn is not None  # before training the loss is only tried
        if is_of_a_step and next(calls) == 8:
            raise RuntimeError("a loss of my own")
        return forward(loss, scores, *args, **options)

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(RankNetLoss, "forward", fails)
        with pytest.raises(RuntimeError, match="my own"):
            fit(world, run)
    assert step_of(run) == 6
    check_resume(world, run)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_leaves_the_checkpoint_before(world, tmp_path, monkeypatch, capsys):
    """It is full at the third checkpoint, of step 8; the second is that of step 6."""
    calls = itertools.count(1)
    run = tmp_path / "run"
    save = torch.save

    def full(checkpoint: dict, file) -> None:
        if next(calls) == 3:
            with open("/dev/full", "wb") as device:
                save(checkpoint, device)
        save(checkpoint, file)

    with monkeypatch.context() as patch:
        patch.setattr("torch.save", full)
        assert fit(world, run) == 2
    told = f"ltr: the disk of {run}/checkpoints/.checkpoint.tmp is full (No space left on device)"
    assert capsys.readouterr().err.splitlines()[-1].startswith(told)
    left = sorted(file.name for file in (run / "checkpoints").iterdir())
    assert left == ["best.ckpt", "last.ckpt"] and torn(run) == []
    assert step_of(run) == 6
    check_resume(world, run)


@pytest.mark.long
def test_a_run_out_of_time_is_saved_and_resumes_with_more_of_it(world, tmp_path):
    """A second is over in the fifth step, which is validated too: that is all that differs from a
    run with more time.
    """
    waits = waiting(tmp_path / "waits", step=4)
    waits["init_args"]["seconds"] = 1.2
    run = tmp_path / "run"
    short = {"trainer.max_time": "00:00:00:01", "trainer.callbacks": [waits]}
    assert fit(world, run, short) == 0
    assert main(["fit", str(run)]) == 0  # the time of both adds up
    assert step_of(run) == 5
    assert main(["fit", str(run), "--trainer.max_time", "00:01:00:00"]) == 0
    resumed = outcome(run)
    del resumed["results"]["validations"][0]
    assert list(differences(outcome(uninterrupted(world)), resumed)) == []


@pytest.mark.long
@pytest.mark.parametrize("to", ["all", "the first"])
def test_two_processes_are_saved_by_the_first(world, tmp_path, to):
    """And the run continues in one process: steps and epochs are those of before."""
    two = {"trainer.devices": 2, "trainer.strategy": "ddp"}
    run = tmp_path / "run"
    child = Child(start(run, slow(world, tmp_path, "step", two)), tmp_path / "output", processes=2)
    child.until(tmp_path / "waits")
    child.send(signal.SIGTERM) if to == "all" else os.kill(child.pid, signal.SIGTERM)
    code = child.end()
    output = (tmp_path / "output").read_text()
    assert code == 143, output
    assert f"'ltr fit {run}' resumes" in output and "Traceback" not in output
    # One process waits behind the fourth backward pass, maybe not the first: then that one is in
    # the fifth step already.
    assert step_of(run) in (4, 5)
    assert fit(world, run, VALIDATED) == 0
    assert step_of(run) == 18  # three epochs of six steps
