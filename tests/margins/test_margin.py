import math

import numpy as np
import pytest
import torch

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
    given = lists._replace(
        scores=lists.scores.requires_grad_(), distances=lists.distances.clone().requires_grad_()
    )
    for policy in (NormalSample(), FromDistance(), Annealed(NormalSample(), steps=3)):
        assert not policy(given).requires_grad
    assert not NormalSample()(given._replace(distances=None)).requires_grad


@pytest.mark.parametrize(
    "make",
    [
        NormalSample,
        lambda: Annealed(Constant(), steps=9),
        lambda: Annealed(NormalSample(), steps=4),
    ],
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


BAD = {
    "Constant: value": lambda: Constant(-1.0),
    "LabelGap: scale": lambda: LabelGap(0.0),
    "FromDistance: k and power": lambda: FromDistance(power=-1.0),
    "FromDistance: cap": lambda: FromDistance(cap=0.0),
    "FromDocuments: scale": lambda: FromDocuments(scale=0.0),
    "FromQuery: gradient must be false with a frozen encoder": lambda: FromQuery(
        encoder="other", gradient=True
    ),
    "NormalSample: low and high .* got 0.6, 0.5": lambda: NormalSample(low=0.6),
    "NormalSample: mean": lambda: NormalSample(mean=math.nan),
    "NormalSample: std": lambda: NormalSample(std=-0.1),
    "NormalSample: seed": lambda: NormalSample(seed=-1),
    "Learnable: k": lambda: Learnable(k=0.0),
    "Learnable: floor and cap must be 0 < floor < cap, got 2.0, 1.0": lambda: Learnable(floor=2.0),
    "Annealed: steps": lambda: Annealed(Constant(), steps=0),
}


@pytest.mark.parametrize("message", BAD)
def test_options_are_checked(message):
    with pytest.raises(InputError, match=message):
        BAD[message]()


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: FromDistance(k=0.0), "k"),
        (lambda: FromDistance(power=-1.0), "power"),
        (lambda: NormalSample(low=0.6), "low"),
        (lambda: NormalSample(high=math.inf), "high"),
        (lambda: Learnable(floor=2.0), "floor"),
        (lambda: Learnable(cap=-1.0), "cap"),
    ],
)
def test_the_option_at_fault_is_named(make, option):
    with pytest.raises(InputError) as error:
        make()
    assert error.value.option == option


@pytest.mark.parametrize(
    "policy",
    [FromDistance(), FromDocuments(), FromQuery(), Learnable()],
    ids=lambda p: type(p).__name__,
)
def test_a_policy_says_what_it_misses(policy):
    with pytest.raises(ValueError, match=f"{type(policy).__name__} needs .*got none"):
        policy(lists_of([[1.0, 0.0]]))


CONFIGURED = [
    {"class_path": "ltr.margins.Constant", "init_args": {"value": 0.5}},
    {"class_path": "ltr.margins.LabelGap", "init_args": {"scale": 0.5}},
    {"class_path": "ltr.margins.FromDistance", "init_args": {"k": 0.5, "power": 0.5, "cap": 1.0}},
    {"class_path": "ltr.margins.FromDocuments", "init_args": {"scale": 0.5}},
    {"class_path": "ltr.margins.NormalSample", "init_args": {"mean": 0.2, "seed": 3}},
    {"class_path": "ltr.margins.Learnable", "init_args": {"k": 0.05, "cap": 0.5}},
    {
        "class_path": "ltr.margins.Annealed",
        "init_args": {
            "margin": {"class_path": "ltr.margins.Learnable", "init_args": {"k": 0.05}},
            "steps": 4,
        },
    },
]


@pytest.mark.parametrize("margin", CONFIGURED, ids=lambda m: m["class_path"].rpartition(".")[2])
def test_every_policy_is_named_in_a_configuration(margin, tmp_path, backbone, collection_folder):
    """And its checkpoint is resumed and tested by the configuration of the run."""
    collection = open_collection(str(collection_folder))
    ids = np.tile(np.arange(4), (len(collection.queries), 1))
    MinedNegatives.from_matrix(np.arange(len(ids)), ids, ids.astype(np.float32), {"seed": 0}).save(
        tmp_path / "negatives", collection
    )
    changes = {
        "model.loss": {"class_path": "ltr.losses.MarginRankingLoss"},
        "model.margin": margin,
        "data.init_args.negatives": str(tmp_path / "negatives"),
    }
    config = write_config(tmp_path, backbone, collection_folder, **changes)
    assert main(["fit", "--config", str(config), "--trainer.max_steps", "2"]) == 0
    again = str(tmp_path / "run/config.yaml")
    assert main(["fit", "--config", again, "--trainer.max_steps", "4", "--ckpt_path", "last"]) == 0
    assert main(["test", "--config", again, "--ckpt_path", "last"]) == 0
