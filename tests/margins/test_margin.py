import math

import numpy as np
import pytest
import torch
import yaml

from ltr.__main__ import main
from ltr.data.collection import open_collection
from ltr.errors import InputError
from ltr.margins import (
    Annealed,
    Constant,
    FromDistance,
    FromDocuments,
    FromQuery,
    LabelGap,
    Learnable,
    NormalSample,
)
from ltr.mining.mined_negatives import MinedNegatives
from tests.margins.lists import lists_of
from tests.world.configurations import write_config


def test_no_gradient_reaches_scores_or_distances_through_a_margin_of_them(lists):
    given = lists._replace(distances=lists.distances.clone().requires_grad_())
    given.scores.requires_grad_()
    for policy in (NormalSample(), FromDistance(), Annealed(NormalSample(), steps=3)):
        assert not policy(given).requires_grad
    assert not NormalSample()(given._replace(distances=None)).requires_grad


@pytest.mark.parametrize(
    "make",
    [NormalSample, lambda: Annealed(Constant(), 9), lambda: Annealed(NormalSample(), 4)],
)
def test_a_resumed_policy_goes_on(lists, make):
    policy = make()
    resumed = make()
    for _ in range(3):
        policy(lists)
    resumed.load_state_dict({name: value.clone() for name, value in policy.state_dict().items()})
    for _ in range(2):
        assert torch.equal(resumed(lists), policy(lists))
    assert not torch.equal(policy(lists), make()(lists))


LOW_AND_HIGH = "low and high must be finite, with 0 <= low <= high, got"
FLOOR_AND_CAP = "floor and cap must be 0 < floor < cap, got"
K_AND_POWER = "k and power must be finite and above 0, got"
# A policy, what it is made with, the option at fault, and what is told.
BAD = [
    (Constant, {"value": -1.0}, "value", "value must be finite and at least 0, got -1.0"),
    (LabelGap, {"scale": 0.0}, "scale", "scale must be finite and above 0, got 0.0"),
    (FromDistance, {"k": 0.0}, "k", f"{K_AND_POWER} 0.0, 1.0"),
    (FromDistance, {"power": -1.0}, "power", f"{K_AND_POWER} 1.0, -1.0"),
    (FromDistance, {"cap": 0.0}, "cap", "cap must be above 0, or none, got 0.0"),
    (FromDocuments, {"scale": 0.0}, "scale", "scale must be finite and above 0, got 0.0"),
    (
        FromQuery,
        {"encoder": "other", "gradient": True},
        "gradient",
        "gradient must be false with a frozen encoder",
    ),
    (NormalSample, {"low": 0.6}, "low", f"{LOW_AND_HIGH} 0.6, 0.5"),
    (NormalSample, {"high": math.inf}, "high", f"{LOW_AND_HIGH} 0.0001, inf"),
    (NormalSample, {"mean": math.nan}, "mean", "mean must be finite, got nan"),
    (NormalSample, {"std": -0.1}, "std", "std must be finite and at least 0, got -0.1"),
    (NormalSample, {"seed": -1}, "seed", "seed must be at least 0, got -1"),
    (Learnable, {"k": 0.0}, "k", "k must be finite and above 0, got 0.0"),
    (Learnable, {"floor": 2.0}, "floor", f"{FLOOR_AND_CAP} 2.0, 1.0"),
    (Learnable, {"cap": -1.0}, "cap", f"{FLOOR_AND_CAP} 0.1, -1.0"),
    (Annealed, {"margin": Constant(), "steps": 0}, "steps", "steps must be at least 1, got 0"),
]


@pytest.mark.parametrize(("policy", "options", "option", "message"), BAD)
def test_options_are_checked_and_the_one_at_fault_is_named(policy, options, option, message):
    with pytest.raises(InputError, match=f"^{policy.__name__}: {message}") as error:
        policy(**options)
    assert error.value.option == option


@pytest.mark.parametrize("policy", [FromDistance, FromDocuments, FromQuery, Learnable])
def test_a_policy_says_what_it_misses(policy):
    with pytest.raises(ValueError, match=f"{policy.__name__} needs .*got none"):
        policy()(lists_of([[1.0, 0.0]]))


# Options by the policy that has them, and whether it has a state.
CONFIGURED = [
    ("Constant", {"value": 0.5}, False),
    ("LabelGap", {"scale": 0.5}, False),
    ("FromDistance", {"k": 0.5, "power": 0.5, "cap": 1.0}, False),
    ("FromDocuments", {"scale": 0.5}, False),
    pytest.param("NormalSample", {"mean": 0.2, "seed": 3}, True, marks=pytest.mark.long),
    ("Learnable", {"k": 0.05, "cap": 0.5}, True),
    pytest.param(
        "Annealed",
        {
            "margin": {"class_path": "ltr.margins.Learnable", "init_args": {"k": 0.05}},
            "steps": 4,
        },
        True,
        marks=pytest.mark.long,
    ),
]


@pytest.mark.parametrize(("name", "options", "has_state"), CONFIGURED)
def test_every_policy_is_named_in_a_configuration(
    name, options, has_state, tmp_path, backbone, collection_folder
):
    """The configuration of the run has it again, and resumes and tests what has a state."""
    collection = open_collection(str(collection_folder))
    ids = np.tile(np.arange(4), (len(collection.queries), 1))
    distances = ids.astype(np.float32)
    mined = MinedNegatives.from_matrix(np.arange(len(ids)), ids, distances, {"seed": 0})
    mined.save(tmp_path / "negatives", collection)
    margin = {"class_path": f"ltr.margins.{name}", "init_args": options}
    changes = {
        "model.loss": {"class_path": "ltr.losses.MarginRankingLoss"},
        "model.margin": margin,
        "data.init_args.negatives": str(tmp_path / "negatives"),
    }
    config = write_config(tmp_path, backbone, collection_folder, **changes)
    assert main(["fit", "--config", str(config), "--trainer.max_steps", "2"]) == 0
    again = tmp_path / "run/config.yaml"
    checkpoint = torch.load(max((tmp_path / "run/checkpoints").glob("*.ckpt")), weights_only=False)
    of_margin = [key for key in checkpoint["state_dict"] if not key.startswith("ranker.")]
    assert bool(of_margin) == has_state
    if not has_state:
        saved = yaml.safe_load(again.read_text())["model"]["margin"]
        assert saved == margin | {"init_args": saved["init_args"] | options}
        return
    resumed = ["--config", str(again), "--ckpt_path", "last"]
    assert main(["fit", *resumed, "--trainer.max_steps", "4"]) == 0
    assert main(["test", *resumed]) == 0
