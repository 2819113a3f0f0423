"""The faults of ``make mutations`` keep up with the package; one of them is planted end to end."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutations import ROOT, read_faults


def test_every_fault_can_be_planted():
    """Its old text stands in its file as often as it says, and what comes of it is Python."""
    bad = []
    for fault in read_faults():
        try:
            ast.parse(fault.plant((ROOT / fault.file).read_text()))
        except (ValueError, SyntaxError) as error:
            bad.append(f"{error}: {fault.what}")
        if fault.old == fault.new:
            bad.append(f"{fault.file}: nothing changes: {fault.what}")
    assert not bad, "\n".join(bad)


def test_every_fault_has_its_own_words_and_tests_that_exist():
    faults = read_faults()
    assert len(faults) >= 40 and len({(f.file, f.what) for f in faults}) == len(faults)
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "ltr/losses").glob("*.py") if path.stem != "__init__"}
    assert files | {"ltr/similarity.py"} == {f.file for f in faults}
    for path, *name in {tuple(test.split("::")) for f in faults for test in f.tests}:
        text = (ROOT / path).read_text()
        assert all(f"def {one}(" in text for one in name), (path, name)


@pytest.mark.slow
def test_a_fault_is_caught_and_the_working_tree_stays_as_it_is():
    before = {path: path.read_text() for path in Path(ROOT / "ltr/losses").glob("*.py")}
    command = [sys.executable, "tests/mutations.py", "weights are forgotten"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_combine.py::test_a_weighted_sum_by_hand" in done.stdout and "1 faults, 1 caught" in done.stdout
    assert before == {path: path.read_text() for path in before}
