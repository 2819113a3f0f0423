import numpy as np
import pytest

from ltr.errors import InputError
from ltr.mining.filters import Recipe, apply_filters, sample_negatives

# One query, six candidates, best first; the relevant document (row 10) scores 0.8, and 15 has its
# text.
ROWS = np.array([[11, 10, 15, 12, 13, -1]])
SCORES = np.array([[0.9, 0.8, 0.8, 0.77, 0.5, -np.inf]], np.float32)
IS_RELEVANT = np.array([[False, True, True, False, False, False]])
NONE = {"relative": None}


@pytest.mark.parametrize(
    "options, kept, fell",
    [
        (NONE, [11, 12, 13], {"relevant": 2}),
        # The relevant ones are not counted.
        (NONE | {"skip_top": 1}, [12, 13], {"relevant": 2, "skip_top": 1}),
        (NONE | {"max_score": 0.8}, [12, 13], {"relevant": 2, "max_score": 1}),
        (NONE | {"absolute": 0.02}, [12, 13], {"relevant": 2, "absolute": 1}),  # above 0.78
        (NONE | {"absolute": 0.05}, [13], {"relevant": 2, "absolute": 2}),  # above 0.75
        (NONE | {"absolute": -0.2}, [11, 12, 13], {"relevant": 2, "absolute": 0}),  # above 1
        ({}, [13], {"relevant": 2, "relative": 2}),  # above 0.76
        ({"relative": 0.97}, [12, 13], {"relevant": 2, "relative": 1}),  # above 0.776
        ({"relative": 1.0, "skip_top": 2}, [13], {"relevant": 2, "skip_top": 2, "relative": 0}),
    ],
)
def test_a_filter_leaves_out_what_it_says_and_counts_it(options, kept, fell):
    score = np.array([0.8], np.float32)
    left, counts = apply_filters(ROWS, SCORES, IS_RELEVANT, score, Recipe(**options))
    assert left[left >= 0].tolist() == kept and counts == fell
    assert ((left == ROWS) | (left == -1)).all(), "each stays in its place"


def test_a_share_of_a_negative_score_lies_below_it():
    """Distances are scores below 0: 95 % of -2 would be -1.9, above the relevant document."""
    scores = np.array([[-1.95, -2.05, -2.2]])
    none = np.zeros((1, 3), dtype=bool)
    rows = np.array([[1, 2, 3]])
    left, _ = apply_filters(rows, scores, none, np.array([-2.0]), Recipe(relative=0.95))
    assert left.tolist() == [[-1, -1, 3]]  # -2 - 0.05 * 2 = -2.1


def test_the_best_n_of_those_left_and_nothing_where_there_are_fewer():
    left = np.array([[11, -1, -1, 12, 13, -1]])
    rng = np.random.default_rng(0)
    assert sample_negatives(left, SCORES, Recipe(n=2), rng).tolist() == [[11, 12]]
    assert sample_negatives(left, SCORES, Recipe(n=5), rng).tolist() == [[11, 12, 13, -1, -1]]
    none = np.full_like(left, -1)
    assert sample_negatives(none, SCORES, Recipe(n=9), rng).tolist() == none.tolist()


@pytest.mark.parametrize("sampling", ["uniform", "softmax"])
def test_samples_are_different_documents_best_first_drawn_as_often_as_they_should(sampling):
    """One of three: with temperature 0.1 and gaps of 0.1 the odds are e² : e : 1."""
    n = 30_000
    left = np.tile([5, -1, 7, 8], (n, 1))
    scores = np.tile([0.8, 0.75, 0.7, 0.6], (n, 1))
    recipe = Recipe(n=1, sampling=sampling, temperature=0.1)
    rows = sample_negatives(left, scores, recipe, np.random.default_rng(0))
    shares = [(rows == doc).mean() for doc in (5, 6, 7, 8)]
    odds = np.array([1, 0, 1, 1]) if sampling == "uniform" else np.exp([2, -np.inf, 1, 0])
    # The deviation of a share is below 0.003.
    np.testing.assert_allclose(shares, odds / odds.sum(), atol=0.01)
    recipe = Recipe(n=2, sampling=sampling)
    rows = sample_negatives(left, scores, recipe, np.random.default_rng(0))
    assert (rows[:, 0] < rows[:, 1]).all(), "the smaller rows have the better scores"


@pytest.mark.parametrize(
    "options, text",
    [
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"skip_top": -1}, "skip_top must be at least 0, got -1"),
        ({"relative": 0.0}, "relative must be above 0 and at most 1, got 0.0"),
        ({"relative": 1.5}, "relative must be above 0 and at most 1, got 1.5"),
        ({"sampling": "best"}, "sampling must be one of top, uniform, softmax, got 'best'"),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
    ],
)
def test_options_out_of_bounds(options, text):
    with pytest.raises(InputError, match=text):
        Recipe(**options)
