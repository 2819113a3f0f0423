"""What does a large corpus cost?  python benchmarks/corpus.py --documents 1000000

Makes a data folder of documents of 60 words, queries and judgements. The words follow Zipf's law;
the ids share long beginnings, and are not in order. Each stage then runs in a process of its own,
after the imports, in the order of the table: a stage finds in the cache what those before it made.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
from harness.machine import machine_line
from harness.options import add_backbone, parser
from harness.tables import head, row
from harness.watched import watched
from harness.zipf import texts, write_json_lines

from ltr.data.bm25 import bm25_lists
from ltr.data.collection import open_collection
from ltr.data.text_files import open_texts
from ltr.data.tokens import TokenStore
from ltr.mining.filters import Recipe
from ltr.mining.miner import Miner
from ltr.models import DualEncoder
from ltr.models.encoder.loading.pretrained import load_tokenizer
from ltr.search.embedder import Embedder, embedder_of
from ltr.search.encoding import Encoding, TextsToEncode, plan_of
from ltr.search.encoding_places import texts_of_store
from ltr.search.numbers import Numbers, to_stored
from ltr.search.shard_file import write_shard

WORDS = 60  # of a document
WORDS_OF_QUERY = 6
QUERIES = 10_000
JUDGED = 10  # documents of a query
SEARCHED = 1000  # queries that BM25 searches for
DEPTH = 100  # documents that BM25 finds for a query
SHARDS = 64  # that the ids name


def doc_id(number: int) -> str:
    """As those of MS MARCO's second version: document and shard."""
    return f"msmarco_passage_{number % SHARDS:02d}_{number}"


def make(folder: Path, n_docs: int, n_queries: int) -> None:
    """Write the data folder, text by text."""
    docs = enumerate(texts(n_docs, WORDS, seed=0))
    write_json_lines(folder / "corpus.jsonl", ((doc_id(number), text) for number, text in docs))
    queries = enumerate(texts(n_queries, WORDS_OF_QUERY, seed=1))
    write_json_lines(folder / "queries.jsonl", ((f"q{number}", text) for number, text in queries))
    random = np.random.default_rng(2)
    (folder / "qrels").mkdir(exist_ok=True)
    with open(folder / "qrels/test.tsv", "w") as opened:
        for query in range(n_queries):
            for number in random.choice(n_docs, JUDGED, replace=False):
                opened.write(f"q{query}\t{doc_id(number)}\t1\n")


def do_nothing(folder: Path, backbone: str) -> None:
    """Nothing: the memory is that of what is imported."""


def read(folder: Path, backbone: str) -> None:
    """Read, check and sort the documents and the queries."""
    open_texts(str(folder), "document", "--folder")
    open_texts(str(folder), "query", "--folder")


def open_again(folder: Path, backbone: str) -> None:
    """Open what was read: this takes the digest of the files."""
    read(folder, backbone)


def look_up(folder: Path, backbone: str) -> None:
    """Open again, and look up the judgements."""
    open_collection(folder)


def tokenise(folder: Path, backbone: str) -> None:
    """Open again, and tokenise the documents."""
    corpus = open_texts(str(folder), "document", "--folder")
    TokenStore.open(corpus, load_tokenizer(backbone))


def index_for_bm25(folder: Path, backbone: str) -> None:
    """Open again, index the documents for BM25, and search for one query."""
    bm25_lists(open_collection(folder), np.arange(1), DEPTH)


def search_by_bm25(folder: Path, backbone: str) -> None:
    """Open again, and search for 1,000 queries."""
    collection = open_collection(folder)
    bm25_lists(collection, np.arange(min(SEARCHED, len(collection.queries))), DEPTH)


class RandomEmbeddings:
    """Encodings whose shards hold random numbers: to encode the texts would take hours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "embeddings"

    @contextmanager
    def encoding_of(
        self, embedder: Embedder, texts: TextsToEncode, numbers: Numbers
    ) -> Iterator[Encoding]:
        """The encoding, with all its shards; those that are missing are made."""
        self.folder.mkdir(exist_ok=True)
        encoding = Encoding(self.folder, plan_of(embedder, texts, numbers))
        plan = encoding.plan
        for number in range(plan.n_shards):
            if encoding.file(number).exists():
                continue
            span = plan.span(number)
            shape = (span.stop - span.start, embedder.tower.dim)
            drawn = np.random.default_rng([3, number]).standard_normal(shape, dtype=np.float32)
            write_shard(encoding.file(number), to_stored(drawn, numbers), plan.key, number, "cpu")
        yield encoding


def make_embeddings(folder: Path, backbone: str) -> None:
    """Write random embeddings of the documents, in halves."""
    searcher = DualEncoder(backbone)
    corpus = open_texts(str(folder), "document", "--folder")
    texts = texts_of_store(searcher.reads.docs.store(corpus))
    embedder = embedder_of(searcher, "document", nullcontext, "32-true")
    with RandomEmbeddings(folder).encoding_of(embedder, texts, "float16"):
        pass


def mine(folder: Path, backbone: str) -> None:
    """Open again, and mine negatives for 1,000 queries among random embeddings."""
    collection = open_collection(folder)
    judged = collection.judgements("test").lists_at(
        np.arange(min(SEARCHED, len(collection.queries)))
    )
    # A relevant document is no nearer than others here: a filter by its score would leave none.
    recipe = Recipe(relative=None)
    # None may be left with --tiny: its backbone knows no word, so all texts are the same to it.
    miner = Miner(DualEncoder(backbone), collection, judged, recipe, min_negatives=0)
    miner.mine(RandomEmbeddings(folder), numbers="float16")


STAGES = {
    "imports alone": do_nothing,
    "read, check and sort": read,
    "open again": open_again,
    "look up the judgements": look_up,
    "tokenise": tokenise,
    "index for BM25": index_for_bm25,
    "search by BM25": search_by_bm25,
    "make random embeddings": make_embeddings,
    "mine for 1,000 queries": mine,
}


def main() -> None:
    """Make the data, print a table."""
    arguments = parser(__doc__)
    arguments.add_argument("--documents", type=int, default=1_000_000, help="number of documents")
    arguments.add_argument(
        "--folder",
        type=Path,
        help="where the data are made, or lie from a run before (default: a temporary folder)",
    )
    arguments.add_argument(
        "--stages", nargs="+", choices=list(STAGES), default=list(STAGES), help="not all of them"
    )
    add_backbone(arguments)
    options = arguments.parse_args()
    n_docs = 1000 if options.tiny else options.documents
    n_queries = 10 if options.tiny else QUERIES
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "qrels/test.tsv").exists():
            watched(make, folder, n_docs, n_queries)  # apart, as its memory would be inherited
        os.environ["LTR_CACHE"] = f"{temporary}/cache"
        print(machine_line())
        print(f"{n_docs:,} documents of {WORDS} words, {JUDGED * n_queries:,} judgements\n")
        columns = ["stage", "seconds", "of them on a core", "peak memory, MB"]
        print(head([*columns, "without mapped files, MB"]))
        for name in options.stages:
            took = watched(STAGES[name], folder, options.backbone)
            cells = [name, f"{took.seconds:,.1f}", f"{took.busy:,.1f}", f"{took.peak / 1e6:,.0f}"]
            print(row([*cells, f"{took.peak_own / 1e6:,.0f}"]), flush=True)


if __name__ == "__main__":
    main()
