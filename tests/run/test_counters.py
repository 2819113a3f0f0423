"""The counters of a checkpoint at the three moments it may resume at, and when a run is finished."""

import pytest

from ltr.run.counters import Moment, set_counters
from ltr.run.which_checkpoint import Limits, finished_message


def four(begun: int, done: int) -> dict[str, int]:
    return {"ready": begun, "started": begun, "processed": done, "completed": done}


def two(done: int) -> dict[str, int]:
    return {"ready": done, "completed": done}


def written_by_lightning() -> dict:
    """In the second epoch, behind the third of its batches: each epoch has three, and each batch is
    a step. Lightning has counted the batch as processed, not as completed.
    """
    batch = {"ready": 6, "started": 6, "processed": 6, "completed": 5}
    in_epoch = {"ready": 3, "started": 3, "processed": 3, "completed": 2}
    return {
        "global_step": 6,
        "loops": {
            "fit_loop": {
                "epoch_progress": {"total": four(2, 1), "current": four(2, 1)},
                "epoch_loop.batch_progress": {
                    "total": batch,
                    "current": in_epoch,
                    "is_last_batch": True,
                },
                "epoch_loop.scheduler_progress": {"total": two(5), "current": two(2)},
                "epoch_loop.automatic_optimization.optim_progress": {
                    "optimizer": {
                        "step": {"total": two(6), "current": two(3)},
                        "zero_grad": {
                            "total": {"ready": 6, "started": 6, "completed": 6},
                            "current": {"ready": 3, "started": 3, "completed": 3},
                        },
                    }
                },
                "epoch_loop.val_loop.batch_progress": {
                    "total": four(4, 4),
                    "current": four(2, 2),
                    "is_last_batch": True,
                },
                "epoch_loop.state_dict": {"_batches_that_stepped": 7},
            }
        },
    }


def counters(moment: Moment, batches_since_step: int = 0) -> dict:
    checkpoint = written_by_lightning()
    set_counters(checkpoint, moment, batches_since_step)
    return checkpoint["loops"]["fit_loop"]


def test_after_a_step_the_epoch_goes_on():
    """Two epochs are begun and one is done; the batch is done, no validation is due."""
    fit = counters(Moment.AFTER_STEP)
    assert fit["epoch_progress"] == {"total": four(2, 1), "current": four(2, 1)}
    batches = {"total": four(6, 6), "current": four(3, 3), "is_last_batch": False}
    assert fit["epoch_loop.batch_progress"] == batches
    assert fit["epoch_loop.scheduler_progress"] == {"total": two(6), "current": two(3)}
    validation = {"total": four(0, 0), "current": four(0, 0), "is_last_batch": False}
    assert fit["epoch_loop.val_loop.batch_progress"] == validation
    assert fit["epoch_loop.state_dict"]["_batches_that_stepped"] == 6


def test_a_validation_that_is_due_is_begun_and_not_done():
    fit = counters(Moment.VALIDATION_DUE)
    assert fit["epoch_progress"]["current"] == four(2, 1)
    assert fit["epoch_loop.batch_progress"]["is_last_batch"]
    validation = {"total": four(1, 0), "current": four(0, 0), "is_last_batch": False}
    assert fit["epoch_loop.val_loop.batch_progress"] == validation


def test_at_the_end_of_an_epoch_the_next_one_begins():
    """Both epochs are done, and what counts within an epoch begins at 0."""
    fit = counters(Moment.EPOCH_END)
    assert fit["epoch_progress"] == {"total": four(2, 2), "current": four(2, 2)}
    batches = {"total": four(6, 6), "current": four(0, 0), "is_last_batch": False}
    assert fit["epoch_loop.batch_progress"] == batches
    optimizer = fit["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
    assert optimizer["step"] == {"total": two(6), "current": two(0)}
    assert optimizer["zero_grad"]["current"] == {"ready": 0, "started": 0, "completed": 0}


def test_batches_whose_gradients_are_lost_are_repeated():
    fit = counters(Moment.AFTER_STEP, batches_since_step=2)
    assert fit["epoch_loop.batch_progress"]["total"] == four(4, 4)
    assert fit["epoch_loop.batch_progress"]["current"] == four(1, 1)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ((3, -1, None), None),
        ((-1, -1, None), None),
        ((None, 7, None), None),
        ((2, -1, None), "the run has done its 2 epochs (trainer.max_epochs), 6 steps"),
        ((9, 6, None), "the run has done its 6 steps (trainer.max_steps)"),
        ((9, -1, "00:00:00:05"), "the run has used up its time at step 6"),
        ((9, -1, "00:00:00:06"), None),
    ],
)
def test_a_run_is_finished_at_the_first_of_its_limits(limits, message):
    """Two epochs, six steps and five seconds were trained."""
    checkpoint = written_by_lightning()
    set_counters(checkpoint, Moment.EPOCH_END)
    checkpoint["callbacks"] = {"Timer": {"time_elapsed": {"train": 5.0, "sanity_check": 0.0}}}
    said = finished_message(checkpoint, Limits(*limits))
    assert said == message or (message is not None and said.startswith(message))


def test_a_run_that_was_stopped_is_finished_before_its_limits():
    checkpoint = written_by_lightning() | {"run": {"stopped": True}}
    assert (
        finished_message(checkpoint, Limits(9, -1, None)) == "the run was stopped early at step 6"
    )
