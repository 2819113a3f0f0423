"""Files of judgements and of runs: what is read, refused and written."""

import numpy as np
import pytest

from ltr.data.trec import (
    Judgement,
    RunLine,
    grade_of,
    read_qrels,
    read_run,
    text_of_grade,
    write_run,
)
from tests.world.refusals import refused


def test_a_run_is_read_back_as_it_was_written(tmp_path):
    """Float32 scores survive: 9 significant digits are enough."""
    lines = [RunLine("q1", "b", 0.1), RunLine("q1", "a", -1 / 3), RunLine("q2", "a", 16777217.0)]
    write_run(tmp_path / "x" / "a.run", lines, tag="me")
    assert (tmp_path / "x/a.run").read_text().splitlines()[1] == "q1 Q0 a 2 -0.333333333 me"
    back = [r for _, r in read_run(tmp_path / "x/a.run")]
    assert [(r.query, r.doc) for r in back] == [(r.query, r.doc) for r in lines]
    assert [r.score for r in back] == pytest.approx([r.score for r in lines], rel=1e-8)


# As pandas writes a column in which one value was missing.
WITH_POINT = [(f"q1\td1\t{grade}\n", [(1, "q1", "d1", 1)]) for grade in ("1.0", "+1.", "1.00")]


@pytest.mark.parametrize(
    "content, judgements",
    [
        # Four columns.
        ("q1 0 d1 2\nq2\t0\td2\t-1\n", [(1, "q1", "d1", 2), (2, "q2", "d2", 0)]),
        # Three columns below a header, whose ids may hold spaces.
        (
            "\ufeffquery-id\tcorpus-id\tscore\r\nq1\td 1\t2\r\n\r\nq2\td2\t0\r\n",
            [(2, "q1", "d 1", 2), (4, "q2", "d2", 0)],
        ),
        ("\n \nquery-id\tcorpus-id\tscore\nq1\td1\t1\n", [(4, "q1", "d1", 1)]),
        # Comments, as trec_eval's own qrels.comment.test has them; and ids that begin as one.
        (
            "# judged by two\nq1 0 d1 2 # sure\n# a b c\nq1 0 d2 0\n",
            [(2, "q1", "d1", 2), (4, "q1", "d2", 0)],
        ),
        ("#1 0 d1 2\n#2 0 #3 1\n", [(1, "#1", "d1", 2), (2, "#2", "#3", 1)]),
        *WITH_POINT,
    ],
)
def test_judgements_of_every_layout(tmp_path, content, judgements):
    (tmp_path / "a.qrels").write_text(content)
    expected = [(line, Judgement(*judgement)) for line, *judgement in judgements]
    assert list(read_qrels(tmp_path / "a.qrels")) == expected


def test_comments_of_a_run_are_left_out(tmp_path):
    """As those of trec_eval's own results.trunc."""
    (tmp_path / "a.trec").write_text("# a run\nq1 Q0 d1 1 2.5 t and more\n")
    assert [line for _, line in read_run(tmp_path / "a.trec")] == [RunLine("q1", "d1", 2.5)]


NO_NUMBERS = ["1_0", "\u0661", "1" + "0" * 40, "inf", "-inf", "nan", "0x1", ""]


@pytest.mark.parametrize("number", NO_NUMBERS)
def test_a_number_is_of_ascii_digits_and_finite(tmp_path, number):
    (tmp_path / "a.tsv").write_text(f"q1\td1\t{number}\n")
    with refused(r"a.tsv:1: (a grade must be a number below 10\^7|expected 4 columns)"):
        list(read_qrels(tmp_path / "a.tsv"))
    (tmp_path / "a.trec").write_text(f"q1 Q0 d1 1 {number} t\n")
    with refused(r"a.trec:1: (a score must be a finite number \(float32\)|expected 6 columns)"):
        list(read_run(tmp_path / "a.trec"))


@pytest.mark.parametrize("rank", ["x", "1.5", "nan", "1_0", "0.5", "1e3"])
def test_a_rank_is_a_whole_number(tmp_path, rank):
    """Not used, but a line of another order, score before rank, has none there."""
    (tmp_path / "a.trec").write_text(f"q1 Q0 d1 1 2.5 t\nq1 Q0 d2 {rank} 2 t\n")
    with refused(f"a.trec:2: a rank must be a whole number, got '{rank}'"):
        list(read_run(tmp_path / "a.trec"))


def test_numbers_of_every_kind_are_read(tmp_path):
    scores = ["1", "-2.5", "+.5", "3.", "1e-3", "1E38", "-0"]
    (tmp_path / "a.trec").write_text("".join(f"q1 Q0 d1 1 {score} t\n" for score in scores))
    assert [line.score for _, line in read_run(tmp_path / "a.trec")] == [*map(float, scores)]
    grades = ["+1", "007", "-2", "9999999", "4.75", ".5", "1e-2", "0.0", "-1.0"]
    (tmp_path / "a.tsv").write_text("".join(f"q 0 {g} {g}\n" for g in grades))
    read = [judged.grade for _, judged in read_qrels(tmp_path / "a.tsv")]
    assert read == [1, 7, 0, 9999999, 4.75, 0.5, 0.01, 0, 0]


@pytest.mark.parametrize("grade", ["1e7", "-10000000", "10000000.0", "0,5", "E", "1/2"])
def test_a_grade_is_a_number_below_10_to_the_7(tmp_path, grade):
    (tmp_path / "a.tsv").write_text(f"q1\td1\t1\nq1\td2\t{grade}\n")
    hint = "; write a point for the comma" if grade == "0,5" else ""
    with refused(rf"a.tsv:2: a grade must be a number below 10\^7 .*, got '{grade}'{hint}$"):
        list(read_qrels(tmp_path / "a.tsv"))


def test_a_negative_grade_with_a_fraction_is_no_spam_mark(tmp_path):
    """As a cosine of -0.25: read as 0 it would be as good as one of 0."""
    (tmp_path / "a.tsv").write_text("q1\td1\t0.5\nq1\td2\t-0.25\n")
    with refused("a.tsv:2: a grade with a fraction must not be negative, got '-0.25'; add"):
        list(read_qrels(tmp_path / "a.tsv"))


@pytest.mark.parametrize("value", [0.1, 1 / 3, 4.75, 0.01, 1e-7, 9999999.0])
def test_a_grade_is_written_so_that_the_same_float32_is_read(value):
    grade = np.float32(value)
    text = text_of_grade(grade)
    assert np.float32(grade_of(text, "here")) == grade and len(text) <= 11


@pytest.mark.parametrize("first", ["topic\tdocno\tpoints", "topic 0 docno points"])
def test_names_that_are_not_known_lead_to_those_that_are(tmp_path, first):
    file = tmp_path / "a.tsv"
    file.write_text(f"{first}\nq1\td1\t1\n")
    words = "got 'points'; the first line may also be names of columns, such as query_id and doc_id"
    with refused(f"a.tsv:1: a grade must be a number .*, {words}"):
        list(read_qrels(file))
    file.write_text("q1\td1\t-0.5\n")
    with refused("add one number to all grades, so that 0 is not relevant$"):
        list(read_qrels(file))
