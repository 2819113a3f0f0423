"""Labels of likely false negatives."""

import math

import numpy as np

from ltr.mining.audit import Suspects


def test_labels_of_the_policies():
    """Gaps of 0 and log 3: soft labels 1/2 and 3/4."""
    scores = np.array([1.0, 1 + math.log(3)])
    one = Suspects(*np.zeros((6, 2)))._replace(scores=scores, relevant_scores=np.ones(2))
    np.testing.assert_allclose(one.labels("soft", 2.0), [0.5, 0.75])
    assert one.labels("relabel", 2.0).tolist() == [2.0, 2.0]
    assert np.isnan(one.labels("drop", 2.0)).all()
    far = one._replace(scores=np.array([-2000.0, 2000.0])).labels("soft", 2.0)
    assert 0 < far[0] < 1e-5 and 1 - 1e-5 < far[1] < 1
