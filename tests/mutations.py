"""Would the tests notice? Plant the faults of ``mutations.txt`` in a copy of the package, one by
one; a test must fail for each.

``make mutations`` runs them all; ``python tests/mutations.py -j 2 _sorted triplet`` those whose
file or description has one of the words, two at a time. The working tree is never touched. A fault
counts as caught only when a test fails by what it measures: a copy that cannot be imported, or that
crashes with a TypeError or the like, is a bad fault and reported as such. Exits 1 if any fault
survives.
"""

import argparse
import contextlib
import io
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EVERY_TEST = ("tests/losses", "tests/pairs", "tests/test_similarity.py", "tests/test_metrics.py")
CRASHES = (AttributeError, ImportError, IndexError, KeyError, NameError, SyntaxError, TypeError)
# Imported once, before the processes fork: each fault then costs its tests and not their imports.
# Never the package itself.
PRELOAD = ["pytest", "torch"]
PRELOAD_FOR_ALL = [*PRELOAD, "torchmetrics", "sentence_transformers.sentence_transformer.losses"]


class Fault(NamedTuple):
    """One way to be wrong.

    Attributes:
        file: below the root.
        what: in words.
        old: occurs ``count`` times in the file.
        new: takes its place.
        tests: pytest's names of those to run first.
        count: of the places.
    """

    file: str
    what: str
    old: str
    new: str
    tests: tuple[str, ...]
    count: int = 1

    def plant(self, text: str) -> str:
        """The text with the fault; ValueError if the old text does not occur as often as stated."""
        if text.count(self.old) != self.count:
            raise ValueError(
                f"{self.file}: expected {self.count} times, got {text.count(self.old)}: {self.old!r}"
            )
        return text.replace(self.old, self.new)


class Outcome(NamedTuple):
    """What the tests said.

    Attributes:
        verdict: ``caught`` by a test that failed, ``survived`` them all, or ``broken`` with an
            error that is no finding.
        test: which failed first, and why if broken.
        seconds: that it took.
    """

    verdict: str
    test: str
    seconds: float


def read_faults(path: Path = ROOT / "tests/mutations.txt") -> list[Fault]:
    """The faults of a file; its first lines say how it is written."""
    faults = []
    file = ""
    for paragraph in path.read_text().split("\n\n")[1:]:
        if paragraph.startswith("== "):
            file = paragraph.removeprefix("== ").strip()
            continue
        head, *lines = paragraph.rstrip("\n").split("\n")
        what, tests, count = re.fullmatch(r"(.+)  \[([^;]+)(?:; (\d+) places)?\]", head).groups()
        old, new = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
        faults.append(
            Fault(file, what, old, new, tuple(map(test_path, tests.split())), int(count or 1))
        )
    return faults


def test_path(name: str) -> str:
    """``pairwise::test_x`` to what pytest takes; ``check/power`` where the file
    lies in another folder.
    """
    file, *one = name.split("::")
    *parents, stem = file.split("/")
    file = "/".join([*parents, f"test_{stem}.py"])
    folders = (
        "tests/losses",
        "tests/pairs",
        "tests",
        "tests/models/encoder",
        "tests/models/encoder/kernels",
    )
    folder = next(folder for folder in folders if (ROOT / folder / file).exists())
    return "::".join([f"{folder}/{file}", *one])


class FirstFailure:
    """A plugin of pytest that keeps the first test that failed, and with what."""

    test = ""
    error = None

    def pytest_exception_interact(self, node, call, report) -> None:
        if call.when == "call" and self.error is None:  # not a fixture, not an import
            self.test = (
                node.nodeid.removeprefix("tests/").removeprefix("losses/").removeprefix("pairs/")
            )
            self.error = call.excinfo.value


def run_tests(package: Path, fault: Fault | None, rounds: list[tuple[str, ...]]) -> Outcome:
    """Run rounds of tests over a copy of the package with a fault, up to the first failure; in a
    process of its own, in which the package is not yet imported.
    """
    import pytest

    began = time.perf_counter()
    first = FirstFailure()
    code = pytest.ExitCode.OK
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()) as output,
    ):
        shutil.copytree(package, folder, dirs_exist_ok=True)
        if fault is not None:
            path = Path(folder, fault.file)
            path.write_text(fault.plant(path.read_text()))
        os.chdir(folder)
        sys.path.insert(0, folder)
        for tests in rounds:
            if code == pytest.ExitCode.OK:
                code = pytest.main(
                    ["-x", "-q", "-p", "no:cacheprovider", "--noconftest", *tests], plugins=[first]
                )
        imported = Path(sys.modules["ltr"].__file__ if "ltr" in sys.modules else package)
        is_copy = imported.resolve().is_relative_to(Path(folder).resolve())
        os.chdir(ROOT)
    seconds = time.perf_counter() - began
    if code == pytest.ExitCode.OK and is_copy:
        return Outcome("survived", "", seconds)
    if (
        code == pytest.ExitCode.TESTS_FAILED
        and is_copy
        and first.test
        and not isinstance(first.error, CRASHES)
    ):
        return Outcome("caught", first.test, seconds)
    return Outcome(
        "broken",
        f"{first.test} {first.error!r}" if first.test else output.getvalue()[-300:],
        seconds,
    )


def copy_package(folder: str) -> Path:
    """The package and its tests as they stand now: what is edited during the run does not mix in."""
    for name in ("ltr", "tests"):
        shutil.copytree(
            ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "setup.cfg", folder)
    return Path(folder)


def main() -> int:
    """Print the table; 1 if a fault survives or is no fault."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-j", type=int, default=1, help="processes at a time")
    parser.add_argument(
        "words", nargs="*", help="only the faults whose file or description has one of these"
    )
    options = parser.parse_args()
    faults = [
        f
        for f in read_faults()
        if not options.words or any(w in f"{f.file} {f.what}" for w in options.words)
    ]
    os.environ.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", HF_HUB_OFFLINE="1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD if options.words else PRELOAD_FOR_ALL)
    processes = ProcessPoolExecutor(options.j, mp_context=context, max_tasks_per_child=1)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.callback(
            processes.shutdown, cancel_futures=True
        )  # interrupted, or nothing to find: do not wait for the others
        package = copy_package(folder)
        needed = (
            tuple(dict.fromkeys(t for f in faults for t in f.tests))
            if options.words
            else EVERY_TEST
        )
        for fault in faults:
            fault.plant((package / fault.file).read_text())  # before anything runs: can it be?
        sound = processes.submit(run_tests, package, None, [needed])
        outcomes = [
            processes.submit(run_tests, package, fault, [fault.tests, EVERY_TEST])
            for fault in faults
        ]
        if sound.result().verdict != "survived":
            print(f"the tests must pass before a fault is planted: {sound.result().test}")
            return 1
        print(f"{'file':<16} {'fault':<78} {'seconds':>7}  caught by")
        caught = 0
        for fault, outcome in zip(faults, outcomes, strict=True):
            verdict, test, seconds = outcome.result()
            caught += verdict == "caught"
            by = test if verdict == "caught" else f"{verdict.upper()} {test}"
            print(f"{Path(fault.file).name:<16} {fault.what:<78} {seconds:>7.1f}  {by}", flush=True)
    print(f"{len(faults)} faults, {caught} caught")
    return int(caught < len(faults))


if __name__ == "__main__":
    sys.exit(main())
