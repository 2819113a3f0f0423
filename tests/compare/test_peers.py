"""Measures and tests of files against those of ranx and PyTerrier, where these are installed:
``pip install ranx python-terrier``. Neither needs Java for this.
"""

import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ltr.compare.named_judgements import judgements_of_file
from ltr.compare.query_values import values_by_query
from ltr.compare.ranked_files import read_rankings
from ltr.compare.statistics import estimate, randomisation_p
from ltr.metrics import RankingMetric

METRICS = ("nDCG@10", "AP", "RR@10", "P@5", "R@10")
IN_RANX = ("ndcg@10", "map", "mrr@10", "precision@5", "recall@10")
N_PAIRS = 200
N_FLIPS = 1000

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


def write_pair(rng: random.Random) -> tuple[dict, dict, dict]:
    """Judgements and two rankings of 8 to 40 queries, one perhaps better, as files and as they are."""
    docs = [f"d{n}" for n in range(30)]
    qrels = {}
    runs: tuple[dict, dict] = ({}, {})
    gain = rng.random()
    for number in range(rng.randint(8, 40)):
        query = f"q{number:02}"
        qrels[query] = {doc: rng.choice([0, 0, 1, 2]) for doc in rng.sample(docs, 12)} | {"d0": 1}
        for run, better in zip(runs, (0, gain), strict=True):
            run[query] = {
                doc: round(rng.gauss(better * qrels[query].get(doc, 0), 1), 6)
                for doc in rng.sample(docs, 20)
            }
    judged = [f"{q} 0 {d} {g}\n" for q, of_query in qrels.items() for d, g in of_query.items()]
    Path("qrels.txt").write_text("".join(judged))
    for name, run in zip("ab", runs, strict=True):
        lines = [
            f"{q} Q0 {d} 1 {s!r} x\n" for q, of_query in run.items() for d, s in of_query.items()
        ]
        Path(f"{name}.trec").write_text("".join(lines))
    return qrels, *runs


def values() -> np.ndarray:
    """``[2, M, Q]`` of both rankings."""
    judged = judgements_of_file("qrels.txt")
    metrics = [RankingMetric(name) for name in METRICS]
    rankings = read_rankings(["a.trec", "b.trec"], judged)
    return np.stack([values_by_query(each.lists, judged.lists, metrics) for each in rankings])


def test_values_and_p_are_those_of_ranx(here):
    """p of few queries is never below what their number can show. Flips are drawn there, and sums that
    are equal but for rounding do not always count as far: its p may be too small, but is not larger.
    """
    ranx = pytest.importorskip("ranx")
    rng = random.Random(0)
    for _ in range(N_PAIRS):
        qrels, *runs = write_pair(rng)
        ours = values()
        for place, name in enumerate(IN_RANX):
            theirs = []
            for of_run, run in zip(ours, runs, strict=True):
                judged = ranx.Qrels(qrels)
                theirs.append(ranx.evaluate(judged, ranx.Run(run), name, return_mean=False))
                np.testing.assert_allclose(of_run[place], theirs[-1], atol=3e-7)
            p, _ = ranx.statistical_tests.paired_student_t_test(*theirs)
            same = estimate(theirs[1][None], theirs[0][None])
            assert same.p == pytest.approx(max(p, same.least_p), rel=1e-9)
            found = estimate(ours[1, place][None], ours[0, place][None])
            assert found.p == pytest.approx(max(p, same.least_p), abs=1e-6)
            p, _ = ranx.statistical_tests.fisher_randomization_test(*theirs, N_FLIPS)
            exact = randomisation_p(theirs[1] - theirs[0])
            error = 5 * np.sqrt(exact * (1 - exact) / N_FLIPS) + 2 / N_FLIPS
            assert p <= exact + error
            if name in ("ndcg@10", "map"):
                assert p >= exact - error


def test_means_and_p_are_those_of_pyterrier(here):
    pyterrier = pytest.importorskip("pyterrier")
    measures = pytest.importorskip("ir_measures")
    rng = random.Random(1)
    in_theirs = [measures.parse_measure(name) for name in METRICS]
    for _ in range(N_PAIRS):
        qrels, *runs = write_pair(rng)
        ours = values()
        topics = pd.DataFrame({"qid": list(qrels), "query": "x"})
        rows = [(q, d, g) for q, of_query in qrels.items() for d, g in of_query.items()]
        judged = pd.DataFrame(rows, columns=["qid", "docno", "label"])
        frames = []
        for run in runs:
            rows = [(q, d, s) for q, of_query in run.items() for d, s in of_query.items()]
            frame = pd.DataFrame(rows, columns=["qid", "docno", "score"])
            frames.append(pyterrier.model.add_ranks(frame))
        table = pyterrier.Experiment(
            frames, topics, judged, in_theirs, names=["a", "b"], baseline=0, test="t"
        )
        for place, name in enumerate(METRICS):
            np.testing.assert_allclose(ours[:, place].mean(axis=1), table[name], atol=3e-7)
            found = estimate(ours[1, place][None], ours[0, place][None])
            p = max(table[f"{name} p-value"][1], found.least_p)
            assert found.p == pytest.approx(p, abs=1e-6)
