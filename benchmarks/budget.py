"""What does search within a budget find, and what does it take?  python benchmarks/budget.py
--documents 1000000 --memory 1GB

Makes an encoding of random embeddings around centres, in halves, and queries: documents with noise.
The embeddings themselves are searched exactly, and codes of them within the budget; each stage runs
in a process of its own, after the imports.
"""

import tempfile
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
from harness.machine import machine_line
from harness.options import parser
from harness.tables import head, row
from harness.watched import watched

from ltr.search.budget import Asked, Budget, bytes_of, index_within, memory_needed, recall_of
from ltr.search.encoding import Encoding, EncodingPlan, rows_of_shard
from ltr.search.index import DenseIndex
from ltr.search.numbers import Numbers, to_stored
from ltr.search.shard_file import write_shard
from ltr.similarity import SIMILARITIES

DIM = 384
PER_CENTRE = 100  # documents around a centre
NOISE = 0.7  # of a document, beside its centre; of a component, where that of the centre is 1
NOISE_OF_QUERY = 0.4
QUERIES = 1000
MEASURED = 200  # queries on which recall is measured
DEPTH = 100
COSINE = SIMILARITIES["cosine"]


@cache
def centres() -> np.ndarray:
    """What centres are made of, two each."""
    return np.random.default_rng(0).standard_normal((2**16, DIM), dtype=np.float32)


def embeddings(n_docs: int, rows: slice) -> np.ndarray:
    """Those of some rows: any rows can be made alone, in blocks of a shard."""
    n_centres = max(1, n_docs // PER_CENTRE)
    rng = np.random.default_rng([1, rows.start])
    chosen = rng.integers(n_centres, size=rows.stop - rows.start)
    table = centres()
    # A centre is a function of its number: a million of them need not be kept.
    centre = table[chosen % 2**16] + 0.5 * table[chosen // 2**16 + 7]
    noise = rng.standard_normal((len(chosen), DIM), dtype=np.float32)
    return centre + NOISE * noise


def make(folder: Path, n_docs: int, numbers: Numbers) -> None:
    """Write the shards of an encoding, and queries."""
    plan = EncodingPlan("random", "32-true", "none", n_docs, rows_of_shard(n_docs), numbers)
    encoding = Encoding(folder, plan)
    for number in range(plan.n_shards):
        if encoding.file(number).exists():
            continue
        shard = to_stored(embeddings(n_docs, plan.span(number)), numbers)
        write_shard(encoding.file(number), shard, plan.key, number, "cpu")
    encoding.finish()
    rng = np.random.default_rng(2)
    docs = encoding.embeddings()[np.unique(rng.integers(n_docs, size=QUERIES + MEASURED))]
    queries = docs + NOISE_OF_QUERY * rng.standard_normal(docs.shape, dtype=np.float32)
    np.save(folder / "queries.npy", rng.permutation(queries))


def asked(folder: Path) -> Asked:
    """The queries on which recall is measured; others are searched for."""
    queries = np.load(folder / "queries.npy")[:MEASURED]
    return Asked(len(queries), "measured", lambda: queries)


def do_nothing(folder: Path) -> None:
    """Nothing: the memory is that of what is imported."""


def search_exactly(folder: Path) -> None:
    """Search the embeddings, which are read from the disk."""
    index = DenseIndex.build(Encoding.open(folder).embeddings(), COSINE)
    found = index.search(np.load(folder / "queries.npy")[MEASURED:], DEPTH)
    np.savez(folder / "exact.npz", scores=found[0], rows=found[1])


def open_within(folder: Path, memory: str, recall: float) -> None:
    """Learn codes and measure their recall; a second time both are found."""
    index_within(
        Budget(bytes_of(memory), DEPTH, recall), Encoding.open(folder), COSINE, asked(folder)
    )


def search_within(folder: Path, memory: str, recall: float, n_queries: int) -> None:
    """Open again, and search."""
    budget = Budget(bytes_of(memory), DEPTH, recall)
    chosen = index_within(budget, Encoding.open(folder), COSINE, asked(folder))
    queries = np.load(folder / "queries.npy")[MEASURED:][:n_queries]
    found = chosen.index.search(queries, DEPTH)
    line = chosen.line
    if (folder / "exact.npz").exists():
        exact = np.load(folder / "exact.npz")
        expected = (exact["scores"][:n_queries], exact["rows"][:n_queries])
        line += f"; recall {recall_of(found, expected):.3f} on {len(queries)} other queries"
    (folder / "line.txt").write_text(line)


def main() -> None:
    """Make the encoding, print a table."""
    arguments = parser(__doc__)
    arguments.add_argument("--documents", type=int, default=1_000_000, help="number of documents")
    arguments.add_argument("--memory", nargs="+", default=["1GB"], help="budgets")
    arguments.add_argument("--recall", type=float, default=0.95, help="that must be reached")
    arguments.add_argument("--folder", type=Path, help="where the encoding lies, or is made")
    arguments.add_argument("--numbers", choices=get_args(Numbers), default="float16")
    arguments.add_argument("--without-exact", action="store_true", help="no exact search of all")
    options = arguments.parse_args()
    n_docs = 3000 if options.tiny else options.documents
    memory_of_tiny = memory_needed("one bit", (n_docs, DIM), 2 * DIM)
    memories = [f"{memory_of_tiny / 1000}KB"] if options.tiny else options.memory
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        if not (folder / "queries.npy").exists():
            watched(make, folder, n_docs, options.numbers)
        print(machine_line())
        print(
            f"{n_docs:,} × {DIM} in {options.numbers}; {QUERIES:,} queries, {DEPTH} documents of each\n"
        )
        print(head(["stage", "budget", "seconds", "peak memory, MB", "without mapped files, MB"]))
        stages = [("imports alone", "", do_nothing, ())]
        if not options.without_exact and not (folder / "exact.npz").exists():
            stages.append((f"exact search, {QUERIES:,} queries", "", search_exactly, ()))
        for memory in memories:
            within = (memory, options.recall)
            stages += [
                ("learn codes, measure", memory, open_within, within),
                ("open again", memory, open_within, within),
                (f"search, {QUERIES:,} queries", memory, search_within, (*within, QUERIES)),
                ("search, one query", memory, search_within, (*within, 1)),
            ]
        lines = []
        for name, memory, function, words in stages:
            took = watched(function, folder, *words)
            cells = [name, memory, f"{took.seconds:,.1f}", f"{took.peak / 1e6:,.0f}"]
            print(row([*cells, f"{took.peak_own / 1e6:,.0f}"]), flush=True)
            if function is search_within and words[-1] == QUERIES:
                lines.append(f"{memory}: {(folder / 'line.txt').read_text()}")
        print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
