"""How long does mining take, and how much memory?  OMP_NUM_THREADS=1 python benchmarks/mining.py

search: the 100 best of a million random embeddings of 384 dimensions for 10,000 queries, exact, by cosine, read from a
memory map by one process on the CPU (on a GPU if there is one). Reading is the pass that checks that all are finite. The
memory is the process's own at its peak, libraries included, beside the pages of the map, which the system may drop.
"""

import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from harness.machine import described, resident
from harness.options import parser

from ltr.data.files import new_array, read_array
from ltr.search.embeddings import DOCS, spans
from ltr.search.shards import Shards

EVERY = 0.02  # seconds between two looks at the memory


class Peak:
    """While entered, watches the memory of this process that is not mapped from files; ``bytes`` is the peak."""

    def __enter__(self) -> "Peak":
        self.bytes, self._left = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._left.wait(EVERY):
            self.bytes = max(self.bytes, resident("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self.bytes = max(self.bytes, resident("RssAnon"))
        self._left.set()
        self._thread.join()


def random_map(file: Path, n_docs: int, dim: int) -> np.ndarray:
    """``[D, H]``, mapped from a file: a block of normal numbers again and again, each time moved by another vector."""
    rng, docs = np.random.default_rng(0), new_array(file, np.float32, (n_docs, dim))
    block = rng.standard_normal((min(n_docs, DOCS), dim), dtype=np.float32)
    for span in spans(n_docs, DOCS):
        docs[span] = block[: span.stop - span.start] + rng.standard_normal(dim, dtype=np.float32)
    docs.flush()
    return read_array(file)


def search(n_docs: int, n_queries: int, dim: int, depth: int, folder: str) -> None:
    """Print a table of one row."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        docs = random_map(Path(temporary) / "docs.npy", n_docs, dim)
        queries = np.random.default_rng(1).standard_normal((n_queries, dim), dtype=np.float32)
        with Peak() as peak:
            start, start_cpu = time.perf_counter(), time.process_time()
            shards = Shards(docs, np.arange(n_docs), "cosine")
            read = time.perf_counter()
            shards.search(queries, depth)
            found, found_cpu = time.perf_counter(), time.process_time()
    print(
        "| documents | queries | depth | map, GB | read and checked, s | searched, s | both, s of CPU | peak beside the map, GB |"
    )
    print("| --- " * 8 + "|")
    times = f"{read - start:.1f} | {found - read:.1f} | {found_cpu - start_cpu:.1f}"
    print(f"| {n_docs:,} | {n_queries:,} | {depth} | {docs.nbytes / 1e9:.2f} | {times} | {peak.bytes / 1e9:.2f} |")


def main() -> None:
    """Read the options, print a table."""
    made = parser(__doc__)
    made.add_argument("--docs", type=int, default=1_000_000)
    made.add_argument("--queries", type=int, default=10_000)
    made.add_argument("--dim", type=int, default=384)
    made.add_argument("--depth", type=int, default=100)
    made.add_argument("--folder", help="where the memory map lies for as long as it is searched; default: the system's")
    options = made.parse_args()
    sizes = (1000, 10, 16, 5) if options.tiny else (options.docs, options.queries, options.dim, options.depth)
    print(described(), "\n")
    search(*sizes, options.folder)


if __name__ == "__main__":
    main()
