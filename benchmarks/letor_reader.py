"""How fast is LETOR text read into arrays?  python benchmarks/letor_reader.py

The text files of a folder are repeated, with new query numbers each time, in one plain file. Ours
checks, sorts and writes it into a cache of its own; scikit-learn reads it into sparse arrays in
memory. Both in one process, in turn.
"""

import gzip
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
from harness.machine import machine_line
from harness.options import parser
from sklearn.datasets import load_svmlight_file

from ltr.data.letor import read_letor

RUNS = 3
BYTES = 100_000_000
QIDS = 1_000_000  # of one repetition


def write_large(folder: Path, large: Path, size: int) -> None:
    """Repeat the parts of a folder until they have ``size`` bytes."""
    parts = []
    for file in sorted(folder.glob("*.txt*")):
        content = file.read_bytes()
        parts.append(gzip.decompress(content) if file.suffix == ".gz" else content)
    with open(large, "wb") as out:
        repetition = 0
        while out.tell() < size:
            for part in parts:
                out.write(renumbered(part, repetition * QIDS))
            repetition += 1


def renumbered(text: bytes, offset: int) -> bytes:
    """The text with the offset added to each query's number."""
    return re.sub(rb"qid:(\d+)", lambda match: b"qid:%d" % (int(match[1]) + offset), text)


def ours(file: Path) -> tuple[int, float]:
    """Rows, and the sum of their features."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["LTR_CACHE"] = cache
        split = read_letor([file])
        return len(split.labels), float(split.features.sum(dtype=np.float64))


def sklearn(file: Path) -> tuple[int, float]:
    """The same with scikit-learn."""
    features, labels, _ = load_svmlight_file(
        str(file), dtype=np.float32, query_id=True, zero_based=False
    )
    return len(labels), float(features.sum(dtype=np.float64))


def main() -> None:
    """Print a table."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--data", type=Path, default=Path("data", "mq2008"), help="a folder of LETOR files"
    )
    options = arguments.parse_args()
    runs = RUNS
    size = BYTES
    if options.tiny:
        runs = 1
        size = 1
    readers: dict[str, Callable[[Path], tuple[int, float]]] = {
        "ours": ours,
        f"scikit-learn {version('scikit-learn')}": sklearn,
    }
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "large.txt"
        write_large(options.data, file, size)
        megabytes = file.stat().st_size / 1e6
        for _ in range(runs):
            answers = []
            for name, read in readers.items():
                start = time.perf_counter()
                answers.append(read(file))
                seconds[name].append(time.perf_counter() - start)
            np.testing.assert_allclose(*answers, rtol=1e-6)
    n_rows = answers[0][0]
    amount = f"{megabytes:.0f} MB, {n_rows:,} rows"
    print(machine_line(), f"\n{options.data} repeated, {amount}; median of {runs} runs\n")
    print("| reader | seconds | MB/s | rows/s |\n| --- | --- | --- | --- |")
    for name, taken in seconds.items():
        median = statistics.median(taken)
        print(f"| {name} | {median:.2f} | {megabytes / median:.1f} | {n_rows / median:,.0f} |")


if __name__ == "__main__":
    main()
