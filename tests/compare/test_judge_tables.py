"""A machine's labels beside those of people: what is compared, what is refused, what is told."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from ltr.compare.judge_agreement import JudgedPairs, agreement_line, bias_table, kappa
from ltr.compare.judge_tables import JudgedRankings, judge_tables
from ltr.compare.machine_labels import powered_difference
from ltr.compare.named_judgements import judgements_of_data
from ltr.compare.ranked_files import read_rankings
from ltr.data.collection import open_collection
from ltr.data.judge_labels import import_labels
from tests.world.commands import refusal, run_ltr
from tests.world.refusals import refused

N_HUMAN = 20
N_ALL = 120
DOCS = 4


def rows(n_queries: int = N_ALL, seed: int = 0):
    """For each query the place of its relevant document by people, that by the machine, and the orders
    of two rankings.
    """
    rng = np.random.default_rng(seed)
    relevant = rng.integers(DOCS, size=n_queries)
    machine = np.where(rng.random(n_queries) < 0.8, relevant, rng.integers(DOCS, size=n_queries))
    orders = {}
    for name, noise in (("low", 2.0), ("high", 0.5)):
        scores = np.eye(DOCS)[relevant] + rng.normal(0, noise, (n_queries, DOCS))
        orders[name] = np.argsort(-scores, axis=1)
    return relevant, machine, orders


def reciprocal_ranks(orders: np.ndarray, relevant: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.argmax(orders == relevant[:, None], axis=1))


def write_run(name: str, orders: np.ndarray, queries=range(N_ALL)) -> None:
    lines = []
    for query in queries:
        for rank, doc in enumerate(orders[query]):
            lines.append(f"q{query} Q0 d{query}-{doc} {rank + 1} {DOCS - rank} x\n")
    Path(f"{name}.trec").write_text("".join(lines))


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder ``mine``: people have judged 20 of 120 queries in test, a machine all."""
    monkeypatch.chdir(tmp_path)
    relevant, machine, orders = rows()
    folder = Path("mine")
    (folder / "qrels").mkdir(parents=True)
    docs = [(query, doc) for query in range(N_ALL) for doc in range(DOCS)]
    texts = [{"_id": f"d{q}-{d}", "text": f"text {q} {d}" + " long" * d} for q, d in docs]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    texts = [{"_id": f"q{q}", "text": f"query {q}"} for q in range(N_ALL)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    by_people = [f"q{q}\td{q}-{d}\t{int(relevant[q] == d)}\n" for q, d in docs if q < N_HUMAN]
    (folder / "qrels/test.tsv").write_text("".join(by_people))
    labels = [
        {"query_id": f"q{q}", "doc_id": f"d{q}-{d}", "label": int(machine[q] == d)} for q, d in docs
    ]
    Path("labels.jsonl").write_text("".join(json.dumps(label) + "\n" for label in labels))
    for name, order in orders.items():
        write_run(name, order)
    return tmp_path


def imported() -> None:
    import_labels(Path("labels.jsonl"), open_collection("mine"), "test", "gpt", model="gpt-5")


def tables_of(words=("high.trec", "low.trec"), metric="RR@10", baseline="low"):
    human = judgements_of_data("mine")
    judged = JudgedRankings(words, human, "gpt")
    pairs = [("high", baseline)]
    return judge_tables(judged, read_rankings(words, human), [metric], pairs, 0.05)


def cells(table, row: int = 0) -> dict[str, str]:
    return dict(zip(table.header, table.rows[row], strict=True))


def test_the_numbers_are_those_of_the_values_by_hand(here):
    imported()
    relevant, machine, orders = rows()
    by_people = [reciprocal_ranks(orders[name], relevant)[None] for name in ("high", "low")]
    by_machine = [reciprocal_ranks(orders[name], machine)[None] for name in ("high", "low")]
    expected = powered_difference(
        tuple(values[:, :N_HUMAN] for values in by_people),
        tuple(values[:, :N_HUMAN] for values in by_machine),
        tuple(values[:, N_HUMAN:] for values in by_machine),
    )
    (of_differences, of_biases, of_documents), told = tables_of()
    found = cells(of_differences)
    low, high = expected.both.interval()
    assert found["comparison"] == "RR@10: high − low" and found["verdict"] == "better"
    assert found["people"] == f"{expected.humans.mean:+.4f}"
    assert found["with the judge"] == f"{expected.both.mean:+.4f}"
    assert found["its 95 % interval"] == f"{low:+.4f} to {high:+.4f}"
    assert found["width to people's"] == f"{expected.relative_width:.2f}"
    assert found["correlation"] == f"{expected.correlation:.2f}"
    assert float(found["± with 100 more by people"]) < float(found["±"])
    assert of_differences.title.startswith("people at 20 queries, gpt at these and 100 others")
    bias = cells(of_biases)
    assert bias["people"] == f"{by_people[0][0, :N_HUMAN].mean():.4f}"
    assert bias["judge"] == f"{by_machine[0][0, :N_HUMAN].mean():.4f}"
    assert bias["judge elsewhere"] == f"{by_machine[0][0, N_HUMAN:].mean():.4f}"
    assert bias["no label of the first 10"] == "0.0%"
    last = sum(orders["low"][q, 3] == orders["high"][q, 3] for q in range(N_HUMAN))
    assert [row[1] for row in of_documents.rows][-3:] == [f"{4 * N_HUMAN - last}", f"{last}", "0"]
    text = "\n".join(told)
    agreement = cohen_kappa_score(
        np.eye(DOCS)[relevant[:N_HUMAN]].ravel(), np.eye(DOCS)[machine[:N_HUMAN]].ravel()
    )
    assert (
        f"judge gpt, model gpt-5: 80 documents are judged by both, Cohen's kappa of grades {agreement:.2f}"
        in text
    )
    assert "people have judged fewer than 50 of these queries" in text
    assert "with the judge, of one seed: of these models alone" in text


def test_a_metric_that_counts_what_is_wrong_turns_the_verdict(here):
    imported()
    (of_differences, *_), _ = tables_of(metric="swapped_pairs")
    found = cells(of_differences)
    assert found["verdict"] == "better" and float(found["with the judge"]) < 0


def test_seeds_are_those_of_the_comparison(here):
    imported()
    for seed in (1, 2):
        _, _, orders = rows(seed=0)
        write_run(f"low.{seed}", orders["low"][:, ::-1] if seed == 2 else orders["low"])
    words = ("high.trec", "low=low.[12].trec")
    (of_differences, of_biases, _), told = tables_of(words)
    assert cells(of_biases, 1)["ranking"] == "RR@10: low"
    assert "of one seed" in "\n".join(told), "high has one"
    assert cells(of_differences)["with the judge"] != ""


def test_queries_of_other_splits_are_left_out(here):
    """Rankers may have been trained on them."""
    lines = [f"q{query}\td{query}-0\t1\n" for query in range(60, N_ALL)]
    Path("mine/qrels/train.tsv").write_text("".join(lines))
    imported()
    (of_differences, *_), told = tables_of()
    assert "people at 20 queries, gpt at these and 40 others" in of_differences.title
    assert "gpt's labels: queries that people have judged in other splits are left out: 60" in told


def test_rankings_must_have_the_queries_of_both_alike(here):
    """One that was made for the judged queries alone would find nothing for the others."""
    imported()
    _, _, orders = rows()
    write_run("short", orders["low"], range(N_HUMAN))
    message = "short.trec: a ranking must have the queries of people and of gpt alike, got 20 of 20 and 0 of 100; rank all of them"
    with refused(message):
        tables_of(("high.trec", "short.trec"), baseline="short")
    write_run("few", orders["low"], range(N_HUMAN, N_ALL))
    with refused(
        "few.trec: a ranking must have the queries of people and of gpt alike, got 0 of 20"
    ):
        tables_of(("high.trec", "few.trec"), baseline="few")
    write_run("other", orders["high"], range(N_HUMAN))
    with refused("queries that gpt alone has labelled must be ranked, and 100 of 100 are in no"):
        tables_of(("other.trec", "short.trec"), baseline="short")


def test_queries_that_rankings_lack_are_counted_or_left_out_of_both_kinds_alike(here):
    """Query 0 of people and queries 117 to 119 of the machine are in no ranking, 116 in one of them."""
    imported()
    _, _, orders = rows()
    write_run("high", orders["high"], range(1, N_ALL - 3))
    write_run("low", orders["low"], range(1, N_ALL - 4))
    (table, *_), told = tables_of()
    assert table.title.startswith("people at 19 queries, gpt at these and 97 others")
    assert (
        "4 queries that gpt has labelled are in no ranking, and left out beside the judge" in told
    )
    missing = [
        note for note in told if note.startswith("low.trec: 0 of 19 queries of people and 1")
    ]
    assert len(missing) == 1 and "1 of 97 others found nothing and count 0" in missing[0]


def test_more_queries_of_people_never_make_the_interval_wider():
    """Though the machine is never wrong, and 120 more queries of people are 120 fewer of its own."""
    values = np.random.default_rng(0).normal(0.1, 1, (1, 1100))
    none = np.zeros((1, 1100))
    parts = [(values[:, :100], none[:, :100])] * 2 + [(values[:, 100:], none[:, 100:])]
    found = powered_difference(*parts)
    low, high = found.both.interval()
    more_low, more_high = found.planned(100).interval()
    assert more_high - more_low <= (high - low) * (1 + 1e-9)


def test_few_queries_of_people_are_refused(here):
    Path("mine/qrels/test.tsv").write_text("".join(f"q{q}\td{q}-0\t1\n" for q in range(4)))
    imported()
    with refused(
        "5 queries or more must be judged by people and by gpt, got 4 in these rankings; let gpt label"
    ):
        tables_of()


def test_a_sample_that_is_not_random_is_told(here):
    """People have judged those queries alone on which the second ranking fails."""
    relevant, machine, orders = rows()
    gain = reciprocal_ranks(orders["high"], machine) - reciprocal_ranks(orders["low"], machine)
    chosen = np.argsort(-gain)[:N_HUMAN]
    lines = [f"q{q}\td{q}-{d}\t{int(relevant[q] == d)}\n" for q in chosen for d in range(DOCS)]
    Path("mine/qrels/test.tsv").write_text("".join(lines))
    imported()
    _, told = tables_of()
    assert any("they may be no random sample" in note for note in told)


PAIRS = JudgedPairs(
    ["a", "b", "c", "d", "e", "f"],
    np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
    np.array([1.0, 0.0, 0.0, 0.0, 1.0, 1.0]),
    np.array([1, 2, 4, 11, 0, 3]),
)


def test_the_bias_by_length_and_rank_by_hand():
    """Of grade 1 the machine gives 0.5, of grade 0 as much: what is beyond is 0.5 or -0.5."""
    table = bias_table("x", PAIRS, np.array([1, 2, 3, 4, 5, 6]))
    beyond = [row[4] for row in table.rows]
    assert beyond == ["+0.000", "-0.500", "+0.500", "+0.167", "", "+0.000"]
    assert [row[1] for row in table.rows] == ["2", "2", "2", "3", "1", "2"]


def test_agreement_in_words():
    text = agreement_line(PAIRS, are_graded=True)
    value = cohen_kappa_score(PAIRS.human, PAIRS.machine)
    assert f"6 documents are judged by both, Cohen's kappa of grades {value:.2f}" in text
    assert "kappa" not in agreement_line(PAIRS, are_graded=False)
    assert "Spearman's correlation 0.00" in agreement_line(PAIRS, are_graded=False)
    none = JudgedPairs([], np.array([]), np.array([]), np.array([]))
    assert "no document is judged by people and by the judge" in agreement_line(none, True)


def test_kappa_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    for _ in range(20):
        first = rng.integers(4, size=50)
        second = np.where(rng.random(50) < 0.5, first, rng.integers(3, size=50))
        assert kappa(first, second) == pytest.approx(cohen_kappa_score(first, second))
    assert np.isnan(kappa(np.ones(3), np.ones(3)))


def test_the_command_and_its_mistakes(here, capsys):
    """Those of the page, and what can't be."""
    page = (Path(__file__).parents[2] / "docs/judges.md").read_text()
    commands = re.findall(r"^ltr ((?:labels|compare) .*)$", page, re.MULTILINE)
    commands = [command for command in commands if "runs/" not in command]
    assert len(commands) == 3
    Path("prompt.txt").write_text("Is it relevant?")
    for name, other in (("bm25", "low"), ("api", "high")):
        Path(f"{name}.trec").write_text(Path(f"{other}.trec").read_text())
    for command in commands:
        if "--mixed_split" in command:  # once without
            shutil.rmtree("mine/judges")
        assert run_ltr(command) == 0, command
    assert Path("mine/qrels/test.gpt.tsv").is_file()
    told = capsys.readouterr().out
    assert "nDCG@10: api − bm25" in told and "gpt's bias by ranking" in told
    for words, expected in (
        ("--judge none --data mine", "got 'none', and these have: gpt; import them"),
        ("--judge gpt --qrels mine/qrels/test.tsv", "--judge is of one data folder; name it"),
        ("--judge gpt", "--judge is of one data folder; name it with --data"),
    ):
        assert expected in refusal(capsys, f"compare bm25.trec api.trec {words}")
