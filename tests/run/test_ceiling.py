"""The best value that candidates allow."""

import numpy as np
import pytest
import yaml

from ltr.__main__ import main
from ltr.data.query_lists import LabelledList
from ltr.data.sampling.plan import EvalBatches
from ltr.metrics import RankingMetric
from ltr.run.ceiling import ceiling
from ltr.run.summary import ceiling_line
from tests.run.measured import results
from tests.world.collections import write_collection


def lists(*given):
    """Each a list of labels of candidates, and the grades of all relevant documents."""
    arrays = [
        (np.array(labels, np.float32), np.array(ideal, np.float32)) for labels, ideal in given
    ]
    made = [
        LabelledList(n, np.arange(len(labels)), labels, ideal=ideal)
        for n, (labels, ideal) in enumerate(arrays)
    ]
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
    assert ceiling([RankingMetric("AP", empty="one")], pools.batches)["AP"] == pytest.approx(
        2.5 / 4
    )
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
    file.write_text(
        "".join(
            line
            for line in file.read_text().splitlines(keepends=True)
            if not line.startswith("test-q3 Q0 test-q3-d0 ")
        )
    )
    config = {
        "model": {
            "ranker": {
                "class_path": "PairWiseBertRanker",
                "init_args": {"backbone": backbone, "max_length": 24},
            },
            "loss": "ltr.losses.SoftmaxLoss",
        },
        "data": {"class_path": "TripletDataModule", "init_args": {"path": str(folder)}},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    assert (
        main(
            [
                "test",
                "--config",
                str(tmp_path / "c.yaml"),
                "--trainer.default_root_dir",
                str(tmp_path / "run"),
            ]
        )
        == 0
    )
    found = results(tmp_path)["test"]
    assert found["ceiling"] == pytest.approx(
        {"nDCG@10": 29 / 30, "RR@10": 29 / 30, "AP": 29 / 30, "R": 29 / 30}
    )
    assert (
        found["AP"] < 29 / 30
        and "no ranker of them can reach more than nDCG@10 0.9667" in capsys.readouterr().out
    )
