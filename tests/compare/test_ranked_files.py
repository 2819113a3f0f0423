"""Rankings of others: measured as trec_eval does, and compared."""

import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
import yaml
from scipy import stats

from ltr.compare.named_judgements import judgements_of_data, judgements_of_file
from ltr.compare.query_values import values_by_query
from ltr.compare.ranked_files import measured_experiments, read_rankings
from ltr.compare.statistics import estimate
from ltr.errors import InputError
from ltr.metrics import RankingMetric
from tests.world.commands import refusal, run_ltr
from tests.world.rankings import RUN, data_of, lines_of, values
from tests.world.runs import report
from tests.world.tested_runs import edit_metrics

THEIRS = {
    "nDCG@10": "ndcg_cut_10",
    "AP": "map",
    "P@5": "P_5",
    "R@3": "recall_3",
}

ZERO = [RankingMetric(name, "zero") for name in THEIRS]


def test_by_hand(here):
    found = values("a.trec", "RR@10", "AP", "nDCG@10", "Judged@10", "P@1")
    assert found["RR@10"] == [0.5, 1] and found["AP"] == [0.5, 1] and found["P@1"] == [0, 1]
    ideal = 2 + 1 / np.log2(3)
    assert found["nDCG@10"] == pytest.approx([1 / np.log2(3), (1 + 2 / np.log2(3)) / ideal])
    assert found["Judged@10"] == [0.5, 1]


def write_random(rng: random.Random, number: int) -> tuple[dict, dict]:
    """Judgements, also with fractions and below 0, and a ranking with ties, odd white space, missing
    queries and documents that nobody judged, as text; and as pytrec_eval takes them. Queries that it would not measure have a relevant
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
    # pytrec_eval takes whole grades: those of quarters have the same measures, as no scale counts.
    unit = rng.choice([1, 4])
    judged = [
        f"{query} 0 {doc} {grade / unit if grade > 0 else grade:g}\n"
        for query, of_query in qrels.items()
        for doc, grade in of_query.items()
    ]
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
        found = values_by_query(ranking.lists, judged.lists, ZERO)
        oracle = pytrec_eval.RelevanceEvaluator(qrels, set(THEIRS.values())).evaluate(run)
        for name, of_queries in zip(THEIRS.values(), found, strict=True):
            for query, value in zip(judged.query_ids, of_queries, strict=True):
                expected = oracle.get(query, {name: 0.0})[name]  # nothing found
                assert value == pytest.approx(expected, abs=1e-6), (number, name, query)
        n_missing += len(qrels) - len(run)
        assert bool(ranking.notes) == (len(qrels) > len(run))
    assert n_missing > n_files / 10


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
    shutil.copy("a.trec", "a.tsv")
    with pytest.raises(InputError, match=r"a.trec would be called a, and so would another ranking"):
        read_rankings(["a.trec", "a.tsv"], judged)


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


def test_a_run_is_measured_by_its_file_as_it_was_tested(copied_run, tmp_path, capsys, monkeypatch):
    """Beside rankings of others, all by one way: the numbers stay."""
    run = copied_run(tmp_path / "run", "cross")
    monkeypatch.chdir(tmp_path)
    tested = report(run)
    data = data_of(run)
    worst_first = [f"{query} Q0 {doc} 1 {-score} x" for query, doc, score in lines_of(run)]
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
    data = data_of(run)
    Path("mine").symlink_to(data)
    shutil.copy(run / "test.run", "bm25.trec")
    rows = [
        json.dumps({"query": query, "document": doc, "score": score})
        for query, doc, score in lines_of(run)
    ]
    for name in ("api.jsonl", "api.1.jsonl"):
        Path(name).write_text("\n".join(rows))
    judged = sorted(Path(data, "qrels").glob("test.*"))[0]
    Path("qrels.txt").write_text(judged.read_text())
    for command in commands:
        assert run_ltr(command) == 0, command
    assert Path("values.tsv").read_text().startswith("ranking\tseed\tquery\tnDCG@10\tAP(rel=2)\n")
    assert "passes" in Path("summary.md").read_text()


def test_a_pattern_may_match_files_and_runs(here, copied_run, tmp_path):
    run = copied_run(tmp_path / "runs/mine", "cross")
    shutil.copy(run / "test.run", "runs/bm25.trec")
    Path("runs/README.md").write_text("what these are")
    judged = judgements_of_data(data_of(run))
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
    shutil.copy(run / "test.run", "other.trec")
    told = refusal(capsys, f"compare other.trec a --data {data_of(run)}")
    assert "are no seeds of one experiment, they differ in model.lr" in told


def test_a_run_of_other_texts_is_refused(here, copied_run, tmp_path):
    run = copied_run(tmp_path / "run", "cross")
    judged = judgements_of_data(data_of(run))
    edit_metrics(run, test={"evaluated": report(run)["evaluated"] | {"documents": "other"}})
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
    found = values_by_query(ranking.lists, judged.lists, [RankingMetric("RR@10")])
    assert found.tolist() == [[1.0]]


def test_all_that_a_named_pattern_matches_are_seeds(here):
    judged = judgements_of_file("qrels.txt")
    for name in ("k.0.trec", "k.1.res", "input.tag"):
        Path(name).write_text(RUN)
    found = read_rankings(["k=k.*", "input.*"], judged)
    assert [(each.name, each.seed) for each in found] == [("k", 0), ("k", 1), ("input.tag", 0)]
