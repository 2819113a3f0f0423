"""Labels of a judge: imported in every form, kept beside the judgements, and refused."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ltr.check.judgements import judgements_section
from ltr.compare.named_judgements import judgements_of_data, judgements_of_judge
from ltr.data.collection import open_collection, with_split
from ltr.data.judge_labels import (
    import_labels,
    judges_of,
    labels_in_words,
    machine_judged_lines,
    open_judge,
)
from ltr.datamodules.training_labels import Labels
from tests.world.commands import refusal, run_ltr
from tests.world.refusals import refused

ROWS = [("q1", "d1", 2), ("q1", "d2", 0), ("q2", "d1", 1), ("q3", "d3", 3)]
COLUMNS = ["query_id", "doc_id", "label"]
FORMS = {
    "j.qrels": "".join(f"{q} 0 {d} {v}\n" for q, d, v in ROWS),
    "j.trec": "".join(f"{q} Q0 {d} 1 {v} tag\n" for q, d, v in ROWS),
    "j.tsv": "query-id\tcorpus-id\tscore\n" + "".join(f"{q}\t{d}\t{v}\n" for q, d, v in ROWS),
    "j.jsonl": "".join(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in ROWS),
    "j.csv": "qid,pid,grade\n" + "".join(f"{q},{d},{v}\n" for q, d, v in ROWS),
}


@pytest.fixture
def here(here) -> Path:
    """A data folder D: people have judged q1 in test, q9 in train."""
    folder = Path("D")
    (folder / "qrels").mkdir(parents=True)
    texts = [json.dumps({"_id": f"d{n}", "text": f"text {n}"}) + "\n" for n in range(1, 5)]
    (folder / "corpus.jsonl").write_text("".join(texts))
    texts = [json.dumps({"_id": f"q{n}", "text": f"query {n}"}) + "\n" for n in range(1, 10)]
    (folder / "queries.jsonl").write_text("".join(texts))
    (folder / "qrels/test.tsv").write_text("q1\td1\t1\n")
    (folder / "qrels/train.tsv").write_text("q9\td1\t1\nq9\td2\t0\n")
    return here


def imported(file: str, name: str = "gpt", split: str = "test", **options):
    labels, _ = import_labels(Path(file), open_collection("D"), split, name, **options)
    return labels


def as_pairs(lists) -> dict[tuple[str, str], float]:
    collection = open_collection("D")
    pairs = {}
    for query, doc, value in zip(lists.query_of_doc, lists.doc_rows, lists.values, strict=True):
        pairs[collection.queries.ids[query], collection.corpus.ids[doc]] = float(value)
    return pairs


@pytest.mark.parametrize("name", FORMS)
def test_every_form_has_the_same_labels(here, name):
    Path(name).write_text(FORMS[name])
    labels = imported(name)
    assert as_pairs(labels.grades) == {(q, d): v for q, d, v in ROWS}
    assert labels.are_graded


def test_parquet_has_the_same_labels(here):
    pd.DataFrame(ROWS, columns=COLUMNS).to_parquet("j.parquet")
    assert as_pairs(imported("j.parquet").grades) == {(q, d): v for q, d, v in ROWS}


def test_they_lie_beside_the_judgements(here):
    """Who made them, and of which file, is kept; the judgements stay as they are."""
    Path("j.qrels").write_text(FORMS["j.qrels"])
    before = open_collection("D").judgements("test").values.tolist()
    imported("j.qrels", model="gpt-5", prompt="Is it?", date="2026-11-29")
    manifest = json.loads(Path("D/judges/gpt/test/manifest.json").read_text())
    told = {name: manifest[name] for name in ("judge", "model", "prompt", "date", "file", "split")}
    assert told == {
        "judge": "gpt",
        "model": "gpt-5",
        "prompt": "Is it?",
        "date": "2026-11-29",
        "file": "j.qrels",
        "split": "test",
    }
    assert len(manifest["file_digest"]) >= 16
    collection = open_collection("D")
    assert judges_of(collection, "test") == ["gpt"] and judges_of(collection, "dev") == []
    assert open_judge(collection, "gpt", "test").origin == "judge gpt, model gpt-5, 2026-11-29"
    assert collection.judgements("test").values.tolist() == before == [1]


def test_scores_have_a_level_where_they_measure_and_none_where_they_teach(here):
    Path("s.trec").write_text("q1 Q0 d1 1 2.5 x\nq1 Q0 d2 2 -1.5 x\nq2 Q0 d1 1 0.5 x\n")
    with_level = imported("s.trec", "a", relevant_from=0.5)
    assert as_pairs(with_level.grades) == {("q1", "d1"): 1, ("q1", "d2"): 0, ("q2", "d1"): 1}
    without = imported("s.trec", "b")
    assert as_pairs(without.grades) == {("q1", "d1"): 2.5, ("q1", "d2"): 0, ("q2", "d1"): 0.5}
    assert with_level.are_graded and not without.are_graded
    for labels in (with_level, without):
        taught = Labels(scores=str(labels.folder)).open(open_collection("D"))
        np.testing.assert_array_equal(taught.values, [2.5, -1.5, 0.5])


def test_what_is_refused(here):
    Path("j.qrels").write_text(FORMS["j.qrels"])
    imported("j.qrels")
    with refused("gpt must be imported for test once, and is there already"):
        imported("j.qrels")
    with refused("--by must be letters, digits"):
        imported("j.qrels", "a/b")
    with refused("--date must be a day, as 2026-11-29, got 'today'"):
        imported("j.qrels", "b", date="today")
    with refused("there is no file none"):
        imported("none", "b")
    with refused("relevant_from must be finite and above 0"):
        imported("j.qrels", "b", relevant_from=0)
    Path("k.qrels").write_text("q1 0 d1 1\nq1 0 d1 2\n")
    with refused("k.qrels:2: a second judgement for query 'q1' and document 'd1', 2, first 1"):
        imported("k.qrels", "b")
    Path("k.jsonl").write_text('{"query_id": "q1", "doc_id": "d1"}\n')
    with refused("k.jsonl:1: a row must have query_id and score"):
        imported("k.jsonl", "b")
    row = '{"query_id": "q1", "doc_id": "d1", '
    Path("k.jsonl").write_text(row + '"label": 1, "confidence_score": 0.3}\n')
    with refused(
        "k.jsonl:1: a row must have one label, got columns of grade and confidence_score; leave out"
    ):
        imported("k.jsonl", "b")
    Path("k.jsonl").write_text(row + '"label": 1}\n' + row + '"score": 0.3}\n')
    with refused("k.jsonl:2: all rows must have a label in the same column"):
        imported("k.jsonl", "b")
    Path("k.trec").write_text("q1 Q0 d1 1 good x\n")
    with refused("k.trec:1: a score must be a finite number"):
        imported("k.trec", "b")
    assert sorted(path.name for path in Path("D/judges").iterdir()) == ["gpt"]
    with refused("a judge must have labels for test, got 'x', and these have: gpt; import them"):
        open_judge(open_collection("D"), "x", "test")
    rows = here / "rows.jsonl"
    rows.write_text('{"query": "a", "positive": "b"}\n')
    with refused("labels of a judge lie in a data folder, and this is none; make one with"):
        import_labels(Path("j.qrels"), open_collection(rows), "train", "gpt")


def test_labels_of_other_texts_are_refused(here):
    """Whoever changes the corpus imports them again."""
    Path("j.qrels").write_text(FORMS["j.qrels"])
    imported("j.qrels")
    with open("D/corpus.jsonl", "a") as file:
        file.write('{"_id": "d9", "text": "new"}\n')
    with refused("these scores were made of another collection than D; score or import again"):
        open_judge(open_collection("D"), "gpt", "test")


def test_an_import_of_the_data_says_that_they_stay_behind(here, capsys):
    Path("j.qrels").write_text(FORMS["j.qrels"])
    imported("j.qrels")
    assert run_ltr("import D E") == 0
    assert "labels of judges are left out (gpt): import them again" in capsys.readouterr().out
    assert not Path("E/judges").exists()


def test_the_card_says_whose_labels_were_learnt(here):
    Path("j.qrels").write_text(FORMS["j.qrels"])
    imported("j.qrels", model="gpt-5")
    assert labels_in_words("D/judges/gpt/test") == "D/judges/gpt/test (judge gpt, model gpt-5)"
    assert labels_in_words("D/qrels/train.tsv") == "D/qrels/train.tsv"
    assert labels_in_words("D/none") == "D/none" and labels_in_words(None) is None


def test_they_are_mixed_into_a_new_split_alone_and_named_by_check(here, capsys):
    """q1 is judged by people, q9 in train; q2 and q3 by the machine alone."""
    Path("j.qrels").write_text(FORMS["j.qrels"] + "q9 0 d2 1\n")
    labels = imported("j.qrels", mixed_split="test.gpt")
    assert Path("D/qrels/test.gpt.tsv").read_text().splitlines() == [
        "query-id\tcorpus-id\tscore",
        "q1\td1\t1",
        "q2\td1\t1",
        "q3\td3\t3",
    ]
    assert Path("D/qrels/test.tsv").read_text() == "q1\td1\t1\n"
    line = "test.gpt: 2 queries are judged by a machine alone (judge gpt): q2, q3"
    assert machine_judged_lines(open_collection("D")) == [line]
    assert judgements_of_data("D", "test.gpt").notes == [line]
    assert judgements_of_data("D").notes == []
    collection = open_collection("D")
    judged = judgements_of_judge(labels, collection, "test")
    assert judged.query_ids == ["q1", "q2", "q3"] and judged.split == "test.gpt"
    assert judgements_section(collection, search=False).lines.count(line) == 1
    with refused("--mixed_split must be a new split, got test.gpt; name another one"):
        imported("j.qrels", "b", mixed_split="test.gpt")
    assert judges_of(collection) == ["gpt"]
    with open("D/corpus.jsonl", "a") as file:
        file.write('{"_id": "d9", "text": "new"}\n')
    (told,) = machine_judged_lines(open_collection("D"))
    assert told.startswith("test.gpt: queries are judged by a machine alone (judge gpt), nobody")


def test_the_command(here, capsys):
    Path("j.qrels").write_text(FORMS["j.qrels"] + "q8 0 nothing 1\n")
    Path("prompt.txt").write_text("Is it relevant?")
    command = "labels import j.qrels --by gpt --data D --prompt prompt.txt --date 2026-11-29"
    assert run_ltr(command) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-5:] == [
        "D/judges/gpt/test: 4 labels of 3 queries",
        "  1 of 5 judgements are of absent documents and left out, first in line 5",
        "  people have judged 1 of these queries, and 1 of test in all",
        "  to compare with them: ltr compare … --data D --judge gpt",
        "  to learn them: --data.labels.scores D/judges/gpt/test",
    ]
    manifest = json.loads(Path("D/judges/gpt/test/manifest.json").read_text())
    assert manifest["prompt"] == "Is it relevant?"
    assert "is there already" in refusal(capsys, command)
    line = refusal(capsys, "labels import j.qrels --by b --data D --prompt promt.txt")
    assert "--prompt must be a file, or what the judge was asked" in line
    line = refusal(capsys, "labels import j.qrels --by gpt --data D --split tset")
    assert "a split must be one of train, test, got 'tset'" in line
    assert with_split(open_collection("D"), "test").judgements("test").values.tolist() == [1]
