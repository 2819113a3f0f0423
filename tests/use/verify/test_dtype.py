"""Half precision moves every number by a little: ``dtype`` is the layer, and no other is blamed."""

import numpy as np
import pytest

from ltr.use.verify.compared_layers import dtype_fault
from ltr.use.verify.diagnosis import rounding_fault
from tests.use.verify.test_verify_library import planted, settings, verify

SMALL = np.array([0.004, 0.01, 0.02, 0.004, 0.02])  # 0.02 is the bound of hidden states


@pytest.mark.parametrize(
    ("errors", "is_named"),
    [
        # 0.8 of the way from the first to the sixth is the fifth, and its bound is 0.03 of the spread.
        ([0.01, 0.02, 0.02, 0.03, 0.03, 0.9], True),
        ([0.01, 0.02, 0.02, 0.03, 0.04, 0.9], False),
        # Where the middle of the third and the fourth is right, the type of all numbers is not wrong.
        ([0.0, 0.0, 0.0, 0.0, 0.03, 0.03], False),
        ([0.0, 0.0, 0.0, 0.01, 0.03, 0.03], True),
    ],
)
@pytest.mark.parametrize("spread", [1.0, 10.0])
def test_answers_of_a_server_by_hand(errors, is_named, spread):
    found = rounding_fault(np.array(errors) * spread, spread, tolerance=1e-4 * spread)
    assert (found is not None and found.layer == "dtype") == is_named


@pytest.mark.parametrize(
    ("dtype", "states", "errors", "is_named"),
    [
        ("bfloat16", SMALL, [0.01, 0.02, 0.02, 0.03, 0.03, 0.9], True),
        ("float16", SMALL, [0.01, 0.02, 0.02, 0.03, 0.03, 0.9], True),
        ("float32", SMALL, [0.01, 0.02, 0.02, 0.03, 0.03, 0.9], False),
        ("bfloat16", SMALL, [0.01, 0.02, 0.02, 0.03, 0.04, 0.9], False),
        ("bfloat16", SMALL + 0.001, [0.01, 0.02, 0.02, 0.03, 0.03, 0.9], False),
        # Within the tolerance: all is right.
        ("bfloat16", SMALL, [0.0, 0.0, 0.0, 0.0, 0.0, 1e-5], False),
    ],
)
def test_layers_of_a_library_by_hand(dtype, states, errors, is_named):
    found = dtype_fault(dtype, states, np.array(errors), tolerance=1e-4)
    assert (found is not None and found.layer == "dtype") == is_named


def test_a_fault_beside_half_precision_is_named(proofs, tmp_path, capsys):
    """It moves numbers by more: here other tokens are pooled."""
    folder = planted(proofs["dual"], tmp_path / "half", settings("config.json", dtype="bfloat16"))
    settings("1_Pooling/config.json", pooling_mode="cls")(folder)
    code, said = verify(folder, "sentence-transformers", capsys)
    assert not said.startswith("dtype: ") and code == 1, said
