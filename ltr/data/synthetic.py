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
    r"""Three splits of one query each, held in memory: ``train`` has 1,000 documents, ``dev`` and
    ``test`` have 500.

    .. math::
        w \sim N(0, 1)^{100}, \quad X_{ij} \sim N(0, 1), \quad s = X w + \varepsilon, \quad \varepsilon_i \sim N(0, 1)

    The grade is 0 for :math:`s < -1`, 1 for :math:`-1 \le s < 0`, 2 and 3 for the next two steps of
    1, and 4 for :math:`s \ge 2`. All splits share w.
    """
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(N_FEATURES)  # the first draw, as true_weights() repeats it
    splits = {}
    for name, n_rows in N_ROWS.items():
        features = rng.standard_normal((n_rows, N_FEATURES))
        noise = rng.standard_normal(n_rows)
        grades = np.digitize(features @ w + noise, GRADE_BORDERS)
        splits[name] = FeatureSplit(
            key=f"synthetic-1-{seed}-{name}",
            features=features.astype(np.float32),
            labels=grades.astype(np.float32),
            offsets=np.array([0, n_rows]),
            query_ids=["1"],
            doc_ids=RowNames(n_rows),
        )
    return splits
