"""Rankings of others: read in every form, measured as trec_eval does, and compared."""

import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import pytrec_eval
import yaml
from scipy import stats

from ltr.compare.documents import Ranking, collection_of
from ltr.compare.gate import Answer, Gate
from ltr.compare.named_judgements import judgements_of_data, judgements_of_file
from ltr.compare.ranked_files import measured_experiments, read_rankings, values_by_query
from ltr.compare.statistics import Estimate, estimate
from ltr.compare.unjudged import treated, unjudged_tables
from ltr.errors import InputError
from ltr.metrics import RankingMetric
from tests.world.commands import refusal, run_ltr

METRICS = ("nDCG@10", "RR@10", "AP", "P@5", "R@3", "AP(rel=2)", "Judged@10")
THEIRS = {
    "nDCG@10": "ndcg_cut_10",
    "AP": "map",
    "P@5": "P_5",
    "R@3": "recall_3",
}
ZERO = [RankingMetric(name, "zero") for name in THEIRS]

# q1: d1 is relevant, d2 not, d3 and d9 are judged by nobody; q2: d4 of grade 2, d5 of grade 1.
QRELS = "q1 0 d1 1\nq1 0 d2 0\nq2 0 d4 2\nq2 0 d5 1\n"
RUN = "q1 Q0 d9 1 3.5 x\nq1 Q0 d1 2 2 x\nq2 Q0 d5 1 0.5 x\nq2 Q0 d4 2 0.25 x\n"


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("qrels.txt").write_text(QRELS)
    Path("a.trec").write_text(RUN)
    return tmp_path


def same(one: dict[str, list[float]], other: dict[str, list[float]]) -> None:
    for metric in METRICS:
        np.testing.assert_array_equal(one[metric], other[metric])


def values(file: str, *metrics: str, qrels: str = "qrels.txt") -> dict[str, list[float]]:
    """By metric, the values of the judged queries in their order."""
    judged = judgements_of_file(qrels)
    (ranking,) = read_rankings([file], judged)
    found = values_by_query(ranking.lists, judged, [RankingMetric(name) for name in metrics])
    return dict(zip(metrics, found.tolist(), strict=True))


def test_by_hand(here):
    found = values("a.trec", "RR@10", "AP", "nDCG@10", "Judged@10", "P@1")
    assert found["RR@10"] == [0.5, 1] and found["AP"] == [0.5, 1] and found["P@1"] == [0, 1]
    ideal = 2 + 1 / np.log2(3)
    assert found["nDCG@10"] == pytest.approx([1 / np.log2(3), (1 + 2 / np.log2(3)) / ideal])
    assert found["Judged@10"] == [0.5, 1]


def write_random(rng: random.Random, number: int) -> tuple[dict, dict]:
    """Judgements and a ranking with ties, odd white space, missing queries and documents that nobody
    judged, as text; and as pytrec_eval takes them. Queries that it would not measure have a relevant
    document, and none ranked.
    """
    docs = [f"d{n}" for n in range(12)]
    qrels: dict[str, dict[str, int]] = {}
    run: dict[str, dict[str, float]] = {}
    for query in (f"q{n}" for n in range(rng.randint(2, 5))):
        qrels[query] = {doc: rng.randint(-1, 3) for doc in rng.sample(docs, rng.randint(1, 8))}
        if rng.random() < 0.85:
            ranked = rng.sample([*docs, "other"], rng.randint(1, 10))
            run[query] = {doc: rng.choice([1.5, -2.0, 0.25, 3e-05]) for doc in ranked}
    some_doc = next(iter(qrels["q0"]))
    run.setdefault("q0", {})[some_doc] = 0.25
    space = lambda: rng.choice([" ", "\t", "  ", " \t "])  # noqa: E731
    lines = []
    for query, ranked in run.items():
        for doc, score in ranked.items():
            cells = [query, "Q0", doc, str(rng.randint(0, 99)), repr(score), "tag"]
            lines.append("".join(cell + space() for cell in cells))
    rng.shuffle(lines)
    Path(f"{number}.run").write_text("\n".join(lines) + "\n")
    judged = [f"{q} 0 {d} {g}\n" for q, of_query in qrels.items() for d, g in of_query.items()]
    Path(f"{number}.qrels").write_text("".join(judged))
    return qrels, run


@pytest.mark.parametrize("n_files", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_the_values_are_those_of_trec_eval(here, n_files):
    rng = random.Random(0)
    n_missing = 0
    for number in range(n_files):
        qrels, run = write_random(rng, number)
        judged = judgements_of_file(f"{number}.qrels")
        (ranking,) = read_rankings([f"{number}.run"], judged)
        found = values_by_query(ranking.lists, judged, ZERO)
        oracle = pytrec_eval.RelevanceEvaluator(qrels, set(THEIRS.values())).evaluate(run)
        for name, of_queries in zip(THEIRS.values(), found, strict=True):
            for query, value in zip(judged.query_ids, of_queries, strict=True):
                expected = oracle.get(query, {name: 0.0})[name]  # nothing found
                assert value == pytest.approx(expected, abs=1e-6), (number, name, query)
        n_missing += len(qrels) - len(run)
        assert bool(ranking.notes) == (len(qrels) > len(run))
    assert n_missing > n_files / 10


ROWS = [("q1", "d9", 3.5), ("q1", "d1", 2.0), ("q2", "d5", 0.5), ("q2", "d4", 0.25)]


def as_jsonl(names: tuple[str, str, str]) -> str:
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in ROWS)


FORMS = {
    "three.tsv": "".join(f"{q}\t{d}\t{s}\n" for q, d, s in ROWS),
    "ranks.tsv": "q1\td9\t1\nq1\td1\t2\nq2\td5\t1\nq2\td4\t2\n",
    "names.tsv": "qid\tdocno\trank\nq1\td9\t1\nq1\td1\t2\nq2\td5\t1\nq2\td4\t2\n",
    "texts.jsonl": as_jsonl(("query", "document", "score")),
    "ids.jsonl": as_jsonl(("query_id", "doc_id", "bm25_score")),
    "lists.jsonl": '{"qid": "q1", "corpus_ids": ["d9", "d1"], "scores": [3.5, 2]}\n'
    '{"qid": "q2", "corpus_ids": ["d5", "d4"], "scores": [1, 0]}\n',
    "rows.csv": "query,document,score\n" + "".join(f"{q},{d},{s}\n" for q, d, s in ROWS),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_has_the_same_values(here, name):
    Path(name).write_text(FORMS[name])
    same(values(name, *METRICS), values("a.trec", *METRICS))


def test_parquet_has_the_same_values(here):
    pd.DataFrame(ROWS, columns=["query", "document", "score"]).to_parquet("a.parquet")
    same(values("a.parquet", *METRICS), values("a.trec", *METRICS))


def test_a_ranking_may_tell_texts(here):
    """A collection that is made of texts gives them ids by their content."""
    rows = [("what?", "this", 1), ("what?", "that", 0), ("who?", "she", 0), ("who?", "he", 1)]
    names = ("query", "document", "label")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    Path("test.jsonl").write_text("\n".join(lines))
    ranked = [("what?", "that", 2.0), ("what?", "this", 1.0), ("who?", "he", 0.5)]
    named = [json.dumps({"query": q, "document": d, "score": s}) for q, d, s in ranked]
    Path("texts.jsonl").write_text("\n".join(named))
    judged = judgements_of_data(str(here))
    (ranking,) = read_rankings(["texts.jsonl"], judged)
    found = values_by_query(ranking.lists, judged, [RankingMetric("RR@10")])
    assert sorted(found[0]) == [0.5, 1.0]


def test_queries_that_are_missing_or_not_judged_are_told(here):
    Path("b.trec").write_text("q1 Q0 d1 1 2 x\nq7 Q0 d1 1 2 x\n")
    judged = judgements_of_file("qrels.txt")
    (ranking,) = read_rankings(["b.trec"], judged)
    assert ranking.notes == [
        "1 of 2 judged queries found nothing, as they are missing",
        "queries without judgements are left out: 1",
    ]
    assert values("b.trec", "AP", "swapped_pairs")["AP"] == [1.0, 0.0]


def test_names_and_seeds(here):
    judged = judgements_of_file("qrels.txt")
    for name in ("x.1.trec", "x.2.trec", "b.jsonl.gz"):
        Path(name).write_text(RUN)
    Path("b.jsonl.gz").unlink()
    found = read_rankings(["a.trec", "x=x.*.trec"], judged)
    assert [(each.name, each.seed) for each in found] == [("a", 0), ("x", 0), ("x", 1)]
    experiments = measured_experiments(found, judged, [RankingMetric("AP")])
    assert [(each.name, len(each.runs)) for each in experiments] == [("a", 1), ("x", 2)]
    Path("sub").mkdir()
    Path("sub/a.trec").write_text(RUN)
    assert [each.name for each in read_rankings(["a.trec", "sub/a.trec"], judged)] == ["a", "sub/a"]
    Path("a.tsv").write_text(FORMS["three.tsv"])
    with pytest.raises(InputError, match=r"a.trec would be called a, and so would another ranking"):
        read_rankings(["a.trec", "a.tsv"], judged)


REFUSED = {
    "no line": ("", "c.x: the split is empty; at least one line is needed"),
    "columns": ("q1 Q0 d1\n", "c.x:1: a score must be a finite number"),
    "score": ("q1 Q0 d1 1 good x\n", "c.x:1: a score must be a finite number"),
    "again": ("q1 Q0 d1 1 2 x\nq1 Q0 d1 2 1 x\n", "c.x:2: a second line for query 'q1' and"),
    "no query": ("q8 Q0 d1 1 2 x\n", "c.x: at least one query must be judged in qrels.txt, got 1"),
    "no document": ("q1 Q0 e 1 2 x\n", "c.x: at least one document must be judged in qrels.txt"),
    "no JSON": ('{"query": "q1"', "c.jsonl:1: a line must be one JSON object"),
    "no score": ('{"query": "q1", "document": "d1"}', "c.jsonl:1: a row must have score"),
    "no document's name": (
        '{"query": "q1", "score": 1}',
        "c.jsonl:1: a row must have query_id and doc_id",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(here, capsys, name):
    text, told = REFUSED[name]
    file = "c.jsonl" if text.startswith("{") else "c.x"
    Path(file).write_text(text)
    assert told in refusal(capsys, f"measure {file} --qrels qrels.txt")
    assert told in refusal(capsys, f"compare {file} a.trec --qrels qrels.txt --html x.html")
    assert not Path("x.html").exists()


WORDS = {
    "a.trec": "measured by the judgements of one data set or of one file; name it with --data PATH",
    "a.trec --qrels none": "--qrels: there is no file none",
    "none.trec --qrels qrels.txt": "none.trec: there is no such folder, and no such ranking",
    "a.trec a.trec --qrels qrels.txt": "a.trec must be named once, and is twice",
    "a.trec --qrels qrels.txt --split test dev": "rankings in files are of one data set and one split",
    "a.trec --qrels qrels.txt --metric XY": "XY",
    "a.trec --qrels qrels.txt --gate 'AP > 0 of a'": "--gate must be as 'nDCG@10 >= -0.01 of BASE",
    "a.trec --qrels qrels.txt --gate 'AP >= 0 of b'": "the baseline must be one of a, got 'b'",
    "a.trec --qrels qrels.txt --gate 'AP >= 0 of a'": "--gate needs an experiment beside its",
    "a.trec b.trec --qrels qrels.txt --gate 'AP <= 0 of a'": "AP must be bounded below (>=)",
}


@pytest.mark.parametrize("words", WORDS)
def test_words_that_are_refused(here, capsys, words):
    Path("b.trec").write_text(RUN)
    assert WORDS[words] in refusal(capsys, f"compare {words}")


def test_p_values_and_intervals_are_those_of_others():
    """Of a seed each: the paired t-test that others print, and all permutations of the signs."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, b = rng.uniform(size=(2, 12)).round(3)
        ours = estimate(a[None], b[None])
        theirs = stats.ttest_rel(a, b)
        assert ours.p == pytest.approx(max(theirs.pvalue, 2.0**-11), rel=1e-9)
        assert ours.interval() == pytest.approx(tuple(theirs.confidence_interval(0.95)), rel=1e-9)


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
        ["RR@10: b − a", "0.0% / 50.0%", "+0.0000 equal", "-0.5000 worse", "-0.5000 worse"]
    ]
    judged_alone = read_rankings(["b.trec"], judged)
    assert unjudged_tables(judged_alone, judged, metrics, [], 0.05) == []


def mean_of(mean: float, error: float) -> Estimate:
    """A difference over so many queries that the interval is ± 1.96 errors."""
    return Estimate(mean, error**2, (), (), 10**6, ())


GATES = [
    ("AP >= -0.01 of a", 0.02, 0.01, Answer.PASSES),
    ("AP >= -0.01 of a", 0.0, 0.01, Answer.UNKNOWN),
    ("AP >= -0.01 of a", -0.04, 0.01, Answer.FAILS),
    ("AP >= 0.01 of a", 0.02, 0.01, Answer.UNKNOWN),
    ("swapped_pairs <= 0.1 of a", 0.0, 0.04, Answer.PASSES),
    ("swapped_pairs <= 0.1 of a", 0.1, 0.04, Answer.UNKNOWN),
    ("swapped_pairs <= 0.1 of a", 0.2, 0.04, Answer.FAILS),
]


@pytest.mark.parametrize(("text", "mean", "error", "answer"), GATES)
def test_a_gate(text, mean, error, answer):
    gate = Gate.of(text)
    assert gate.answer(mean_of(mean, error), 0.95) is answer and str(gate) == text


def write_systems(n_queries: int = 40) -> None:
    """``low`` finds the relevant document of each query but three at rank 3, ``high`` at rank 1; of
    both there is a twin with other scores.
    """
    Path("qrels.txt").write_text("".join(f"q{n} 0 r{n} 1\n" for n in range(n_queries)))
    for name, rank in (("low", 3), ("twin", 3), ("high", 1)):
        lines = []
        for n in range(n_queries):
            docs = ["x", "y", "z"]
            docs.insert((rank if n > 2 else 2) - 1, f"r{n}")
            lines += [f"q{n} Q0 {doc} {r} {9 - r} x\n" for r, doc in enumerate(docs)]
        Path(f"{name}.trec").write_text("".join(lines))


def test_the_exit_code_of_a_gate(here, capsys):
    write_systems()

    def code(words: str, bound: str = "RR@10 >= -0.01") -> int:
        return run_ltr(f"compare {words} --qrels qrels.txt --gate '{bound} of low' --markdown x.md")

    assert code("low.trec high.trec") == 0
    assert (
        "gate RR@10 >= -0.01 of low: high passes, of these models alone (+0.6167; 95 % interval"
        in Path("x.md").read_text()
    )
    assert code("low.trec twin.trec high.trec") == 0
    capsys.readouterr()
    for words, bound, expected in (
        ("low.trec high.trec", "RR@10 >= 0.9", 1),
        ("low.trec high.trec", "RR@10 >= 0.6167", 3),
        ("low.trec twin.trec high.trec", "RR@10 >= 0.6167", 1),
    ):
        with pytest.raises(SystemExit) as stop:
            code(words, bound)
        assert stop.value.code == expected


def test_a_run_is_measured_by_its_file_as_it_was_tested(copied_run, tmp_path, capsys, monkeypatch):
    """Beside rankings of others, all by one way: the numbers stay."""
    run = copied_run(tmp_path / "run", "cross")
    monkeypatch.chdir(tmp_path)
    tested = json.loads((run / "metrics.json").read_text())["test"]
    data = tested["path"]
    lines = [line.split() for line in (run / "test.run").read_text().splitlines()]
    worst_first = [f"{q} Q0 {doc} {rank} {-float(score)} x" for q, _, doc, rank, score, _ in lines]
    Path("other.trec").write_text("\n".join(worst_first))
    judged = judgements_of_data(data)
    rankings = read_rankings([str(run), "other.trec"], judged)
    names = ["nDCG@10", "RR@10", "AP", "swapped_pairs"]
    mine, other = measured_experiments(rankings, judged, [RankingMetric(name) for name in names])
    for name in names:
        assert mine.means(name)[0] == pytest.approx(tested[name], abs=1e-6)
    assert other.means("swapped_pairs") != mine.means("swapped_pairs")
    assert run_ltr(f"compare {run} other.trec --data {data} --html x.html") == 0
    assert '"rankings":' in Path("x.html").read_text()  # those of the file are shown, too
    told = capsys.readouterr().out
    assert "nDCG@10 against" in told and "documents are not shown" not in told


def test_the_commands_of_the_page(here, copied_run, tmp_path, capsys):
    page = (Path(__file__).parents[2] / "docs/rankings.md").read_text()
    commands = re.findall(r"^ltr (.*)$", page, re.MULTILINE)
    assert len(commands) == 5
    run = copied_run(tmp_path / "runs/mine", "cross")
    data = json.loads((run / "metrics.json").read_text())["test"]["path"]
    Path("mine").symlink_to(data)
    lines = [line.split() for line in (run / "test.run").read_text().splitlines()]
    Path("bm25.trec").write_text((run / "test.run").read_text())
    rows = [
        json.dumps({"query": q, "document": d, "score": float(s)}) for q, _, d, _, s, _ in lines
    ]
    for name in ("api.jsonl", "api.1.jsonl"):
        Path(name).write_text("\n".join(rows))
    judged = sorted(Path(data, "qrels").glob("test.*"))[0]
    Path("qrels.txt").write_text(judged.read_text())
    for command in commands:
        assert run_ltr(command) == 0, command
    assert Path("values.tsv").read_text().startswith("ranking\tseed\tquery\tnDCG@10\tAP(rel=2)\n")
    assert "passes" in Path("summary.md").read_text()


def told_of(here, capsys, words: str) -> tuple[int, str]:
    """The exit code of a comparison by qrels.txt, and what it prints."""
    capsys.readouterr()
    try:
        code = run_ltr(f"compare {words} --qrels qrels.txt")
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, capsys.readouterr().out


def test_every_gate_is_asked_of_every_other_experiment(here, capsys):
    """Two baselines are compared once, and both have a gate."""
    write_systems()
    gates = "--gate 'RR@10 >= -0.01 of low' 'AP >= 0 of high'"
    code, told = told_of(here, capsys, f"low.trec high.trec {gates}")
    assert code == 1
    assert "gate RR@10 >= -0.01 of low: high passes, of these models alone (+0.6167;" in told
    assert "gate AP >= 0 of high: low fails, of these models alone (-0.6167;" in told
    code, _ = told_of(here, capsys, "low.trec high.trec --baseline low --gate 'AP >= 0 of high'")
    assert code == 1


def test_queries_that_can_show_nothing_pass_no_gate(here, capsys):
    """The same gain in both of two queries leaves no error to measure."""
    write_systems(n_queries=2)
    for bound in ("0.1", "-0.01", "1e-3"):
        code, told = told_of(here, capsys, f"low.trec high.trec --gate 'RR@10 >= {bound} of low'")
        assert code == 3 and "can't be told" in told


def test_a_score_that_is_missing_is_refused(here):
    """The rank of the row, or another score, must not take its place."""
    judged = judgements_of_file("qrels.txt")
    rows = [{"qid": "q1", "docno": f"d{n}", "score": -3.0 - n, "rank": n} for n in range(1, 3)]
    rows[1]["score"] = None
    pd.DataFrame(rows).to_parquet("null.parquet")
    with pytest.raises(InputError, match=r"null.parquet:2: every row .* number in column score"):
        read_rankings(["null.parquet"], judged)


def test_a_frame_of_pyterrier_is_read_by_docno(here):
    rows = [
        {"qid": q, "docid": 7 - n, "docno": d, "rank": n, "score": s, "query": "x"}
        for n, (q, d, s) in enumerate(ROWS)
    ]
    pd.DataFrame(rows).to_parquet("frame.parquet")
    same(values("frame.parquet", *METRICS), values("a.trec", *METRICS))


def test_a_pattern_may_match_files_and_runs(here, copied_run, tmp_path):
    run = copied_run(tmp_path / "runs/mine", "cross")
    data = json.loads((run / "metrics.json").read_text())["test"]["path"]
    Path("runs/bm25.trec").write_text((run / "test.run").read_text())
    Path("runs/README.md").write_text("what these are")
    judged = judgements_of_data(data)
    assert [each.name for each in read_rankings(["runs/*"], judged)] == ["bm25", "mine/run"]
    with pytest.raises(InputError, match="would be called run, and so would another ranking"):
        read_rankings(["run=runs/bm25.trec", "runs/mine"], judged)


def test_a_pattern_of_folders_with_an_equals_sign_is_a_path(here):
    judged = judgements_of_file("qrels.txt")
    for name in ("lr=1", "lr=2"):
        Path(name).mkdir()
        Path(name, "x.trec").write_text(RUN)
    found = read_rankings(["lr=*/x.trec"], judged)
    assert [each.name for each in found] == ["lr=1/x", "lr=2/x"]


def test_runs_that_are_no_seeds_stay_apart_beside_files(here, copied_run, tmp_path, capsys):
    """As without files."""
    source = copied_run(tmp_path / "source", "cross")
    run = Path(shutil.copytree(source, tmp_path / "a/seed=0"))
    copy = Path(shutil.copytree(source, tmp_path / "a/seed=1"))
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["seed_everything"] = 1
    config["model"]["lr"] = 0.5
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    tested = json.loads((run / "metrics.json").read_text())["test"]
    Path("other.trec").write_text((run / "test.run").read_text())
    told = refusal(capsys, f"compare other.trec a --data {tested['path']}")
    assert "are no seeds of one experiment, they differ in model.lr" in told


def test_a_run_of_other_texts_is_refused(here, copied_run, tmp_path):
    run = copied_run(tmp_path / "run", "cross")
    metrics = json.loads((run / "metrics.json").read_text())
    judged = judgements_of_data(metrics["test"]["path"])
    metrics["test"]["evaluated"]["documents"] = "other"
    (run / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(InputError, match="was tested on other texts of documents than those of"):
        read_rankings([str(run)], judged)


def test_measures_of_the_list_alone_need_the_same_documents(here, capsys):
    Path("b.trec").write_text("q1 Q0 d1 1 2 x\nq2 Q0 d5 1 1 x\n")
    told = refusal(capsys, "compare a.trec b.trec --qrels qrels.txt --metric swapped_pairs")
    assert "swapped_pairs looks at the order of a list, whatever it lacks" in told
    told = refusal(capsys, "compare a.trec --qrels qrels.txt --split dev")
    assert "--split is of --data, got dev" in told
    told = refusal(capsys, "compare none.trec x.trec --data somewhere")
    assert "none.trec: there is no such folder, and no such ranking" in told


def test_queries_without_a_relevant_document_stay_out_of_the_table(here):
    """A document that nobody judged would bring them in, and turn the difference."""
    Path("qrels.txt").write_text("".join(f"q{n} 0 r{n} {int(n < 10)}\n" for n in range(30)))
    for name, first, second in (("a", "r", "u"), ("b", "v", "r")):
        lines = [f"q{n} Q0 {first}{n} 1 2 x\nq{n} Q0 {second}{n} 2 1 x\n" for n in range(30)]
        Path(f"{name}.trec").write_text("".join(lines))
    judged = judgements_of_file("qrels.txt")
    rankings = read_rankings(["a.trec", "b.trec"], judged)
    (table,) = unjudged_tables(rankings, judged, [RankingMetric("RR@10")], [("a", "b")], 0.05)
    assert table.rows[0][2:] == ["+0.5000 better", "+0.0000 equal", "+0.0000 equal"]


def test_the_page_shows_ranks_as_they_were_measured(here):
    """Of three columns the third may be a rank."""
    texts = here / "texts"
    (texts / "qrels").mkdir(parents=True)
    for name, ids in (("corpus", ("d1", "d2", "d4", "d5", "d9")), ("queries", ("q1", "q2"))):
        rows = [json.dumps({"_id": id_, "text": f"text of {id_}"}) for id_ in ids]
        (texts / f"{name}.jsonl").write_text("\n".join(rows))
    (texts / "qrels/test.tsv").write_text("q1\td1\t1\nq1\td2\t0\nq2\td4\t2\nq2\td5\t1\n")
    Path("ranks.tsv").write_text(FORMS["ranks.tsv"])
    judged = judgements_of_data(str(texts))
    (experiment,) = measured_experiments(
        read_rankings(["ranks.tsv"], judged), judged, [RankingMetric("RR@10")]
    )
    collection = collection_of(experiment.runs[0])
    documents = Ranking(experiment.runs[0], collection).documents
    assert {query: [doc for doc, _ in ranked] for query, ranked in documents.items()} == {
        "q1": ["d9", "d1"],
        "q2": ["d5", "d4"],
    }


def test_a_score_that_another_column_would_replace_is_refused(here):
    judged = judgements_of_file("qrels.txt")
    rows = [
        '{"qid": "q1", "docid": "d1", "rank": 1, "score": -5}',
        '{"qid": "q1", "docid": "d2", "rank": 2}',
    ]
    Path("absent.jsonl").write_text("\n".join(rows))
    with pytest.raises(
        InputError, match=r"absent.jsonl:2: every row of a ranking must have a number"
    ):
        read_rankings(["absent.jsonl"], judged)
    Path("one.jsonl").write_text('{"qid": "q1", "corpus_ids": ["d1", "d2"], "score": 3}')
    with pytest.raises(
        InputError, match=r"one.jsonl:1: there must be as many scores as documents, got 1"
    ):
        read_rankings(["one.jsonl"], judged)
    # A score of others that is missing, and a rank that is, are not read.
    rows = [
        f'{{"qid": "{q}", "docid": "{d}", "rank": null, "score": {s}, "old_score": null}}'
        for q, d, s in ROWS
    ]
    Path("both.jsonl").write_text("\n".join(rows))
    same(values("both.jsonl", *METRICS), values("a.trec", *METRICS))


def test_texts_with_titles_have_the_ids_of_the_collection(here):
    names = ("query", "title", "text", "label")
    rows = [("what?", "A", "this", 1), ("what?", "B", "that", 0), ("what?", "", "none", 0)]
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    Path("test.jsonl").write_text("\n".join(lines))
    ranked = [
        json.dumps(dict(zip((*names[:3], "score"), (*row[:3], score), strict=True)))
        for row, score in zip(rows, (2, 3, 1), strict=True)
    ]
    Path("ranked.jsonl").write_text("\n".join(ranked))
    judged = judgements_of_data(str(here))
    (ranking,) = read_rankings(["ranked.jsonl"], judged)
    assert ranking.notes == []
    assert values_by_query(ranking.lists, judged, [RankingMetric("RR@10")]).tolist() == [[0.5]]


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


def test_a_query_that_is_a_document_does_not_find_itself(here):
    """As in all that ltr ranks; beside a run folder it would cost a rank."""
    folder = here / "own"
    (folder / "qrels").mkdir(parents=True)
    texts = {"q1": "a forum post", "d1": "its answer", "d2": "another"}
    rows = [json.dumps({"_id": id_, "text": text}) for id_, text in texts.items()]
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    (folder / "queries.jsonl").write_text(rows[0])
    (folder / "qrels/test.tsv").write_text("q1\td1\t1\nq1\td2\t0\n")
    Path("own.trec").write_text("q1 Q0 q1 1 3 x\nq1 Q0 d1 2 2 x\n")
    judged = judgements_of_data(str(folder))
    (ranking,) = read_rankings(["own.trec"], judged)
    assert ranking.notes == ["queries that find themselves, which is left out: 1"]
    assert values_by_query(ranking.lists, judged, [RankingMetric("RR@10")]).tolist() == [[1.0]]


def test_all_that_a_named_pattern_matches_are_seeds(here):
    judged = judgements_of_file("qrels.txt")
    for name in ("k.0.trec", "k.1.res", "input.tag"):
        Path(name).write_text(RUN)
    found = read_rankings(["k=k.*", "input.*"], judged)
    assert [(each.name, each.seed) for each in found] == [("k", 0), ("k", 1), ("input.tag", 0)]


def test_texts_between_tabs_are_no_run(here):
    """Words 4 and 5 of the query are numbers."""
    Path("test.jsonl").write_text('{"query": "how far is 10 20", "document": "a b", "label": 1}')
    Path("texts.tsv").write_text("how far is 10 20\ta b\t2\n")
    judged = judgements_of_data(str(here))
    (ranking,) = read_rankings(["texts.tsv"], judged)
    assert values_by_query(ranking.lists, judged, [RankingMetric("AP")]).tolist() == [[1.0]]
    Path("bad.jsonl").write_text('{"query": "how far is 10 20", "document": "\\ud800", "score": 1}')
    with pytest.raises(InputError, match="at least one document must be judged"):
        read_rankings(["bad.jsonl"], judged)


def test_a_gate_is_of_one_split_and_a_number(here, capsys):
    words = "compare a.trec b.trec --qrels qrels.txt --gate"
    assert "--gate must be as" in refusal(capsys, f"{words} 'AP >= nan of a'")
    told = refusal(capsys, "compare runs/a runs/b --split dev test --gate 'AP >= 0 of a'")
    assert "--gate is of one split, got dev, test; name one" in told
