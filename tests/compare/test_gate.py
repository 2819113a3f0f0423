"""Gates: what they answer, and their exit codes."""

from pathlib import Path

import pytest

from ltr.compare.gate import Answer, Gate
from ltr.compare.statistics import Estimate
from tests.world.commands import refusal, run_ltr


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


def test_a_gate_is_of_one_split_and_a_number(here, capsys):
    words = "compare a.trec b.trec --qrels qrels.txt --gate"
    assert "--gate must be as" in refusal(capsys, f"{words} 'AP >= nan of a'")
    told = refusal(capsys, "compare runs/a runs/b --split dev test --gate 'AP >= 0 of a'")
    assert "--gate is of one split, got dev, test; name one" in told
