"""``ltr calibrate``, and ``ltr rank --keep``: what is written, said and refused."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
import yaml

from ltr import load
from ltr.cli.calibrate import (
    CollectScores,
    Scored,
    _show_calibration,
    calibrate,
    scores_of_split,
)
from ltr.cli.parsed import ParsedCommand
from ltr.data.collection import open_collection
from ltr.data.trec import read_run
from ltr.errors import InputError
from ltr.run.run_folder import RunFolder
from ltr.use.calibration.calibrated import calibrate_lists
from ltr.use.calibration.calibration import Calibration, Provenance, read_calibration
from ltr.use.calibration.labelled_scores import LabelledScores
from tests.world.commands import refusal, run_ltr
from tests.world.runs import report

# Until the scores of features say something.
LONGER = ("--trainer.max_steps", "60", "--trainer.max_epochs", "30", "--model.lr", "0.05")
PAGE = Path(__file__).parents[2] / "docs/calibration.md"


def test_a_cross_encoder_is_calibrated_and_keeps_what_it_promises(
    copied_run, tmp_path, capsys, monkeypatch
):
    run = copied_run(tmp_path, "cross")
    capsys.readouterr()
    with monkeypatch.context() as patched:
        make = ParsedCommand.make

        def speaking(command: ParsedCommand) -> None:
            print("a package was imported")
            make(command)

        patched.setattr(ParsedCommand, "make", speaking)
        assert run_ltr(f"calibrate {run}") == 0
    told = capsys.readouterr()
    assert told.out.startswith(
        f"{run}: 30 dev queries with a relevant document among their candidates, 0 without"
    )
    assert f"next: ltr rank {run} --query WORDS --documents FILE --keep 0.9" in told.out
    assert "INFO" not in told.err and (run / "calibration.svg").read_text().startswith("<?xml")
    calibration = read_calibration(run / "calibration.json")
    assert len(calibration.lowest_relevant) == 30 and calibration.highest_of_unanswerable == []

    # A query and the documents of a file: the command and Python say the same.
    data = Path(report(run)["path"])
    corpus = open_collection(str(data)).corpus
    texts = list(corpus.texts)[:40]
    (tmp_path / "docs.txt").write_text("".join(f"{text}\n" for text in texts))
    words = f"rank {run} --query 'w3 w1 w2' --documents {tmp_path / 'docs.txt'} --k 40 --keep 0.8"
    assert run_ltr(words) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    ranking = load(run).rank("w3 w1 w2", texts, keep=0.8)
    assert 0 < len(ranking) < len(texts) and len(lines) == len(ranking)
    assert sorted(line[4] for line in lines) == sorted(one.text for one in ranking)
    check_printed(words, len(ranking), capsys)
    np.testing.assert_allclose(
        [float(line[2]) for line in lines], [one.probability for one in ranking], atol=1e-5
    )

    # On test it says how its promises are kept, and changes nothing.
    before = (run / "calibration.json").read_bytes()
    assert run_ltr(f"calibrate {run} --on test") == 0
    told = capsys.readouterr().out
    assert (
        "30 test queries with a relevant document" in told
        and "what thresholds keep on test" in told
    )
    assert (run / "calibration.json").read_bytes() == before
    entries = json.loads(before)
    for changes in ({"relevant": 60}, {"documents": 9}, {"evaluated": {}}):
        (run / "calibration.json").write_text(json.dumps(entries | changes))
        told = refusal(capsys, f"calibrate {run} --on test")
        assert "was made on another dev split than there is now, or other candidates of it" in told
    (run / "calibration.json").write_bytes(before)

    # A run file: what is kept stands there, and no line of a query that nothing fits.
    pools = f"--run {data}/candidates/dev.trec --data {data}"
    assert run_ltr(f"rank {run} {pools} --output {tmp_path}/all.trec") == 0
    assert run_ltr(f"rank {run} {pools} --output {tmp_path}/kept.trec --keep 0.9") == 0
    lowest = np.float32(calibration.threshold(0.9))
    every = [line for _, line in read_run(tmp_path / "all.trec")]
    kept = [line for _, line in read_run(tmp_path / "kept.trec")]
    assert kept == [line for line in every if np.float32(line.score) >= lowest]
    # The threshold is the third of 30 lowest scores, floor(0.1 * 31) = 3: two queries are not served.
    assert sum(line.doc.endswith("-d0") for line in kept) == 28


def check_printed(words: str, n_kept: int, capsys) -> None:
    """Without ``--k`` all that is kept is printed; a line says what ``--k`` leaves out."""
    assert n_kept > 10  # what is printed without --keep
    assert run_ltr(words.replace(" --k 40", "")) == 0
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == n_kept and "fit" not in told.err
    assert run_ltr(words.replace("--k 40", "--k 2")) == 0
    told = capsys.readouterr()
    assert [line[0] for line in told.out.splitlines()] == ["1", "2"]
    assert f"{n_kept} documents fit, 2 are printed" in told.err


@pytest.mark.long
def test_the_page_says_what_to_type(copied_run, tmp_path, monkeypatch):
    """Its commands in their order, and its Python."""
    run = copied_run(tmp_path, "cross")
    (run / "docs.txt").write_text("w1 w2\nw3 w4\n")
    data = report(run)["path"]
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    names = {"RUN": "run", "FILE": "run/docs.txt", "DATA": data}
    names["bm25.trec"] = f"{data}/candidates/dev.trec"

    def filled(text: str) -> str:
        return re.sub(r"\b(RUN|FILE|DATA|bm25\.trec)\b", lambda found: names[found[1]], text)

    for block in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            assert run_ltr(filled(line.partition(" # ")[0].removeprefix("ltr "))) == 0
    assert Path("kept.trec").is_file()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found: dict = {}
    exec(filled(code), found)
    assert len(found["ranking"]) <= 2 and {*found["likely"]} <= {*found["documents"]}


def test_nothing_fits_says_so(copied_run, tmp_path, capsys):
    run = copied_run(tmp_path, "cross")
    assert run_ltr(f"calibrate {run}") == 0
    file = run / "calibration.json"
    entries = json.loads(file.read_text())
    file.write_text(json.dumps(entries | {"lowest_relevant": [99.0] * 30}))
    (tmp_path / "docs.txt").write_text("w1 w2\nw3 w4\n")
    capsys.readouterr()
    assert run_ltr(f"rank {run} --query w1 --documents {tmp_path}/docs.txt --keep 0.9") == 0
    told = capsys.readouterr()
    assert told.out == "" and "nothing fits: no document has the score" in told.err
    data = report(run)["path"]
    pools = f"--run {data}/candidates/dev.trec --data {data}"
    assert run_ltr(f"rank {run} {pools} --output {tmp_path}/kept.trec --keep 0.9") == 0
    assert "nothing fits 30 of 30 queries" in capsys.readouterr().out
    assert (tmp_path / "kept.trec").read_text() == ""


def test_a_feature_ranker_is_calibrated(copied_run, tmp_path, capsys):
    run = copied_run(tmp_path, "features", *LONGER)
    assert run_ltr(f"calibrate {run}") == 0
    assert f"next: in Python, ltr.load('{run}').calibration" in capsys.readouterr().out
    scorer = load(run)
    scores = scorer.score(np.random.default_rng(0).normal(size=(50, 5)))
    is_kept = scorer.calibration.keeps(scores, 0.8)
    assert 0 < is_kept.sum() < 50
    assert scorer.calibration.probabilities(scores)[is_kept].min() >= (
        scorer.calibration.probabilities(scores)[~is_kept].max()
    )


def test_scores_by_chance_leave_no_calibration(copied_run, tmp_path, capsys):
    """Nor one of before, which would be of other weights or data."""
    run = copied_run(tmp_path, "features")
    (run / "calibration.json").write_text("{}")
    told = refusal(capsys, f"calibrate {run}")
    assert told.startswith(f"ltr: {run}: its scores can't be thresholded: ")
    assert not (run / "calibration.json").exists()


@pytest.mark.parametrize("fails", ["write", "draw"])
def test_a_figure_is_always_that_of_the_file_beside_it(copied_run, tmp_path, monkeypatch, fails):
    """A command that is killed before its file or its figure is there leaves no other figure."""
    run = copied_run(tmp_path, "cross")
    (run / "calibration.json").write_text("before")
    (run / "calibration.svg").write_text("before")

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    if fails == "write":
        monkeypatch.setattr(Calibration, "write", killed)
    else:
        monkeypatch.setattr("ltr.cli.calibrate.draw_reliability", killed)
    with pytest.raises(KeyboardInterrupt):
        calibrate(str(run))
    assert not (run / "calibration.svg").exists()
    is_old = (run / "calibration.json").read_text() == "before"
    assert is_old == (fails == "write")


def test_weights_that_change_while_a_split_is_measured_are_refused(
    copied_run, tmp_path, monkeypatch
):
    """The traits of dev and test would be of two rankers, and their shift that of the weights."""
    run = copied_run(tmp_path, "cross")
    calibrate(str(run))
    n_scored = 0

    def scored_while_trained(folder: RunFolder, split: str) -> Scored:
        nonlocal n_scored
        scored = scores_of_split(folder, split)
        with torch.no_grad():
            next(scored.ranker.parameters()).add_(n_scored)
        n_scored += 1
        return scored

    monkeypatch.setattr("ltr.cli.calibrate.scores_of_split", scored_while_trained)
    with pytest.raises(InputError, match="is of other weights than those of"):
        calibrate(str(run), on="test")
    assert n_scored == 2


REFUSED = [
    ("--keep 90", "keep must be between 0 and 1"),
    ("--keep 0.9", "has no calibration, by which scores have a threshold; make one on the dev"),
    ("--keep 0.9 --kept some", "kept"),
    ("--kept one", "kept says what a promise keeps, got 'one' and no promise; add keep"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_what_can_not_be_kept_is_refused(copied_run, tmp_path, capsys, options, words):
    run = copied_run(tmp_path, "cross")
    (tmp_path / "docs.txt").write_text("w1 w2\n")
    line = f"rank {run} --query w1 --documents {tmp_path}/docs.txt {options}"
    assert words in refusal(capsys, line)


def test_a_split_is_measured_by_a_calibration_that_there_is(copied_run, tmp_path, capsys):
    run = copied_run(tmp_path, "features")
    assert "has no calibration" in refusal(capsys, f"calibrate {run} --on test")


@pytest.mark.long
def test_a_run_that_was_trained_without_an_evaluation_takes_the_candidates_that_there_are(
    copied_run, tmp_path, capsys
):
    run = copied_run(tmp_path, "cross")
    config = (run / "config.yaml").read_text()
    assert "candidates: auto" in config
    (run / "config.yaml").write_text(config.replace("candidates: auto", "candidates: null"))
    assert run_ltr(f"calibrate {run}") == 0
    told = capsys.readouterr().out
    assert "30 dev queries with a relevant document among their candidates" in told
    assert run_ltr(f"calibrate {run} --on test") == 0


@pytest.mark.parametrize(
    "limits",
    [
        {"limit_val_batches": 2, "limit_test_batches": 2},
        {"limit_val_batches": 0, "limit_test_batches": 0},
        {"overfit_batches": 1},
    ],
)
def test_all_of_a_split_is_scored_whatever_part_a_training_looked_at(copied_run, tmp_path, limits):
    """A promise is of all queries, and not of the four of a batch."""
    run = copied_run(tmp_path, "cross")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["trainer"] |= limits
    config["data"]["init_args"]["evaluation"] |= {"batch_size": 4}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    for split in ("dev", "test"):
        assert len(scores_of_split(RunFolder(run), split).lists) == 30


def test_a_query_is_in_the_group_of_its_source(copied_run, tmp_path):
    """The second source has fewer queries of dev, and theirs have three words more."""
    run = copied_run(tmp_path, "cross")
    first = Path(report(run)["path"])
    second = shutil.copytree(first, tmp_path / "second")
    lines = (second / "qrels/dev.tsv").read_text().splitlines(keepends=True)
    (second / "qrels/dev.tsv").write_text("".join(lines[:41]))  # two of each query, below a head
    queries = [json.loads(line) for line in open(second / "queries.jsonl")]
    longer = [{**query, "text": f"{query['text']} w1 w2 w3"} for query in queries]
    (second / "queries.jsonl").write_text("".join(f"{json.dumps(query)}\n" for query in longer))
    sources = [{"path": str(first), "name": "first"}, {"path": str(second), "name": "second"}]
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"]["init_args"]["path"] = sources
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    scored = scores_of_split(RunFolder(run), "dev")
    of_first, of_second = (scored.groups[f"source {name}"] for name in ("first", "second"))
    assert of_first.sum() == 30 and of_second.sum() == 20
    words = scored.traits["words of the query"]
    assert {*words[of_first]} == {3.0} and {*words[of_second]} == {6.0}


def test_what_a_search_of_the_corpus_finds_has_the_scores_of_the_ranker(copied_run, tmp_path):
    """A dual encoder's score is its similarity over its temperature, wherever its candidates come from."""
    run = copied_run(tmp_path, "dual")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"]["init_args"]["evaluation"] |= {"candidates": "corpus", "depth": 20}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    best = scores_of_split(RunFolder(run), "dev").lists.highest
    retriever = load(run)
    assert retriever.model.temperature == 0.1
    data = open_collection(report(run)["path"])
    for place, query_row in enumerate(data.qrels["dev"].query_rows[:5].tolist()):
        scores = retriever.score([(data.queries.texts[query_row], t) for t in data.corpus.texts])
        assert best[place] == pytest.approx(scores.max(), rel=1e-5)


@pytest.mark.parametrize(("n_queries", "promise"), [(9, "0.9"), (8, "0.8")])
def test_what_is_to_be_typed_next_is_a_promise_that_dev_is_large_enough_for(
    tmp_path, capsys, n_queries, promise
):
    lists = LabelledScores.from_lists([[2.0, 1.0, 0.0]] * n_queries, [[1, 0, 0]] * n_queries)
    calibration, _ = calibrate_lists(lists, Provenance("r", 0, {}, {}))
    ranker = SimpleNamespace(reads=None)
    scored = cast(Scored, SimpleNamespace(lists=lists, groups={}, ranker=ranker))
    _show_calibration(RunFolder(tmp_path), calibration, scored)
    assert capsys.readouterr().out.endswith(f"--keep {promise}\n")
    calibration.threshold(float(promise))


def test_dev_is_no_other_split(tmp_path, capsys):
    words = "on must be another split than dev, on which the calibration is made"
    assert words in refusal(capsys, f"calibrate {tmp_path} --on dev")


@pytest.mark.parametrize("name", ["none", "folder", "file"])
def test_what_is_no_run_is_refused_and_left_as_it_is(tmp_path, capsys, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    assert "must be a run folder" in refusal(capsys, f"calibrate {tmp_path}/{name}")
    assert sorted(tmp_path.rglob("*")) == before


# What is collected

BATCH = {
    "query_rows": torch.tensor([4, 2, 9]),
    "scores": torch.tensor([[3.0, 2.0, 1.0], [5.0, 4.0, 0.0], [7.0, 7.0, 7.0]]),
    "labels": torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 9.0], [1.0, 1.0, 1.0]]),
    "mask": torch.tensor([[True, True, True], [True, True, False], [False, False, False]]),
    "ideal": torch.tensor([[2.0, 1.0, 0.0], [3.0, 1.0, 0.0], [2.0, 0.0, 0.0]]),
}


@pytest.mark.parametrize(
    ("relevant_from", "is_relevant", "n_relevant"),
    [(None, [True, True, False, False, True], 5), (2.0, [True, False, False, False, False], 3)],
)
def test_padding_is_left_out_and_grades_count_from_a_level(relevant_from, is_relevant, n_relevant):
    """The label of padding is nobody's, and the last query has no candidates at all."""
    collected = CollectScores(relevant_from)
    collected.on_test_batch_end(None, None, BATCH)
    lists = collected.lists("test")
    assert lists.scores.tolist() == [3.0, 2.0, 1.0, 5.0, 4.0]
    assert lists.is_relevant.tolist() == is_relevant
    assert collected.query_rows().tolist() == [4, 2]
    assert collected.n_relevant == n_relevant


def test_without_dev_a_line_says_so():
    with pytest.raises(InputError, match="the split 'dev' must have queries with candidates"):
        CollectScores(None).lists("dev")
