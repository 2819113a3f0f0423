"""A made-up learning-to-rank task whose best ranker is known: grades of a noisy linear score of
random features.
"""

import numpy as np

from ltr.data.letor import FeatureSplit, RowNames

N_FEATURES = 100
N_ROWS = {"train": 1000, "dev": 500, "test": 500}
GRADE_BORDERS = (-1, 0, 1, 2)


def true_weights(seed: int) -> np.ndarray:
    """The weights ``w [100]`` float64 behind :func:`synthetic_splits` of this seed: no ranker can
    order better than by X w.
    """
    return np.random.default_rng(seed).standard_normal(N_FEATURES)


def synthetic_splits(seed: int) -> dict[str, FeatureSplit]:
    r"""Three splits of one query each, held in memory: ``train`` of 1,000 documents, ``dev`` and
    ``test`` of 500.

    .. math::
        w \sim N(0, 1)^{100}, \quad X_{ij} \sim N(0, 1), \quad s = X w + \varepsilon, \quad \varepsilon_i \sim N(0, 1)

    The grade is 0 for :math:`s < -1`, then 1, 2, 3 up to 0, 1, 2, and 4 for :math:`s \ge 2`. All
    splits share w.
    """
    generator = np.random.default_rng(seed)
    w = generator.standard_normal(N_FEATURES)
    splits = {}
    for name, n_rows in N_ROWS.items():
        features = generator.standard_normal((n_rows, N_FEATURES))
        grades = np.digitize(features @ w + generator.standard_normal(n_rows), GRADE_BORDERS)
        arrays = features.astype(np.float32), grades.astype(np.float32), np.array([0, n_rows])
        splits[name] = FeatureSplit(f"synthetic-1-{seed}-{name}", *arrays, ["1"], RowNames(n_rows))
    return splits
