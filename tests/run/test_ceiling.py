"""The best value that candidates allow."""

import numpy as np
import pytest

from ltr.__main__ import main
from ltr.data.query_lists import LabelledList
from ltr.data.sampling.plan import EvalBatches
from ltr.metrics import RankingMetric
from ltr.run.ceiling import ceiling
from ltr.run.summary import ceiling_line
from tests.run.measured import results
from tests.world.collections import write_collection
from tests.world.configurations import write_config


def lists(*given):
    """Each a list of labels of candidates, and the grades of all relevant documents."""
    made = []
    for number, (labels, ideal) in enumerate(given):
        labels = np.array(labels, np.float32)
        ideal = np.array(ideal, np.float32)
        made.append(LabelledList(number, np.arange(len(labels)), labels, ideal=ideal))
    pools = EvalBatches.__new__(EvalBatches)
    pools.batches = [made[:2], made[2:], []]
    return pools


def test_the_ceiling_by_hand():
    """One query with all it needs, one with 1 of its 2, one with nothing to find, one with none of
    its 1.

    AP: 1, 1/2 and 0. nDCG@1: 1, 1 (a grade of 2 is the best there is), 0; P@2: 1/2, 1/2, 0. Recall:
    1, 1/2, 0.
    """
    pools = lists(([0, 1, 0], [1]), ([2, 0], [2, 1]), ([0, 0], []), ([0], [1]))
    metrics = [RankingMetric(name) for name in ("AP", "nDCG@1", "P@2", "swapped_pairs", "tau")]
    assert ceiling(metrics, pools.batches) == pytest.approx(
        {"AP": 0.5, "nDCG@1": 2 / 3, "P@2": 1 / 3, "R": 0.5}
    )
    with_empty = ceiling([RankingMetric("AP", empty="one")], pools.batches)
    assert with_empty["AP"] == pytest.approx(2.5 / 4)
    assert ceiling(metrics, lists(([0, 0], [])).batches) == {}
    assert ceiling_line({"ceiling": {"AP": 0.5, "P@2": 1.0, "R": 0.5}}).endswith(
        "50.0% of the relevant documents; no ranker of them can reach more than AP 0.5000"
    )
    assert (
        ceiling_line({"ceiling": {"RR@10": 1.0, "R": 0.5}})
        == "the candidates hold 50.0% of the relevant documents"
    )
    assert ceiling_line({"ceiling": {"AP": 1.0, "R": 1.0}}) is None and ceiling_line({}) is None


def test_a_pool_without_a_relevant_document_lowers_the_ceiling_of_a_test(
    tmp_path, backbone, capsys
):
    """30 queries with one relevant document each, among the candidates; of one query it is taken
    away.
    """
    folder = write_collection(tmp_path / "c")
    file = folder / "candidates/test.trec"
    lines = file.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("test-q3 Q0 test-q3-d0 ")]
    assert len(kept) == len(lines) - 1
    file.write_text("".join(kept))
    config = write_config(tmp_path, backbone, folder)
    assert main(["test", "--config", str(config)]) == 0
    found = results(tmp_path)["test"]
    names = ("nDCG@10", "RR@10", "AP", "R")
    assert found["ceiling"] == pytest.approx(dict.fromkeys(names, 29 / 30))
    line = "no ranker of them can reach more than nDCG@10 0.9667"
    assert found["AP"] < 29 / 30 and line in capsys.readouterr().out
