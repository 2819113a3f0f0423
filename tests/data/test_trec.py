import pytest

from ltr.data.trec import Judgement, Ranked, read_qrels, read_run, write_run


def test_a_run_is_read_back_as_it_was_written(tmp_path):
    """Float32 scores survive: 9 significant digits are enough."""
    lines = [Ranked("q1", "b", 0.1), Ranked("q1", "a", -1 / 3), Ranked("q2", "a", 16777217.0)]
    write_run(tmp_path / "x" / "a.run", lines, tag="me")
    assert (tmp_path / "x/a.run").read_text().splitlines()[1] == "q1 Q0 a 2 -0.333333333 me"
    back = [r for _, r in read_run(tmp_path / "x/a.run")]
    assert [(r.query, r.doc) for r in back] == [(r.query, r.doc) for r in lines]
    assert [r.score for r in back] == pytest.approx([r.score for r in lines], rel=1e-8)


def test_qrels_in_both_layouts(tmp_path):
    beir, trec = tmp_path / "beir.tsv", tmp_path / "trec.qrels"
    beir.write_text("\ufeffquery-id\tcorpus-id\tscore\r\nq1\td 1\t2\r\n\r\nq2\td2\t0\r\n")
    trec.write_text("q1 0 d1 2\nq2\t0\td2\t-1\n")
    assert list(read_qrels(beir)) == [(2, Judgement("q1", "d 1", 2)), (4, Judgement("q2", "d2", 0))]
    assert list(read_qrels(trec)) == [(1, Judgement("q1", "d1", 2)), (2, Judgement("q2", "d2", 0))]
