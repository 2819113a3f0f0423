"""What does it cost to open and to import rows of texts?  python benchmarks/import_forms.py

Writes the same triplets in each form, and iterates them by Hugging Face datasets, as a stream and
prepared (rewritten as Arrow, then iterated): no check, no ids, no order. Ours then opens them as
every command does for the first time, and imports them. Each in a process of its own, after the
imports, whose memory is left out; a cache is new each time.
"""

import csv
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from harness.machine import machine_line
from harness.options import parser
from harness.tables import head, row
from harness.watched import watched
from harness.zipf import texts

from ltr.cli.import_data import import_data
from ltr.data.collection import open_collection

try:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:  # the extra bench; ours reads text without
    datasets = None

ROWS = 1_000_000
WORDS_OF_QUERY = 6
WORDS = 30  # of a document
BATCH = 10_000  # rows of a Parquet file that are written at once
NAMES = ("query", "positive", "negative")

Triplet = tuple[str, str, str]


def triplets(n: int) -> Iterator[Triplet]:
    """Random words; hardly two queries are alike."""
    parts = (texts(n, WORDS_OF_QUERY, 0), texts(n, WORDS, 1), texts(n, WORDS, 2))
    yield from zip(*parts, strict=True)


def write_bge(file: Path, rows: Iterable[Triplet]) -> None:
    """JSON lines with lists of positives and negatives."""
    with open(file, "w", encoding="utf-8") as opened:
        for query, positive, negative in rows:
            record = {"query": query, "pos": [positive], "neg": [negative]}
            opened.write(json.dumps(record) + "\n")


def write_tevatron(file: Path, rows: Iterable[Triplet]) -> None:
    """JSON lines with passages that have ids."""
    with open(file, "w", encoding="utf-8") as opened:
        for number, (query, positive, negative) in enumerate(rows):
            positives = [{"docid": f"p{number}", "title": "", "text": positive}]
            negatives = [{"docid": f"n{number}", "title": "", "text": negative}]
            record = {"query_id": f"q{number}", "query": query}
            record |= {"positive_passages": positives, "negative_passages": negatives}
            opened.write(json.dumps(record) + "\n")


def write_csv(file: Path, rows: Iterable[Triplet]) -> None:
    """Text with commas, and names above."""
    with open(file, "w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(NAMES)
        writer.writerows(rows)


def write_tsv(file: Path, rows: Iterable[Triplet]) -> None:
    """Text with tabs, and names above."""
    with open(file, "w", encoding="utf-8") as opened:
        opened.write("\t".join(NAMES) + "\n")
        opened.writelines("\t".join(each) + "\n" for each in rows)


def write_parquet(file: Path, rows: Iterable[Triplet]) -> None:
    """Columns."""
    schema = pa.schema([(name, pa.string()) for name in NAMES])
    with pq.ParquetWriter(file, schema) as writer:
        block: list[Triplet] = []
        for each in rows:
            block.append(each)
            if len(block) == BATCH:
                writer.write_table(_table(block, schema))
                block = []
        if block:
            writer.write_table(_table(block, schema))


def _table(block: list[Triplet], schema: "pa.Schema") -> "pa.Table":
    columns = zip(*block, strict=True)
    return pa.table([pa.array(column) for column in columns], schema=schema)


# The name of the file, what writes it, and what datasets calls it.
FORMS: dict[str, tuple[str, Callable[[Path, Iterable[Triplet]], None], str, dict]] = {
    "BGE, JSON lines": ("bge.jsonl", write_bge, "json", {}),
    "Tevatron, JSON lines": ("tevatron.jsonl", write_tevatron, "json", {}),
    "triplets, CSV": ("triplets.csv", write_csv, "csv", {}),
    "triplets, tabs": ("triplets.tsv", write_tsv, "csv", {"delimiter": "\t"}),
    "triplets, Parquet": ("triplets.parquet", write_parquet, "parquet", {}),
}


def write(form: str, file: Path, n: int) -> None:
    """Write the triplets in a form."""
    FORMS[form][1](file, triplets(n))


def do_nothing() -> None:
    """The memory is that of what is imported."""


def stream(form: str, file: Path, _: Path) -> None:
    """Iterate the rows as they come."""
    _iterate(form, file, streaming=True)


def prepare(form: str, file: Path, cache: Path) -> None:
    """Write the rows as Arrow, then iterate them."""
    _iterate(form, file, cache_dir=str(cache))


def _iterate(form: str, file: Path, **options: object) -> None:
    _, _, kind, own = FORMS[form]
    datasets.disable_progress_bars()
    for _ in datasets.load_dataset(kind, data_files=str(file), split="train", **own, **options):
        pass


def open_rows(form: str, file: Path, cache: Path) -> None:
    """Read, check and sort all texts and judgements."""
    os.environ["LTR_CACHE"] = str(cache)
    open_collection(file)


def import_rows(form: str, file: Path, cache: Path) -> None:
    """The same, and write a data folder."""
    os.environ["LTR_CACHE"] = str(cache)
    import_data(str(file), str(cache / "imported"))


WAYS = {
    "datasets, a stream": stream,
    "datasets, prepared": prepare,
    "ltr, opened": open_rows,
    "ltr, imported": import_rows,
}
RIVALS = ("datasets, a stream", "datasets, prepared")


def main() -> None:
    """Print a table."""
    arguments = parser(__doc__)
    arguments.add_argument("--rows", type=int, default=ROWS, help="of each form")
    arguments.add_argument(
        "--forms", nargs="+", choices=list(FORMS), default=list(FORMS), help="not all of them"
    )
    options = arguments.parse_args()
    n = 100 if options.tiny else options.rows
    forms = options.forms[-2:] if options.tiny else options.forms
    base = watched(do_nothing).peak
    print(machine_line())
    rival = "no datasets" if datasets is None else f"datasets {datasets.__version__}"
    print(f"{n:,} rows of {WORDS_OF_QUERY + 2 * WORDS} words; {rival}\n")
    columns = ["form", "by", "seconds", "of them on a core", "times a stream", "times prepared"]
    print(head([*columns, "memory over the imports, MB"]))
    for form in forms:
        if datasets is None and form == "triplets, Parquet":
            continue
        with tempfile.TemporaryDirectory() as temporary:
            file = Path(temporary, FORMS[form][0])
            watched(write, form, file, n)  # apart, as its memory would be inherited
            busy: dict[str, float] = {}
            for name, way in WAYS.items():
                if datasets is None and way in (stream, prepare):
                    print(row([form, name, "cannot run", "", "", "", ""]))
                    continue
                with tempfile.TemporaryDirectory() as cache:
                    took = watched(way, form, file, Path(cache))
                busy[name] = took.busy
                times = [f"{took.busy / busy[rival]:.2f}" for rival in RIVALS if rival in busy]
                cells = [form, name, f"{took.seconds:,.1f}", f"{took.busy:,.1f}"]
                cells += [*times, *[""] * (len(RIVALS) - len(times))]
                print(row([*cells, f"{(took.peak - base) / 1e6:,.0f}"]), flush=True)


if __name__ == "__main__":
    main()
