"""How long does a query take over a corpus that is kept encoded?  python benchmarks/search.py

Three starts, each in a process of its own, with an empty cache before the first: encode the corpus
and search; find the encodings and search; find them in half precision, which must encode again. A
start has a first query, and 20 others.
"""

import statistics
import tempfile
import time
from importlib.metadata import version

from harness.machine import machine_line
from harness.options import LIVEQA, MEDQUAD, add_backbone, add_data, parser
from harness.processes import environment, run_apart

from ltr import load
from ltr.data.collection import open_collection
from ltr.use.retriever import Retriever

QUERIES = 21


def one_start(
    ranker: str, data: str, precision: str, queries: list[str]
) -> dict[str, float | bool]:
    """Seconds until the corpus is ready, and milliseconds of queries."""
    begin = time.perf_counter()
    retriever = load(ranker, precision)
    assert isinstance(retriever, Retriever), "a dual encoder"
    corpus = retriever.corpus(data)
    ready = time.perf_counter() - begin
    times = []
    for query in queries:
        begin = time.perf_counter()
        corpus.search(query, 10)
        times.append(1000 * (time.perf_counter() - begin))
    others = {"median": statistics.median(times[1:]), "slowest": max(times[1:])}
    return {
        "kept": corpus.was_kept,
        "documents": len(corpus.documents),
        "ready": ready,
        "first": times[0],
        **others,
    }


def main() -> None:
    """Print a table, a row a start."""
    arguments = parser(__doc__)
    add_data(arguments, LIVEQA, MEDQUAD)
    add_backbone(arguments)
    options = arguments.parse_args()
    texts = open_collection(options.data).queries.texts
    queries = [texts[row] for row in range(3 if options.tiny else QUERIES)]
    print(f"{machine_line()}; faiss {version('faiss-cpu')}\n")
    print(
        "| start | documents | kept | until the first query, s | first query, ms | others: median, ms | slowest, ms |"
    )
    print("| --- " * 7 + "|")
    with tempfile.TemporaryDirectory() as cache, environment(LTR_CACHE=cache):
        for precision in ("32-true", "32-true", "bf16-mixed"):
            one = run_apart(one_start, options.backbone, options.data, precision, queries)
            times = " | ".join(
                f"{one[name]:.1f}" for name in ("ready", "first", "median", "slowest")
            )
            print(
                f"| {precision} | {one['documents']:,} | {'yes' if one['kept'] else 'no'} | {times} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
