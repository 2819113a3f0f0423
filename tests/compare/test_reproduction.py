"""A run that was made again: the verdict on each of its numbers."""

from pathlib import Path

import pytest

from ltr.compare.reproduction import reproduction_lines
from ltr.compare.runs import Run
from ltr.errors import InputError


def run_of(value, **evaluated):
    test = {"AP": value, "conventions": {"AP": ""}, "evaluated": evaluated}
    return Run(Path("x"), 0, {}, {"test": test}, {})


@pytest.mark.parametrize(
    "now, verdict",
    [
        (0.5, "same"),
        (0.5 + 5e-7, "same"),
        # Of 0.5, 0.52 and 0.54: mean 0.52, deviation 0.02, and t(0.975, 2) = 4.3027 times 0.02
        # times sqrt(4/3) = 0.0994.
        (0.61, "within seeds (0.5200 ± 0.0994)"),
        (0.62, "not within seeds (0.5200 ± 0.0994)"),
        (0.42, "not within seeds (0.5200 ± 0.0994)"),
        (0.43, "within seeds (0.5200 ± 0.0994)"),
    ],
)
def test_verdicts_by_hand(now, verdict):
    (line,) = reproduction_lines(run_of(0.5), run_of(now), [run_of(0.52), run_of(0.54)])
    assert line == f"AP: 0.5000 then, {now:.4f} now: {verdict}"


def test_other_data_is_no_reproduction():
    with pytest.raises(InputError, match="was tested on other data"):
        reproduction_lines(run_of(0.5, judgements="a"), run_of(0.5, judgements="b"), [])
