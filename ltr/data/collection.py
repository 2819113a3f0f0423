"""A collection: documents, queries, judgements and candidate pools, read from files and checked
once.
"""

import hashlib
import json
import logging
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ltr.data import trec
from ltr.data.files import cached, digest_of, numbered_lines, plain_or_gz
from ltr.data.query_lists import QueryLists
from ltr.data.texts import Record, TextTable, first_of_each, id_of
from ltr.errors import InputError

log = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")


class Collection(NamedTuple):
    """What a ranker is trained and measured on. Rows number documents and queries; strings stay on
    disk.
    """

    source: str  # where it came from, for errors
    corpus: TextTable  # a title is part of the text
    queries: TextTable
    qrels: dict[str, QueryLists]  # judgements by split; grade 0 is a judgement too
    candidates: dict[
        str, QueryLists
    ]  # fixed pools by split, best first; empty where the source has none
    add_pools: str = (
        ""  # how to give a split its pools, for errors; empty where the source can have none
    )

    def judgements(self, split: str) -> QueryLists:
        """Judgements of a split; an InputError if there are none."""
        if split not in self.qrels:
            raise InputError(
                f"{self.source}: there are no judgements for the split {split!r}, only for {sorted(self.qrels)}"
            )
        return self.qrels[split]

    def learnable(self, split: str) -> QueryLists:
        """Judgements of a split, with a relevant document for each query; an InputError if there
        are none, or one lacks it.
        """
        judged = self.judgements(split)
        without = judged.query_rows[judged.n_relevant() == 0]
        if len(without):
            came = f"{len(without)} of {len(judged.query_rows)} queries have no document with a grade above 0"
            hint = f"first {self.queries.ids[without[0]]!r}; remove them, there is nothing to learn from"
            raise InputError(f"{self.source}: split {split!r}: {came}, {hint}")
        return judged

    def pools(self, split: str, option: str) -> QueryLists:
        """Candidate pools of a split; an InputError if there are none, which names the option that
        asked for them.
        """
        if split not in self.candidates:
            add = f"{self.add_pools.format(split=split)}, or " if self.add_pools else ""
            hint = (
                f"{add}set {option} to bm25{' and depth to 100' if option == 'candidates' else ''}"
            )
            raise InputError(
                f"{self.source}: there are no candidates for the split {split!r}; {hint}",
                option=option,
            )
        return self.candidates[split]


def open_collection(path: str) -> Collection:
    """Open a collection, and check all of it at the first opening.

    Args:
        path: a data folder in the BEIR layout (``corpus.jsonl[.gz]``, ``queries.jsonl[.gz]``,
            ``qrels/{train,dev,test}.tsv``, ``candidates/{train,dev,test}.trec[.gz]`` where there
            are fixed pools); a file of text triples or pairs, one
            ``query<TAB>positive[<TAB>negative…]`` a line, or a folder of such files
            ``{train,dev,test}.tsv[.gz]``; or ``ir_datasets:NAME``, where the splits are NAME/train,
            NAME/dev and NAME/test, or NAME itself as test.

    Raises:
        InputError: one line with ``file:line`` for unknown or repeated ids, bad grades, empty
            texts, broken gzip or UTF-8, missing columns, missing files.
    """
    if path.startswith("ir_datasets:"):
        return _from_ir_datasets(path.removeprefix("ir_datasets:"))
    if plain_or_gz(Path(path), "corpus.jsonl"):
        return _from_folder(Path(path))
    expected = "corpus.jsonl[.gz], queries.jsonl[.gz] and qrels/, or text triples {train,dev,test}.tsv[.gz]"
    return _from_texts(path, files_of_lines(path, f"a data folder must hold {expected}"))


def files_of_lines(path: str, expected: str) -> dict[str, Path]:
    """A file as ``train``, or the files ``{train,dev,test}.tsv[.gz]`` of a folder by split; an
    InputError if there are none.
    """
    where = Path(path)
    if where.is_file():
        return {"train": where}
    if not where.is_dir():
        raise InputError(f"{path}: there is no such data folder or file", option="path")
    files = {split: file for split in SPLITS if (file := plain_or_gz(where, f"{split}.tsv"))}
    if not files:
        raise InputError(f"{path}: {expected}; found {sorted(p.name for p in where.iterdir())[:8]}")
    return files


def _from_folder(folder: Path) -> Collection:
    tables = []
    for name, kind in (("corpus.jsonl", "document"), ("queries.jsonl", "query")):
        file = plain_or_gz(folder, name)
        if file is None:
            raise InputError(f"{folder / name}[.gz]: there is no such file; a data folder needs it")
        try:
            tables.append(TextTable.open(digest_of(file), json_records(file), kind))
        except InputError as error:
            raise (
                error if str(file) in error.message else InputError(f"{file}: {error.message}")
            ) from None
    corpus, queries = tables
    qrels = {}
    candidates = {}
    for split in SPLITS:
        if file := plain_or_gz(folder / "qrels", f"{split}.tsv"):
            qrels[split] = _checked_once(file, queries, corpus, _judgements)
        if file := plain_or_gz(folder / "candidates", f"{split}.trec"):
            candidates[split] = _checked_once(file, queries, corpus, lists_of_run)
    if not qrels:
        raise InputError(
            f"{folder / 'qrels'}: there must be at least one of train.tsv, dev.tsv, test.tsv"
        )
    return Collection(
        str(folder), corpus, queries, qrels, candidates, "add candidates/{split}.trec"
    )


def json_records(file: Path) -> Iterator[Record]:
    """The texts of a file with one JSON object a line: ``_id``, ``text``, perhaps ``title``."""
    for number, line in numbered_lines(file):
        where = f"{file}:{number}"
        try:
            record = json.loads(line)
            id_ = record["_id"]
            title = record.get("title") or ""
            text = record["text"]
        except (ValueError, RecursionError) as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise InputError(
                f"{where}: a line must be one JSON object, got {line[:60]!r} ({why})"
            ) from None
        except (KeyError, TypeError, AttributeError):
            raise InputError(
                f"{where}: a line must be an object with '_id' and 'text', got {line[:60]!r}"
            ) from None
        if not (isinstance(id_, str) and isinstance(title, str) and isinstance(text, str)):
            raise InputError(
                f"{where}: '_id', 'title' and 'text' must be strings, got {line[:60]!r}"
            )
        yield Record(id_, f"{title} {text}".strip(), where)


def _judgements(file: Path, queries: TextTable, corpus: TextTable) -> QueryLists:
    return lists_of_lines(file, "judgement", queries, corpus, trec.read_qrels(file))


def lists_of_run(file: Path, queries: TextTable, corpus: TextTable) -> QueryLists:
    """The documents of each query of a run file, best first; every id and pair checked."""
    return lists_of_lines(file, "line", queries, corpus, trec.read_run(file)).best_first()


def _checked_once(
    file: Path, queries: TextTable, corpus: TextTable, read: Callable[..., QueryLists]
) -> QueryLists:
    """The lists of a file, kept as arrays under the content of all three: checked once, then mapped
    by every rank.
    """
    content = f"lists-1 {digest_of(file)} {queries.key} {corpus.key}"
    return QueryLists.load(
        cached("lists", content, lambda folder: read(file, queries, corpus).save(folder))
    )


def lists_of_lines(
    file: Path,
    kind: str,
    queries: TextTable,
    corpus: TextTable,
    lines: Iterable[tuple[int, tuple[str, str, float]]],
) -> QueryLists:
    """Numbered lines (query, doc, value) as rows, every id and pair checked."""
    numbers = array("q")
    query_rows = array("q")
    doc_rows = array("q")
    values = array("f")
    last_query = ""
    query_row = None
    for number, (query, doc, value) in lines:
        if query != last_query or query_row is None:
            last_query = query
            query_row = queries.row(query)
        doc_row = corpus.row(doc)
        if query_row is None:
            raise InputError(f"{file}:{number}: query {query!r} is not in queries.jsonl")
        if doc_row is None:
            raise InputError(f"{file}:{number}: document {doc!r} is not in corpus.jsonl")
        numbers.append(number)
        query_rows.append(query_row)
        doc_rows.append(doc_row)
        values.append(value)
    if not numbers:
        raise InputError(f"{file}: the split is empty; at least one {kind} is needed")
    order = np.lexsort((numbers, doc_rows, query_rows))
    same = (np.diff(np.asarray(query_rows)[order]) == 0) & (
        np.diff(np.asarray(doc_rows)[order]) == 0
    )
    if same.any():
        first = order[np.flatnonzero(same)[0]]
        second = order[np.flatnonzero(same)[0] + 1]
        pair = f"query {queries.ids[query_rows[second]]!r} and document {corpus.ids[doc_rows[second]]!r}"
        raise InputError(
            f"{file}:{numbers[second]}: a second {kind} for {pair}, first in line {numbers[first]}"
        )
    return QueryLists.from_rows(query_rows, doc_rows, values)


def _from_texts(source: str, files: dict[str, Path]) -> Collection:
    content = hashlib.sha256(
        "".join(f"{split} {digest_of(file)} " for split, file in files.items()).encode()
    ).hexdigest()

    def records(columns: slice, letter: str) -> Iterator[Record]:
        for file in files.values():
            for number, parts in _triples(file):
                yield from (
                    Record(id_of(letter, text), text, f"{file}:{number}") for text in parts[columns]
                )

    corpus = TextTable.open(content, first_of_each(records(slice(1, None), "d")), "document")
    queries = TextTable.open(content, first_of_each(records(slice(1), "q")), "query")
    qrels = {}
    candidates = {}
    for split, file in files.items():
        qrels[split] = _checked_once(file, queries, corpus, _triple_grades)
        if (qrels[split].values == 0).any():  # pairs alone make no pool
            candidates[split] = (
                qrels[split]._replace(values=np.zeros_like(qrels[split].values)).best_first()
            )
    add_pools = "give every line of the split a negative (a third column)"
    return Collection(source, corpus, queries, qrels, candidates, add_pools)


def _triple_grades(file: Path, queries: TextTable, corpus: TextTable) -> QueryLists:
    grade: dict[tuple[int, int], float] = {}
    for number, (query, positive, *negatives) in _triples(file):
        query_row = queries.row(id_of("q", query))
        for text, label in [(positive, 1.0)] + [(text, 0.0) for text in negatives]:
            doc_row = corpus.row(id_of("d", text))
            assert query_row is not None and doc_row is not None, (
                "both tables were made of this file"
            )
            if grade.setdefault((query_row, doc_row), label) != label:
                raise InputError(
                    f"{file}:{number}: a text is positive and negative for the same query: {text[:60]!r}"
                )
    if not grade:
        raise InputError(
            f"{file}: the split is empty; at least one line query<TAB>positive is needed"
        )
    return QueryLists.from_rows((q for q, _ in grade), (d for _, d in grade), grade.values())


def _triples(file: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in numbered_lines(file):
        parts = line.split("\t")
        if len(parts) < 2:
            raise InputError(
                f"{file}:{number}: expected query<TAB>positive[<TAB>negative…], got one column: {line[:60]!r}"
            )
        if not all(part.strip() for part in parts):
            raise InputError(
                f"{file}:{number}: column {[bool(p.strip()) for p in parts].index(False) + 1} is empty"
            )
        yield number, parts


def _from_ir_datasets(name: str) -> Collection:
    try:
        import ir_datasets
    except ImportError:
        raise InputError(
            f"ir_datasets:{name} needs the package ir_datasets: pip install ir_datasets"
        ) from None
    parts = {}
    for split in SPLITS:
        with suppress(KeyError):
            parts[split] = ir_datasets.load(f"{name}/{split}")
    try:
        whole = ir_datasets.load(name)
    except KeyError:
        raise InputError(f"ir_datasets:{name}: ir_datasets knows no such data set") from None
    parts = {
        split: part for split, part in parts.items() if part.has_qrels() and part.has_queries()
    }
    if not parts and whole.has_qrels() and whole.has_queries():
        parts = {"test": whole}
    if not (parts and whole.has_docs()):
        raise InputError(
            f"ir_datasets:{name}: it must have documents, and it or its /train, /dev, /test queries and qrels"
        )
    content = f"ir_datasets {ir_datasets.__version__} {name}"

    def with_text(kind: str, texts: Iterable[tuple[str, str]]) -> Iterator[Record]:
        """What the user can't mend is left out, and counted."""
        empty = 0
        for id_, text in texts:
            if text.strip():
                yield Record(id_, text, f"ir_datasets:{name} {id_}")
            else:
                empty += 1
        if empty:
            log.warning("ir_datasets:%s: %d %s have no text and are left out", name, empty, kind)

    docs = ((doc.doc_id, doc.default_text()) for doc in whole.docs_iter())
    corpus = TextTable.open(f"{content} {_stamp(whole)}", with_text("documents", docs), "document")
    asked = [
        (query.query_id, query.default_text())
        for part in parts.values()
        for query in part.queries_iter()
    ]
    digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
    queries = TextTable.open(
        f"{content} {digest}", first_of_each(with_text("queries", asked)), "query"
    )
    qrels = {}
    for split, part in parts.items():
        judged = [((j.query_id, j.doc_id), max(0.0, float(j.relevance))) for j in part.qrels_iter()]
        first = dict(reversed(judged))  # of a pair that is judged twice
        known = {
            pair: grade
            for pair, grade in first.items()
            if None not in (queries.row(pair[0]), corpus.row(pair[1]))
        }
        if left_out := len(judged) - len(known):
            text = "ir_datasets:%s/%s: %d judgements of absent queries or documents, or of a pair again, are left out"
            log.warning(text, name, split, left_out)
        lines = (
            (n, (*pair, grade)) for n, (pair, grade) in enumerate(reversed(known.items()), start=1)
        )
        qrels[split] = lists_of_lines(
            Path(f"ir_datasets:{name}/{split} qrels"), "judgement", queries, corpus, lines
        )
    return Collection(f"ir_datasets:{name}", corpus, queries, qrels, {})


def _stamp(whole: Any) -> str:
    """Size and time of the documents' file, where ir_datasets says which: a data set of one's own
    may change under its name.
    """
    with suppress(AttributeError, TypeError, OSError):
        next(iter(whole.docs_iter()), None)  # they are fetched now, if they were not there yet
        file = Path(whole.docs_path(force=False)).stat()
        return f"{file.st_size} {file.st_mtime_ns}"
    return ""
