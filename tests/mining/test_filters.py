import numpy as np
import pytest

from ltr.errors import InputError
from ltr.mining.filters import Candidates, Recipe, apply_filters, sample_negatives

# One query, six candidates, best first; the relevant document (row 10) scores 0.8, and 15 has its
# text.
FOUND = Candidates(
    doc_rows=np.array([[11, 10, 15, 12, 13, -1]]),
    scores=np.array([[0.9, 0.8, 0.8, 0.77, 0.5, -np.inf]], np.float32),
    relevant=np.array([[False, True, True, False, False, False]]),
    relevant_score=np.array([0.8], np.float32),
)
NONE = {"relative": None}


@pytest.mark.parametrize(
    "options, kept, fell",
    [
        (NONE, [11, 12, 13], {"relevant": 2}),
        (
            NONE | {"skip_top": 1},
            [12, 13],
            {"relevant": 2, "skip_top": 1},
        ),  # the relevant ones are not counted
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
    left, counts = apply_filters(FOUND, Recipe(**options))
    assert FOUND.doc_rows[left].tolist() == kept and counts == fell


def test_a_share_of_a_negative_score_lies_below_it():
    """Distances are scores below 0: 95 % of -2 would be -1.9, above the relevant document."""
    found = Candidates(
        doc_rows=np.array([[1, 2, 3]]),
        scores=np.array([[-1.95, -2.05, -2.2]]),
        relevant=np.zeros((1, 3), dtype=bool),
        relevant_score=np.array([-2.0]),
    )
    left, _ = apply_filters(found, Recipe(relative=0.95))  # -2 - 0.05 * 2 = -2.1
    assert left.tolist() == [[False, False, True]]


def test_the_best_n_of_those_left_and_nothing_where_there_are_fewer():
    left = np.array([[True, False, False, True, True, False]])
    rows, scores = sample_negatives(FOUND, left, Recipe(n=2), np.random.default_rng(0))
    assert rows.tolist() == [[11, 12]] and scores.tolist() == [[np.float32(0.9), np.float32(0.77)]]
    rows, scores = sample_negatives(FOUND, left, Recipe(n=5), np.random.default_rng(0))
    assert rows.tolist() == [[11, 12, 13, -1, -1]] and np.isneginf(scores[0, 3:]).all()
    rows, _ = sample_negatives(FOUND, left & False, Recipe(n=9), np.random.default_rng(0))
    assert (rows == -1).all() and rows.shape == (1, 6)


@pytest.mark.parametrize("sampling", ["uniform", "softmax"])
def test_samples_are_different_documents_best_first_drawn_as_often_as_they_should(sampling):
    """Three candidates, one of which is drawn: with temperature 0.1 and gaps of 0.1 the odds are e²
    : e : 1.
    """
    n = 30_000
    found = Candidates(
        np.tile([5, 6, 7, 8], (n, 1)),
        np.tile([0.9, 0.8, 0.7, 0.6], (n, 1)),
        np.zeros((n, 4), bool),
        np.full(n, 1.0),
    )
    left = np.tile([True, False, True, True], (n, 1))
    found = found._replace(scores=np.tile([0.8, 0.75, 0.7, 0.6], (n, 1)))
    rows, _ = sample_negatives(
        found, left, Recipe(n=1, sampling=sampling, temperature=0.1), np.random.default_rng(0)
    )
    shares = [(rows == doc).mean() for doc in (5, 6, 7, 8)]
    odds = np.array([1, 0, 1, 1]) if sampling == "uniform" else np.exp([2, -np.inf, 1, 0])
    np.testing.assert_allclose(
        shares, odds / odds.sum(), atol=0.01
    )  # the deviation of a share is below 0.003
    rows, scores = sample_negatives(
        found, left, Recipe(n=2, sampling=sampling), np.random.default_rng(0)
    )
    assert (rows[:, 0] < rows[:, 1]).all() and (np.diff(scores, axis=1) < 0).all()


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
