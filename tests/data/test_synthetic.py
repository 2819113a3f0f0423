"""The made-up task: its grades follow from the true weights and the noise."""

import pickle

import numpy as np
import torch

from ltr.data.synthetic import synthetic_splits, true_weights
from ltr.metrics import swapped_pairs


def swapped_by(weights: np.ndarray, seed: int) -> float:
    dev = synthetic_splits(seed)["dev"]
    scores = torch.from_numpy(dev.features @ weights)[None]
    labels = torch.from_numpy(dev.labels)[None]
    return swapped_pairs(scores, labels, torch.ones_like(labels, dtype=torch.bool)).item()


def test_shapes_and_grades():
    splits = synthetic_splits(0)
    for name, n_rows in (("train", 1000), ("dev", 500), ("test", 500)):
        split = splits[name]
        assert len(split) == 1 and split.features.shape == (n_rows, 100)
        assert split.features.dtype == split.labels.dtype == np.float32
        assert set(split.labels.tolist()) == {0, 1, 2, 3, 4}
        assert split.rows(0).tolist() == list(range(n_rows))
    assert len(splits) == 3


def test_a_grade_counts_the_borders_at_or_below_the_score():
    """Of 2,000 scores with a deviation of some 10, the shares between the borders are about 1 / (10
    sqrt(2 pi)) = 4%.
    """
    labels = np.concatenate([synthetic_splits(0)[name].labels for name in ("train", "dev", "test")])
    shares = np.bincount(labels.astype(int)) / 2000
    assert 0.35 < shares[0] < 0.6 and 0.35 < shares[4] < 0.6
    assert all(0.025 < share < 0.055 for share in shares[1:4])


def test_the_true_weights_leave_only_the_noise():
    """Over 200 seeds 636 of the 124,750 pairs of the dev list stand in the wrong order, with a
    deviation of 182 between seeds: the mean of 8 lies within three of its standard errors, 193."""
    assert abs(np.mean([swapped_by(true_weights(seed), seed) for seed in range(8)]) - 636) < 193
    assert swapped_by(-true_weights(0), 0) > 60_000
    assert swapped_by(true_weights(1), 0) > 20_000


def test_a_seed_is_a_task():
    one = synthetic_splits(1)
    same = synthetic_splits(1)
    other = synthetic_splits(2)
    np.testing.assert_array_equal(one["test"].features, same["test"].features)
    assert len({split.key for splits in (one, other) for split in splits.values()}) == 6
    assert not np.array_equal(one["test"].features, other["test"].features)
    assert not np.array_equal(one["dev"].features, one["test"].features)
    theirs = pickle.loads(pickle.dumps(one["dev"]))
    np.testing.assert_array_equal(theirs.labels, one["dev"].labels)
