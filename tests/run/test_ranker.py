"""The ranker of another run; tests/callbacks/test_mining.py builds one from a real run."""

import pytest
import torch

from ltr.errors import InputError
from ltr.run.ranker import ranker_of

FEATURES = {"class_path": "ltr.models.FeatureRanker", "init_args": {"n_features": 2, "preset": "linear"}}

OVERFLOWN = {"ranker.head.weight": torch.tensor([[1.0, float("inf")]]), "ranker.head.bias": torch.zeros(1)}


@pytest.mark.parametrize(
    ("settings", "weights", "message"),
    [
        ({}, {}, "the checkpoint must say how its ranker is built, and does not"),
        ({"ranker": FEATURES}, {"ranker.other": torch.zeros(1)}, "the weights do not fit the ranker"),
        ({"ranker": FEATURES}, OVERFLOWN, "the weights hold NaN or infinity; the model has diverged"),
    ],
)
def test_a_checkpoint_that_makes_no_ranker_is_one_line(tmp_path, settings, weights, message):
    file = tmp_path / "a.ckpt"
    torch.save({"state_dict": weights, "pytorch-lightning_version": "2", "hyper_parameters": settings}, file)
    with pytest.raises(InputError, match=message) as error:
        ranker_of(file, "--judge")
    assert str(error.value).startswith(f"--judge {file}: ")
