"""What of Lightning's trainer a run may have."""

import pytest
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    StochasticWeightAveraging,
)

from ltr.errors import InputError
from ltr.run.trainer_checks import REFUSED, check_callbacks, check_trainer_options

MADE = (
    BackboneFinetuning(),
    BatchSizeFinder(),
    GradientAccumulationScheduler({0: 2}),
    LearningRateFinder(),
    ModelPruning("l1_unstructured"),
    StochasticWeightAveraging(0.1),
)


def test_a_callback_that_no_resume_would_repeat_is_refused():
    assert {type(callback) for callback in MADE} == set(REFUSED)
    for callback in MADE:
        with pytest.raises(
            InputError, match=rf"^{type(callback).__name__} .*; .* \(option trainer.callbacks\)"
        ):
            check_callbacks([callback], [])


@pytest.mark.parametrize(("name", "value"), [("barebones", True), ("enable_checkpointing", False)])
def test_a_trainer_that_leaves_out_what_a_run_is_is_refused(name, value):
    options = {"barebones": False, "enable_checkpointing": None, name: value}
    with pytest.raises(InputError, match=f"got {name}: {value}; .* \\(option trainer.{name}\\)"):
        check_trainer_options(options)
