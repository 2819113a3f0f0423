"""What does ltr check take on a large collection?  python benchmarks/check.py

Makes a data folder of documents of 60 words and queries of 8, which follow Zipf's law. Of 100
documents one is equal to another but for case and full stops, one has a tenth of its words
replaced, and two belong to one large group of texts that are one text so changed.
Of 100 test queries one is equal to a training query, one has its words in another order, and one
has the document of a training query, under another id.

Each part then runs in a process of its own, after the imports, in the order of the table: a part
finds in the cache what those before it made. At the end the whole command runs with an empty cache.
"""

import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from harness.machine import machine_line
from harness.options import parser
from harness.tables import head, row
from harness.watched import Watched, WatchedCommand, watched, watched_command
from harness.zipf import VOCABULARY, texts, write_json_lines

from ltr.__main__ import main as program
from ltr.check.judgements import found_by_bm25, judgements_section
from ltr.check.leakage import find_leakage
from ltr.check.power import power_section
from ltr.data.collection import open_collection
from ltr.module import METRICS

WORDS = 60  # of a document
REPLACED = 6  # of them, in a near one
WORDS_OF_QUERY = 8
PER_QUERY = 10  # documents for each query


def documents(n: int) -> Iterator[str]:
    """Texts; the second and the third of each hundred are changed copies of its first."""
    random = np.random.default_rng(1)
    template = next(texts(1, WORDS, seed=2)).split()
    first: list[str] = []
    for number, text in enumerate(texts(n, WORDS, seed=0)):
        words = text.split()
        place = number % 100
        if place == 0:
            first = words
        if place == 1:
            text = ". ".join(first).upper()
        if place == 2:
            text = " ".join(_replaced(first, words, random.permutation(WORDS)[:REPLACED]))
        if place in (3, 4):
            text = " ".join(_replaced(template, words, random.permutation(WORDS)[:REPLACED]))
        yield text


def _replaced(words: list[str], others: list[str], places: np.ndarray) -> list[str]:
    """The words with those at some places exchanged for others."""
    changed = list(words)
    for place in places.tolist():
        changed[place] = others[place]
    return changed


def queries(n: int) -> Iterator[tuple[str, str, int]]:
    """The split, the text and the relevant document of each query: eight of ten are training."""
    of_training = ""
    for number, text in enumerate(texts(n, WORDS_OF_QUERY, seed=3)):
        split = {8: "dev", 9: "test"}.get(number % 10, "train")
        doc = number * PER_QUERY
        place = number // 10 % 100
        if number % 10 == 0:
            of_training = text
        if split == "test" and place == 0:
            text = f"{of_training.upper()}?"
        if split == "test" and place == 1:
            text = " ".join(reversed(of_training.split()))
        if split == "test" and place == 2:
            # The document behind that of the training query is its copy.
            doc = (number - 9) * PER_QUERY + 1
        yield split, text, doc


def make(folder: Path, n_docs: int) -> None:
    """Write the data folder, text by text."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    write_json_lines(
        folder / "corpus.jsonl",
        ((f"d{number}", text) for number, text in enumerate(documents(n_docs))),
    )
    lines: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    records = []
    for number, (split, text, doc) in enumerate(queries(n_docs // PER_QUERY)):
        records.append((f"q{number}", text))
        lines[split].append(f"q{number}\td{doc}\t1\n")
    write_json_lines(folder / "queries.jsonl", records)
    for split, of_split in lines.items():
        text = "".join(["query-id\tcorpus-id\tscore\n", *of_split])
        (folder / f"qrels/{split}.tsv").write_text(text)


def do_nothing(folder: Path) -> None:
    """Nothing: the memory is that of what is imported."""


def read(folder: Path) -> None:
    """Read, check and sort the documents, the queries and the judgements."""
    open_collection(folder)


def leakage_of_queries(folder: Path) -> None:
    """What leaks between the splits, without near texts of the corpus."""
    find_leakage(open_collection(folder), with_corpus=False)


def leakage(folder: Path) -> None:
    """All that leaks."""
    find_leakage(open_collection(folder))


def judgements(folder: Path) -> None:
    """What is judged, without a search."""
    judgements_section(open_collection(folder), search=False)


def search(folder: Path) -> None:
    """Search by BM25 for 1,000 queries of dev and 1,000 of test."""
    collection = open_collection(folder)
    for split in ("dev", "test"):
        found_by_bm25(collection, split)


def power(folder: Path) -> None:
    """What dev and test can show, by what BM25 has found."""
    power_section(open_collection(folder), METRICS[0])


PARTS = {
    "imports alone": do_nothing,
    "read, check and sort": read,
    "leakage, queries alone": leakage_of_queries,
    "leakage, with the corpus": leakage,
    "judgements, without a search": judgements,
    "BM25, of dev and test": search,
    "what dev and test can show": power,
}
WHOLE = "the whole command, empty cache"


def found_beside_planted(file: Path, n_docs: int) -> str:
    """A line of what the command has found of what was planted.

    Args:
        file: that ``--json`` wrote.
        n_docs: documents.
    """
    sections = json.loads(file.read_text())["sections"]
    of: dict[str, Any] = next(s["entries"] for s in sections if s["title"].startswith("Leakage"))
    of_test = of["queries"]["test"]["train"]
    of_corpus = of["corpus"]
    n_planted = len(range(0, n_docs // PER_QUERY, 1000))
    n_hundreds = n_docs // 100
    return (
        f"Test queries, found of planted: equal {of_test['equal']:,} of {n_planted:,}, "
        f"near {of_test['near']:,} of {n_planted:,}, "
        f"with the same document {of_test['set']:,} of {n_planted:,}. "
        f"Texts: equal {of_corpus['equal']:,} of {2 * n_hundreds:,}, "
        f"near {of_corpus['near']:,} of {5 * n_hundreds:,}."
    )


def cells_of(took: Watched | WatchedCommand) -> list[str]:
    """Seconds and memory, as the table has them."""
    return [f"{took.seconds:,.1f}", f"{took.busy:,.1f}", f"{took.peak / 1e6:,.0f}"]


def in_this_process(words: list[str]) -> None:
    """Run a command quickly: its imports are no measure."""
    with redirect_stdout(io.StringIO()):
        assert program(words) == 0, words


def main() -> None:
    """Make the data, print a table."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--documents", type=int, default=1_000_000, help="number of documents")
    arguments.add_argument(
        "--folder",
        type=Path,
        help="where the data are made, or lie from a run before (default: a temporary folder)",
    )
    names = [*PARTS, WHOLE]
    arguments.add_argument("--parts", nargs="+", choices=names, default=names, help="not all")
    options = arguments.parse_args()
    n_docs = 1000 if options.tiny else options.documents
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "qrels/test.tsv").exists():
            watched(make, folder, n_docs)  # apart, as its memory would be inherited
        os.environ["LTR_CACHE"] = f"{temporary}/cache"
        print(machine_line())
        print(
            f"{n_docs:,} documents of {WORDS} words, {n_docs // PER_QUERY:,} queries of {WORDS_OF_QUERY}, {VOCABULARY:,} words\n"
        )
        columns = ["part", "seconds", "of them on a core", "peak memory, MB"]
        print(head([*columns, "without mapped files, MB"]))
        for name in options.parts:
            if name != WHOLE:
                took = watched(PARTS[name], folder)
                own = f"{took.peak_own / 1e6:,.0f}"
                print(row([name, *cells_of(took), own]), flush=True)
        if WHOLE in options.parts:
            file = Path(temporary, "check.json")
            words = ["check", "--data", str(folder), "--json", str(file)]
            os.environ["LTR_CACHE"] = f"{temporary}/empty"
            whole: Watched | WatchedCommand
            if options.tiny:
                whole = watched(in_this_process, words)
            else:
                whole = watched_command([sys.executable, "-m", "ltr", *words])
            print(row([WHOLE, *cells_of(whole), ""]))
            print(f"\n{found_beside_planted(file, n_docs)}")


if __name__ == "__main__":
    main()
