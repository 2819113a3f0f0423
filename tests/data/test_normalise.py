"""Each step of a normalisation by hand, and where its statistics come from."""

import io

import numpy as np
import pytest
import torch

from ltr.data import normalise
from ltr.data.letor import FeatureSplit, RowNames, hold_out
from ltr.data.normalise import Normalisation
from tests.world.refusals import refused

LENGTHS = [3, 10, 1, 20, 6]


def split_of(features, lengths, key) -> FeatureSplit:
    features = np.asarray(features, dtype=np.float32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = [str(i) for i in range(len(lengths))]
    labels = np.zeros(len(features), np.float32)
    return FeatureSplit(key, features, labels, offsets, ids, RowNames(len(features)))


def random_split(seed: int, key: str) -> FeatureSplit:
    """40 rows in 5 queries; 4 features of other scales, the last one constant."""
    x = np.random.default_rng(seed).normal([0, 1e6, 3, 0.1], [1, 10, 1e3, 0], (40, 4))
    return split_of(x, LENGTHS, key)


def fitted_and_applied(steps, split):
    return Normalisation(steps).fit(split, 4).apply(split)


EVERY_STEP = ["z-score", "log1p", "quantile", "min-max"]


def test_z_score_has_mean_0_and_variance_1_in_training_and_is_not_fitted_again():
    train = random_split(0, "z-train")
    test = random_split(1, "z-test")
    n = Normalisation(["z-score"]).fit(train, 4)
    z = n.apply(train)
    assert z.dtype == np.float32
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(z.std(axis=0), [1, 1, 1, 0], rtol=1e-5)
    mean = train.features.mean(axis=0, dtype=np.float64)
    deviation = train.features.std(axis=0, dtype=np.float64)
    expected = (test.features - mean)[:, :3] / deviation[:3]
    np.testing.assert_allclose(n.apply(test)[:, :3], expected, rtol=1e-4, atol=1e-6)
    assert (n.apply(test)[:, 3] == 0).all()


def test_values_by_hand():
    """Training values 1, 2, 2, 4. Shares below and up to 2: 1/4 and 3/4, so 1/2; to 3: 3/4; to 9:
    1.

    Mean 9/4, variance 19/16. In the other split queries of values (2, 3, 9) and (2,): min-max (0,
    1/7, 1) and 0.
    """
    train = split_of([[1], [2], [2], [4]], [4], "hand-train")
    other = split_of([[2], [3], [9], [2]], [3, 1], "hand-other")

    def made(*steps):
        return Normalisation(steps).fit(train, 1).apply(other)[:, 0].tolist()

    assert made("quantile") == [0.5, 0.75, 1.0, 0.5]
    assert made("min-max") == pytest.approx([0, 1 / 7, 1, 0])
    scores = [(x - 9 / 4) / np.sqrt(19 / 16) for x in (2, 3, 9, 2)]
    assert made("z-score") == pytest.approx(scores, rel=1e-6)
    assert made("log1p") == pytest.approx(np.log([3, 4, 10, 3]), rel=1e-6)
    negative = split_of([[-3]], [1], "negative")
    log = Normalisation(["log1p"]).fit(train, 1).apply(negative)
    assert log.item() == pytest.approx(-np.log(4))


def test_each_step_is_fitted_on_what_those_before_make():
    train = random_split(2, "chain")
    log = split_of(fitted_and_applied(["log1p"], train), LENGTHS, "chain-log")
    at_once = fitted_and_applied(["log1p", "z-score", "quantile"], train)
    np.testing.assert_array_equal(at_once, fitted_and_applied(["z-score", "quantile"], log))
    in_another_order = fitted_and_applied(["z-score", "log1p", "quantile"], train)
    assert not np.array_equal(at_once, in_another_order)


@pytest.mark.parametrize("n_rows", [30, 3000])
def test_quantile_is_monotone_within_0_and_1_and_about_uniform(n_rows):
    generator = np.random.default_rng(0)
    train = split_of(generator.lognormal(size=(n_rows, 1)), [n_rows], f"q-train-{n_rows}")
    other = split_of(np.linspace(-1, 100, 500)[:, None], [500], f"q-other-{n_rows}")
    n = Normalisation(["quantile"]).fit(train, 1)
    u = n.apply(other)[:, 0]
    assert (np.diff(u) >= 0).all() and u.min() == 0 and u.max() == 1
    ranks = (train.features[:, 0].argsort().argsort() + 0.5) / n_rows
    np.testing.assert_allclose(n.apply(train)[:, 0], ranks, atol=1e-6 if n_rows <= 1001 else 1e-3)


def test_min_max_spans_0_to_1_within_each_query():
    split = random_split(3, "span")
    x = fitted_and_applied(["min-max"], split)
    for query in range(len(split)):
        mine = x[split.rows(query)]
        before = split.features[split.rows(query)]
        has_span = before.max(axis=0) > before.min(axis=0)
        assert (mine.min(axis=0) == 0).all() and (mine.max(axis=0) == has_span).all()
        np.testing.assert_array_equal(mine[:, 0].argsort(), before[:, 0].argsort())


def test_statistics_come_from_the_queries_of_the_split_alone():
    whole = random_split(4, "whole")
    rest, held = hold_out(whole, 0.4)
    rows = np.concatenate([rest.rows(query) for query in range(len(rest))])
    copied = split_of(whole.features[rows], [len(rest.rows(q)) for q in range(len(rest))], "copied")
    for step in EVERY_STEP:
        n = Normalisation([step]).fit(rest, 4)
        expected = fitted_and_applied([step], copied)
        np.testing.assert_allclose(n.apply(rest)[rows], expected, rtol=1e-6, atol=1e-7)
        assert n.apply(held).filename == n.apply(rest).filename  # one table, made once


def test_chunks_change_nothing(monkeypatch):
    train = random_split(5, "chunks")
    whole = Normalisation(EVERY_STEP).fit(train, 4)
    at_once = np.array(whole.apply(train))
    monkeypatch.setenv("LTR_CACHE", str(whole.apply(train).filename) + ".other")
    # A query at a time, and some features at a time.
    monkeypatch.setattr(normalise, "CHUNK_VALUES", 8)
    by_parts = fitted_and_applied(EVERY_STEP, train)
    np.testing.assert_allclose(by_parts, at_once, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [[], *([step] for step in EVERY_STEP)])
def test_features_that_the_data_lacks_are_0(steps):
    train = random_split(6, "narrow")
    padded = split_of(np.pad(train.features, ((0, 0), (0, 2))), LENGTHS, "padded")
    ours, theirs = (Normalisation(steps).fit(split, 6).apply(split) for split in (train, padded))
    np.testing.assert_array_equal(ours, theirs)


def test_without_steps_nothing_is_copied():
    train = random_split(7, "same")
    assert fitted_and_applied([], train) is train.features


def test_a_checkpoint_brings_the_statistics_back():
    train = random_split(8, "saved-train")
    test = random_split(9, "saved-test")
    n = Normalisation(EVERY_STEP).fit(train, 5)
    file = io.BytesIO()
    torch.save(n.state_dict(), file)
    file.seek(0)
    again = Normalisation(EVERY_STEP)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert again.apply(test).filename == n.apply(test).filename
    assert Normalisation(EVERY_STEP).fit(test, 5).apply(test).filename != n.apply(test).filename
    words = r"\['z-score', .* got \[\]; set normalise as it was \(option normalise\)"
    with refused(f"trained with the normalisation {words}"):
        Normalisation([]).load_state_dict(n.state_dict())
    for change, said in (
        ({"steps": None}, "steps must be a list, got null"),
        ({"n_features": "5"}, "n_features must be a whole number or null"),
        ({"0.mean": torch.zeros(4)}, "must have 0.mean of 5 features, and has not"),
        ({"0.mean": [1.0]}, "must have 0.mean of 5 features, and has not"),
    ):
        with refused(said):
            Normalisation.from_state_dict(n.state_dict() | change)
    with refused("the content must be an object, got null"):
        Normalisation.from_state_dict(None)


def test_errors_name_the_option():
    with refused("normalise must be one of z-score, log1p, quantile, min-max, got 'zscore'"):
        Normalisation(["zscore"])
    with refused("the data has 4 features, the model 3: set n_features to 4"):
        Normalisation(["z-score"]).fit(random_split(0, "wide"), 3)
    with refused("the data has 4 features, the model 2: set n_features to 4"):
        Normalisation().fit(split_of([[1, 2]], [1], "two"), 2).apply(random_split(0, "wide"))


def test_a_list_without_documents_stays_empty():
    none = np.zeros((0, 4), dtype=np.float32)
    for step in EVERY_STEP:
        n = Normalisation([step]).fit(random_split(0, f"empty-{step}"), 4)
        assert n.apply_to_list(none).shape == (0, 4)
