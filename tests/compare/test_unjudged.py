"""Documents that nobody judged: what the table of them says."""

import random
from pathlib import Path

import numpy as np
import pytest

from ltr.compare.named_judgements import judgements_of_file
from ltr.compare.query_values import values_by_query
from ltr.compare.ranked_files import measured_experiments, read_rankings
from ltr.compare.unjudged import treated, unjudged_tables
from ltr.metrics import RankingMetric


def test_what_nobody_judged_may_decide(here):
    """Half of the queries: a puts a document that nobody judged on top, b the relevant one."""
    qrels = "".join(f"q{n} 0 r{n} 1\nq{n} 0 i{n} 0\n" for n in range(20))
    Path("qrels.txt").write_text(qrels)
    for name, first in (("a", "u"), ("b", "i")):
        lines = [f"q{n} Q0 {first}{n} 1 2 x\nq{n} Q0 r{n} 2 1 x\n" for n in range(20)]
        Path(f"{name}.trec").write_text("".join(lines))
    judged = judgements_of_file("qrels.txt")
    rankings = read_rankings(["a.trec", "b.trec"], judged)
    metrics = [RankingMetric("RR@10")]
    means = {}
    for unjudged in ("irrelevant", "left out", "relevant"):
        experiments = measured_experiments(*treated(rankings, judged, unjudged), metrics)
        means[unjudged] = [each.means("RR@10")[0] for each in experiments]
    assert means == {"irrelevant": [0.5, 0.5], "left out": [1.0, 0.5], "relevant": [1.0, 0.5]}
    (table,) = unjudged_tables(rankings, judged, metrics, [("b", "a")], 0.05)
    assert table.rows == [
        [
            *("RR@10: b − a", "0.0% / 50.0%", "+0.0000 equal", "-0.5000 worse", "-0.5000 worse"),
            "-0.5000 to +0.0000",
        ]
    ]
    judged_alone = read_rankings(["b.trec"], judged)
    assert unjudged_tables(judged_alone, judged, metrics, [], 0.05) == []


def test_queries_without_a_relevant_document_stay_out_of_the_table(here):
    """A document that nobody judged would bring them in, and turn the difference."""
    Path("qrels.txt").write_text("".join(f"q{n} 0 r{n} {int(n < 10)}\n" for n in range(30)))
    for name, first, second in (("a", "r", "u"), ("b", "v", "r")):
        lines = [f"q{n} Q0 {first}{n} 1 2 x\nq{n} Q0 {second}{n} 2 1 x\n" for n in range(30)]
        Path(f"{name}.trec").write_text("".join(lines))
    judged = judgements_of_file("qrels.txt")
    rankings = read_rankings(["a.trec", "b.trec"], judged)
    (table,) = unjudged_tables(rankings, judged, [RankingMetric("RR@10")], [("a", "b")], 0.05)
    assert table.rows[0][2:-1] == ["+0.5000 better", "+0.0000 equal", "+0.0000 equal"]
    # Of ten queries: u relevant or not, v relevant or not, beside r: 1 - 1 to 1 - 1/2.
    assert table.rows[0][-1] == "+0.0000 to +0.5000"


def test_what_is_not_judged_below_the_first_ten_is_told(here):
    docs = [f"i{n}" for n in range(10)]
    judged_lines = [f"q{n} 0 {doc} 0\n" for n in range(8) for doc in docs]
    relevant = [f"q{n} 0 r 1\n" for n in range(8)]
    Path("qrels.txt").write_text("".join([*judged_lines, *relevant]))
    for name, last in (("a", "u"), ("b", "r")):
        lines = [
            f"q{n} Q0 {doc} 1 {99 - place} x\n"
            for n in range(8)
            for place, doc in enumerate([*docs, last])
        ]
        Path(f"{name}.trec").write_text("".join(lines))
    judged = judgements_of_file("qrels.txt")
    rankings = read_rankings(["a.trec", "b.trec"], judged)
    metrics = [RankingMetric("R@60")]
    (table,) = unjudged_tables(rankings, judged, metrics, [("a", "b")], 0.05)
    assert table.rows[0][1:3] == ["0.0% / 0.0%", "-1.0000 worse"]


BOUNDED = ("nDCG@3", "nDCG_exp", "RR", "AP", "P@2", "R@3", "Success@1", "ERR@3")


@pytest.mark.parametrize("n_files", [4, pytest.param(60, marks=pytest.mark.long)])
def test_the_means_of_all_fillings_lie_within_the_bounds(here, n_files):
    """Of three rankings with ties: grades drawn for each document that nobody judged, measured anew."""
    rng = random.Random(0)
    metrics = [RankingMetric(name) for name in BOUNDED]
    for _ in range(n_files):
        queries = [f"q{n}" for n in range(3)]
        lines = [f"{query} 0 d{n} {rng.randint(0, 3)}\n" for query in queries for n in range(3)]
        Path("qrels.txt").write_text("".join([*lines, "q0 0 r 3\nq1 0 r 1\n"]))
        for name in ("a.1", "a.2", "b", "c"):
            lines = []
            for query in queries:
                for doc in rng.sample([f"d{n}" for n in range(7)], rng.randint(1, 6)):
                    lines.append(f"{query} Q0 {doc} 1 {rng.randint(0, 3)} x\n")
            Path(f"{name}.trec").write_text("".join([*lines, "q0 Q0 r 1 0.5 x\n"]))
        judged = judgements_of_file("qrels.txt")
        rankings = read_rankings(["a=a.*.trec", "b.trec", "c.trec"], judged)
        pairs = [("a", "b"), ("c", "b"), ("c", "a")]
        tables = unjudged_tables(rankings, judged, metrics, pairs, 0.05)
        if not tables:
            continue
        cells = {row[0]: row[-1].split(" to ") for row in tables[0].rows}
        (alone,) = unjudged_tables(rankings, judged, metrics[:1], pairs, 0.05)
        assert alone.rows[0][-1].split(" to ") == cells["nDCG@3: a − b"]
        every = values_by_query(rankings[0].lists, judged.lists, metrics)
        ranked = rankings[0].lists
        for ranking in rankings[1:]:
            ranked = ranked.joined(ranking.lists)
        for _ in range(25):
            share = rng.random()
            grades = [rng.choice([1, 2, 3]) * (rng.random() < share) for _ in ranked.doc_rows]
            filled = judged.with_documents(ranked._replace(values=np.float32(grades)))
            means = []
            for ranking in rankings:
                found = values_by_query(ranking.lists, filled.lists, metrics)
                means.append(np.nanmean(np.where(np.isnan(every), np.nan, found), axis=1))
            of_name = {"a": (means[0] + means[1]) / 2, "b": means[2], "c": means[3]}
            for name, baseline in pairs:
                for metric, difference in zip(
                    BOUNDED, of_name[name] - of_name[baseline], strict=True
                ):
                    low, high = map(float, cells[f"{metric}: {name} − {baseline}"])
                    assert low - 6e-5 <= difference <= high + 6e-5, (metric, name, baseline)
