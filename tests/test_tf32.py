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


def test_of_two_threads_inside_the_last_one_out_gives_back():
    torch.set_float32_matmul_precision("high")
    first, second = unrounded_products(), unrounded_products()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert precisions() == ("ieee", "ieee")
    second.__exit__(None, None, None)
    assert precisions() == ("tf32", "tf32")


@pytest.mark.parametrize(
    ("said", "holds"),
    [("highest", ("ieee", "ieee")), ("high", ("tf32", "tf32")), ("medium", ("tf32", "bf16"))],
)
@pytest.mark.parametrize("before", ["high", "medium"])
def test_what_the_user_says_meanwhile_stays(before, said, holds):
    torch.set_float32_matmul_precision(before)
    with unrounded_products():
        torch.set_float32_matmul_precision(said)
    assert precisions() == holds and torch.get_float32_matmul_precision() == said


def test_who_comes_in_after_the_user_has_spoken_has_all_digits():
    with unrounded_products():
        torch.set_float32_matmul_precision("high")
        with unrounded_products():
            assert precisions() == ("ieee", "ieee")
    assert precisions() == ("tf32", "tf32")


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
