"""The groups of AdamW, and the course of the learning rate."""

import math

import pytest
import torch
from torch import nn
from transformers import get_linear_schedule_with_warmup

from ltr.optimiser import adamw, rate_factor


def test_matrices_decay_vectors_do_not_and_numbers_have_a_rate_of_their_own():
    matrix = nn.Parameter(torch.ones(2, 2))
    vector = nn.Parameter(torch.ones(2))
    number = nn.Parameter(torch.ones(()))
    frozen = nn.Parameter(torch.ones(2, 2), requires_grad=False)
    groups = adamw([number, matrix, frozen, vector], 2e-5, 0.1, None).param_groups
    expected = ((matrix, 2e-5, 0.1), (vector, 2e-5, 0.0), (number, 1e-3, 0.0))
    for group, (parameter, rate, decay) in zip(groups, expected, strict=True):
        assert len(group["params"]) == 1 and group["params"][0] is parameter
        assert (group["lr"], group["weight_decay"]) == (rate, decay)


def test_numbers_never_have_a_lower_rate_than_the_others():
    (group,) = adamw([nn.Parameter(torch.ones(()))], 0.5, 0.1, None).param_groups
    assert group["lr"] == 0.5


def state_of_another_device(fused):
    """What a run of two steps leaves, by torch's own AdamW; its ways are another device's."""
    weight = nn.Parameter(torch.ones(2, 2))
    theirs = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.1, fused=fused)
    for _ in range(2):
        weight.grad = torch.full((2, 2), 0.5)
        theirs.step()
    state = theirs.state_dict()
    ways = {"fused": fused, "foreach": None if fused else True, "capturable": bool(fused)}
    state["param_groups"] = [group | ways for group in state["param_groups"]]
    return weight, state


@pytest.mark.parametrize("fused", [True, None])
def test_a_state_of_another_device_keeps_the_ways_of_this_one_and_goes_on_from_there(fused):
    """From fused to not fused and back: the third step, by hand. With a gradient that stays the same
    the moments, corrected, are g and g²: the step is the rate times g / |g|.
    """
    weight, state = state_of_another_device(None if fused else True)
    own = nn.Parameter(weight.detach().clone())
    optimizer = adamw([own], 0.1, 0.1, fused)
    optimizer.load_state_dict(state)
    (group,) = optimizer.param_groups
    assert (group["fused"], group["foreach"], group["capturable"]) == (fused, None, False)
    assert optimizer.state[own]["step"].item() == 2
    assert state["param_groups"][0]["fused"] != fused  # what was loaded is as it was
    own.grad = torch.full((2, 2), 0.5)
    optimizer.step()
    expected = weight.detach() * (1 - 0.1 * 0.1) - 0.1
    torch.testing.assert_close(own.detach(), expected)
    assert optimizer.state[own]["step"].item() == 3


def test_a_state_of_other_groups_is_refused_by_torch():
    weight, state = state_of_another_device(True)
    vector = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="different number of parameter groups"):
        adamw([weight, vector], 0.1, 0.1, True).load_state_dict(state)


@pytest.mark.parametrize(
    ("total", "warmup", "decay", "expected"),
    [
        # 2 of 6 steps rise; then (6 − step) / 4.
        (6, 0.25, True, [0, 1 / 2, 1, 3 / 4, 2 / 4, 1 / 4, 0, 0]),
        (6, 0.25, False, [0, 1 / 2, 1, 1, 1, 1, 1, 1]),
        (4, 0.0, True, [1, 3 / 4, 2 / 4, 1 / 4, 0]),
        # The last step does not belong to the rise, or a run of one step would learn nothing.
        (1, 1.0, True, [1, 0]),
        (3, 1.0, True, [0, 1 / 2, 1, 0]),
        # There is no last step to rise or fall by.
        (math.inf, 0.5, True, [1, 1, 1]),
    ],
)
def test_the_rate_by_hand(total, warmup, decay, expected):
    factor = rate_factor(total, warmup, decay)
    assert [factor(step) for step in range(len(expected))] == expected


def test_the_rate_is_that_of_transformers():
    """A share of the steps that is no whole number is rounded up: 1.9 of 19."""
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1.0)
    expected = get_linear_schedule_with_warmup(optimizer, 2, 19)
    factor = rate_factor(19, 0.1, True)
    for step in range(19):
        assert factor(step) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        expected.step()
