"""How long does a query take over a corpus that is kept encoded?  python benchmarks/search.py

Three starts, each in a process of its own, with an empty cache before the first: encode the corpus
and search; find the encodings and search; find them in half precision, which must encode again. A
start has a first query, and 20 others.
"""

import statistics
import tempfile
import time

from harness.machine import machine_line
from harness.options import LIVEQA, MEDQUAD, add_backbone, add_data, parser
from harness.processes import environment, run_apart
from harness.tables import head, row

from ltr import load
from ltr.data.collection import open_collection
from ltr.data.files import cache_root
from ltr.search.faiss_index import faiss
from ltr.use.retriever import Retriever

QUERIES = 21


def start(ranker: str, data: str, precision: str, queries: list[str]) -> dict[str, float]:
    """Open the corpus, and search it with one query after the other: seconds until it is ready, and
    milliseconds of queries. By name, as a pipe can't take a class of a script.
    """
    encodings = cache_root() / "encodings"
    kept_before = set(encodings.glob("*"))
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
    first, *others = times
    return {
        "was_kept": kept_before == set(encodings.glob("*")),
        "n_docs": len(corpus.documents),
        "ready": ready,
        "first": first,
        "median": statistics.median(others),
        "slowest": max(others),
    }


def main() -> None:
    """Print a table, a row a start."""
    arguments = parser(__doc__)
    add_data(arguments, LIVEQA, MEDQUAD)
    add_backbone(arguments)
    options = arguments.parse_args()
    texts = open_collection(options.data).queries.texts
    queries = [texts[row] for row in range(3 if options.tiny else QUERIES)]
    faiss_line = f"faiss {faiss.__version__}" if faiss else "no faiss"
    print(f"{machine_line()}; {faiss_line}\n")
    columns = ["start", "documents", "kept", "until the first query, s", "first query, ms"]
    print(head([*columns, "others: median, ms", "slowest, ms"]))
    with tempfile.TemporaryDirectory() as cache, environment(LTR_CACHE=cache):
        for precision in ("32-true", "32-true", "bf16-mixed"):
            result = run_apart(start, options.backbone, options.data, precision, queries)
            cells = [precision, f"{result['n_docs']:,}", "yes" if result["was_kept"] else "no"]
            for name in ("ready", "first", "median", "slowest"):
                cells.append(f"{result[name]:.1f}")
            print(row(cells), flush=True)


if __name__ == "__main__":
    main()
