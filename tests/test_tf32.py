"""Products keep all digits of float32 in a context, whatever the user allowed; behind it, his word
holds again.
"""

import pytest
import torch
from torch.backends import cuda, mkldnn

from ltr.search import exact
from ltr.tf32 import rounds_factors, unrounded_products
from tests.search.indexed import build, embeddings


def precisions() -> tuple[str, str]:
    return cuda.matmul.fp32_precision, mkldnn.matmul.fp32_precision


def forget() -> None:
    """As in a new process."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.fp32_precision = "none"
    cuda.matmul.fp32_precision = "none"
    mkldnn.matmul.fp32_precision = "none"


@pytest.fixture(autouse=True)
def settings():
    forget()
    yield
    forget()


@pytest.mark.parametrize(("allowed", "was"), [("high", "tf32"), ("medium", "bf16")])
def test_what_was_allowed_for_all_of_torch_does_not_hold_inside(allowed, was):
    torch.set_float32_matmul_precision(allowed)
    assert precisions() == ("tf32", was)
    with unrounded_products():
        assert precisions() == ("ieee", "ieee")
        assert not rounds_factors(cuda.matmul) and not rounds_factors(mkldnn.matmul)
    assert precisions() == ("tf32", was) and rounds_factors(cuda.matmul)
    # torch refuses to say where old and new settings contradict each other.
    assert torch.get_float32_matmul_precision() == allowed
    assert cuda.matmul.allow_tf32


def test_an_exception_gives_the_settings_back():
    cuda.matmul.allow_tf32 = True
    with pytest.raises(KeyError), unrounded_products():
        raise KeyError
    assert precisions() == ("tf32", "none")


def test_what_was_allowed_for_all_backends_stays_with_them():
    torch.backends.fp32_precision = "tf32"
    with unrounded_products():
        assert precisions() == ("ieee", "ieee")
    assert precisions() == ("tf32", "tf32")
    torch.backends.fp32_precision = "none"
    assert precisions() == ("none", "none")


def test_without_a_word_nothing_is_set():
    with unrounded_products():
        assert precisions() == ("none", "none")


def test_an_exact_search_rounds_no_products(monkeypatch):
    torch.set_float32_matmul_precision("medium")
    seen = set()
    scores = exact._scores

    def recorded(*args):
        seen.add(precisions())
        return scores(*args)

    monkeypatch.setattr(exact, "_scores", recorded)
    build(embeddings(30), "dot").search(embeddings(3), 2)
    assert seen == {("ieee", "ieee")} and precisions() == ("tf32", "bf16")
