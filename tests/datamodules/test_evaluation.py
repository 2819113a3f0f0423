"""The option ``evaluation``."""

import pytest

from ltr.datamodules import Evaluation
from ltr.errors import InputError


@pytest.mark.parametrize(("options", "message", "option"), [
    ({"candidates": "bm52"}, "must be one of auto, candidates, bm25, corpus, got 'bm52'", "candidates"),
    ({"candidates": "corpus"}, "candidates 'corpus' need a depth", "depth"),
    ({"depth": 0}, "depth must be at least 1, got 0", "depth"),
    ({"batch_size": 0}, "batch_size must be at least 1, got 0", "batch_size"),
])  # fmt: skip
def test_bad_options_name_their_path(options, message, option):
    with pytest.raises(InputError, match=message) as error:
        Evaluation(**options)
    assert error.value.option == f"evaluation.{option}"


def test_what_needs_no_depth():
    assert Evaluation().depth is None
    assert Evaluation(candidates=None).candidates is None
    assert Evaluation("corpus", depth=7).needed_depth == 7
