"""Which planted leaks does ltr check find, and what else does it name?  python benchmarks/planted.py
[--data PATH …]

Of each kind of leak, 100 test queries are planted that are not named yet: as training queries that
are their changed copies; or by judgements, which then hold the relevant documents of a training
query under other ids. Recall is the share of the planted queries that is named. Precision is the
share of planted ones among all test queries that are named now and were not before: whoever else is
named shares, by the same measure, as much with a planted query or with another one.
"""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.machine import machine_line
from harness.options import MEDQUAD, WIKIQA, add_data, parser
from harness.tables import head, row
from harness.zipf import write_json_lines

from ltr.check.leakage import Kind, Leakage, find_leakage
from ltr.data.collection import Collection, open_collection

PLANTED = 100
SAME_DOCUMENT = "document under another id"
# What a query is named for, by the way of planting.
KINDS: dict[str, Sequence[Kind]] = {
    "copy": ["equal", "near"],
    "case": ["equal", "near"],
    "punctuation": ["equal", "near"],
    "word order": ["equal", "near"],
    "10 % of words": ["equal", "near"],
    "20 % of words": ["equal", "near"],
    SAME_DOCUMENT: ["set"],
}
COPY = "copy-of-"  # what the ids of copies begin with


class Found(NamedTuple):
    """What was found of planted leaks.

    Attributes:
        planted: ids of the test queries that were planted.
        named: ids of the test queries that are named now, and were not before.
        by_copy: ids of those of ``named`` whose partner is a planted query.
    """

    planted: set[str]
    named: set[str]
    by_copy: set[str]

    @property
    def recall(self) -> float:
        """The share of the planted queries that is named."""
        return len(self.named & self.planted) / len(self.planted)

    @property
    def precision(self) -> float:
        """The share of planted queries among the named ones; NaN where none is named."""
        return len(self.named & self.planted) / len(self.named) if self.named else float("nan")


def changed(text: str, way: str, draw: random.Random, words: Sequence[str]) -> str:
    """A text changed in one of the ways of :data:`KINDS`; some words become others of ``words``."""
    tokens = text.split()
    if way == "case":
        return text.swapcase()
    if way == "punctuation":
        return "  ".join(f"{token.strip('?.,()')} ," for token in tokens)
    if way == "word order":
        draw.shuffle(tokens)
        return " ".join(tokens)
    share = {"10 % of words": 0.1, "20 % of words": 0.2}.get(way)
    if share is None:
        return text
    for place in draw.sample(range(len(tokens)), max(1, round(share * len(tokens)))):
        tokens[place] = draw.choice(words)
    return " ".join(tokens)


def measured(collection: Collection, way: str, folder: Path, n: int = PLANTED) -> Found:
    """Plant leaks of one kind in a copy of a collection, and check it.

    Args:
        collection: has the splits train and test, with ``n`` queries that are not named at least.
        way: of planting, of :data:`KINDS`.
        folder: where the copy is written; there is none yet.
        n: how many are planted; fewer where half of the queries are fewer.
    """
    before = named(find_leakage(collection, with_corpus=False), KINDS[way])
    planted = plant(collection, way, before, folder, n)
    leakage = find_leakage(open_collection(folder), with_corpus=False)
    new = named(leakage, KINDS[way]) - before
    by_copy = set()
    for leaks in leakage.leaks_of("test", KINDS[way]):
        ids = leaks.part.collection.queries.ids
        for query, partner in zip(leaks.query_rows, leaks.partner_rows, strict=True):
            if ids[partner].startswith(COPY):
                by_copy.add(ids[query])
    return Found(planted, new, by_copy & new)


def named(leakage: Leakage, kinds: Sequence[Kind]) -> set[str]:
    """Ids of the test queries that leak."""
    ids = leakage.collection.queries.ids
    return {ids[query] for query in leakage.leaked("test", kinds).tolist()}


def plant(collection: Collection, way: str, before: set[str], folder: Path, n: int) -> set[str]:
    """Write a copy of a collection with planted leaks; returns the ids of the planted queries,
    which are none of ``before``.
    """
    draw = random.Random(0)
    ids = collection.queries.ids
    texts = collection.queries.texts
    queries = [(ids[query], texts[query]) for query in range(len(ids))]
    docs = [(collection.corpus.ids[doc], text) for doc, text in enumerate(collection.corpus.texts)]
    lines = {split: _lines(collection, split) for split in collection.qrels}
    candidates = [
        query for query in collection.qrels["test"].query_rows.tolist() if ids[query] not in before
    ]
    rows = draw.sample(candidates, min(n, (len(candidates) + 1) // 2))
    planted = {ids[query] for query in rows}
    if way == SAME_DOCUMENT:
        lines["test"] = [line for line in lines["test"] if line[0] not in planted]
        judged = collection.qrels["train"]
        partners = draw.sample(judged.query_rows[judged.n_relevant() > 0].tolist(), len(rows))
        copied = set()
        for query, partner in zip(rows, partners, strict=True):
            doc_rows, grades = judged.of(partner)
            for doc in doc_rows[grades > 0].tolist():
                lines["test"].append((ids[query], f"{COPY}{docs[doc][0]}", 1.0))
                copied.add(doc)
        docs += [(f"{COPY}{docs[doc][0]}", docs[doc][1]) for doc in sorted(copied)]
    else:
        words = sorted({word for _, text in queries for word in text.split()})
        for query in rows:
            copy = f"{COPY}{ids[query]}"
            queries.append((copy, changed(texts[query], way, draw, words)))
            lines["train"].append((copy, docs[0][0], 1.0))
    (folder / "qrels").mkdir(parents=True)
    write_json_lines(folder / "queries.jsonl", queries)
    write_json_lines(folder / "corpus.jsonl", docs)
    for split, of_split in lines.items():
        text = "".join(f"{query}\t{doc}\t{grade:g}\n" for query, doc, grade in of_split)
        (folder / f"qrels/{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{text}")
    return planted


def _lines(collection: Collection, split: str) -> list[tuple[str, str, float]]:
    """Query, document and grade of each judgement, by id."""
    judged = collection.qrels[split]
    lines = []
    for query in judged.query_rows.tolist():
        for doc, grade in zip(*judged.of(query), strict=True):
            lines.append((collection.queries.ids[query], collection.corpus.ids[doc], float(grade)))
    return lines


def main() -> None:
    """Print a row for each collection and way of planting."""
    arguments = parser(__doc__ or "")
    add_data(arguments, MEDQUAD, WIKIQA, several=True)
    options = arguments.parse_args()
    print(machine_line())
    columns = ["collection", "planted", "recall", "precision", "named, not planted"]
    print(head([*columns, "of these near to a planted one"]))
    for path in options.data:
        collection = open_collection(path)
        for way in KINDS:
            with tempfile.TemporaryDirectory() as temporary:
                found = measured(collection, way, Path(temporary, "data"))
            others = found.named - found.planted
            cells = [Path(path).name, f"{len(found.planted)} × {way}", f"{found.recall:.0%}"]
            cells += [f"{found.precision:.0%}", str(len(others)), str(len(others & found.by_copy))]
            print(row(cells), flush=True)


if __name__ == "__main__":
    main()
