"""A collection: documents, queries, judgements and candidate pools, read from files and checked
once.
"""

import hashlib
import json
import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """What a ranker is trained and measured on. Documents and queries are numbered by row; their
    strings stay on disk.
    """

    source: str  # where it came from, for errors
    corpus: TextTable  # a title is part of the text
    queries: TextTable
    qrels: dict[str, QueryLists]  # judgements by split; grade 0 is a judgement too
    # Fixed pools by split, best first; a split without pools is not in it.
    candidates: dict[str, QueryLists]
    # How to give a split its pools, for errors; empty where the source can have none.
    how_to_add_pools: str = ""

    def judgements(self, split: str) -> QueryLists:
        """Judgements of a split; an InputError if there are none."""
        if split not in self.qrels:
            raise InputError(
                f"{self.source}: there are no judgements for the split {split!r}, only for {sorted(self.qrels)}"
            )
        return self.qrels[split]

    def learnable(self, split: str) -> QueryLists:
        """The judgements of a split, checked: every query must have a relevant document.

        Raises:
            InputError: if there are no judgements, or a query has no relevant document.
        """
        judged = self.judgements(split)
        without = judged.query_rows[judged.n_relevant() == 0]
        if len(without):
            raise InputError(
                f"{self.source}: split {split!r}: {len(without)} of {len(judged.query_rows)} queries have no document with a grade above 0, first {self.queries.ids[without[0]]!r}; remove them, there is nothing to learn from"
            )
        return judged

    def pools(self, split: str, *, option: str) -> QueryLists:
        """Candidate pools of a split.

        Args:
            split: its name.
            option: the option that asks for the pools, for errors.

        Raises:
            InputError: if the split has none.
        """
        if split in self.candidates:
            return self.candidates[split]
        hint = f"set {option} to bm25"
        if option == "candidates":
            hint += " and depth to 100"
        if self.how_to_add_pools:
            hint = f"{self.how_to_add_pools.format(split=split)}, or {hint}"
        raise InputError(
            f"{self.source}: there are no candidates for the split {split!r}; {hint}",
            option=option,
        )


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
        InputError: with ``file:line`` for unknown or repeated ids, bad grades, empty texts, broken
            gzip or UTF-8, missing columns; for missing files.
    """
    if path.startswith("ir_datasets:"):
        return _from_ir_datasets(path.removeprefix("ir_datasets:"))
    if plain_or_gz(Path(path), "corpus.jsonl"):
        return _from_beir_folder(Path(path))
    files = files_by_split(
        path,
        "a data folder must hold corpus.jsonl[.gz], queries.jsonl[.gz] and qrels/, or text triples {train,dev,test}.tsv[.gz]",
    )
    return _from_triples(path, files)


def files_by_split(path: str, must_hold: str) -> dict[str, Path]:
    """Files by split: a file itself as ``train``, or those ``{train,dev,test}.tsv[.gz]`` that a
    folder holds.

    Args:
        path: the file or the folder.
        must_hold: what the folder must hold, for the error of one without such files.
    """
    if Path(path).is_file():
        return {"train": Path(path)}
    if not Path(path).is_dir():
        raise InputError(f"{path}: there is no such data folder or file", option="path")
    files = {}
    for split in SPLITS:
        file = plain_or_gz(Path(path), f"{split}.tsv")
        if file is not None:
            files[split] = file
    if not files:
        present = sorted(entry.name for entry in Path(path).iterdir())
        raise InputError(f"{path}: {must_hold}; found {present[:8]}")
    return files


def _from_beir_folder(folder: Path) -> Collection:
    corpus = _json_table(folder, "corpus.jsonl", "document")
    queries = _json_table(folder, "queries.jsonl", "query")
    qrels = {}
    candidates = {}
    for split in SPLITS:
        if file := plain_or_gz(folder / "qrels", f"{split}.tsv"):
            qrels[split] = _lists_of_file(file, queries, corpus, _lists_of_qrels)
        if file := plain_or_gz(folder / "candidates", f"{split}.trec"):
            candidates[split] = _lists_of_file(file, queries, corpus, lists_of_run)
    if not qrels:
        raise InputError(
            f"{folder / 'qrels'}: there must be at least one of train.tsv, dev.tsv, test.tsv"
        )
    return Collection(
        str(folder), corpus, queries, qrels, candidates, "add candidates/{split}.trec"
    )


def _json_table(folder: Path, name: str, kind: str) -> TextTable:
    file = plain_or_gz(folder, name)
    if file is None:
        raise InputError(f"{folder / name}[.gz]: there is no such file; a data folder needs it")
    return open_table(file, digest_of(file), json_records(file), kind)


def open_table(source: str | Path, content: str, records: Iterator[Record], kind: str) -> TextTable:
    """As :meth:`TextTable.open`, with ``source`` (the file or the folder) named in every error."""
    try:
        return TextTable.open(content, records, kind)
    except InputError as error:
        if str(source) in error.message:
            raise
        # The error of a file without any text ("there is no document at all") does not name it.
        raise InputError(f"{source}: {error.message}") from None


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
            # error.msg, not str(error): that would add "line 1 column 7", counted within this line.
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise InputError(
                f"{where}: a line must be one JSON object, got {line[:60]!r} ({reason})"
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


def _lists_of_qrels(file: Path, queries: TextTable, corpus: TextTable) -> QueryLists:
    return lists_of_lines(file, "judgement", queries, corpus, trec.read_qrels(file))


def lists_of_run(file: Path, queries: TextTable, corpus: TextTable) -> QueryLists:
    """The documents of each query of a run file, best first; every id and pair checked."""
    return lists_of_lines(file, "line", queries, corpus, trec.read_run(file)).best_first()


def _lists_of_file(
    file: Path,
    queries: TextTable,
    corpus: TextTable,
    read: Callable[[Path, TextTable, TextTable], QueryLists],
) -> QueryLists:
    """The lists of a file: read and checked once, then cached under the content of the file and of
    both tables, and mapped by every process.
    """
    content = f"lists-1 {digest_of(file)} {queries.key} {corpus.key}"
    folder = cached("lists", content, lambda folder: read(file, queries, corpus).save(folder))
    return QueryLists.load(folder)


def lists_of_lines(
    source: str | Path,
    kind: str,
    queries: TextTable,
    corpus: TextTable,
    lines: Iterable[tuple[int, tuple[str, str, float]]],
) -> QueryLists:
    """Numbered lines (query, doc, value) as lists by query, every id and pair checked.

    Args:
        source: where the lines come from, for errors.
        kind: what a line is, for errors.
        queries, corpus: the tables that know the ids.
        lines: a line number with a query id, a document id and a value.
    """
    numbers = array("q")
    query_rows = array("q")
    doc_rows = array("q")
    values = array("f")
    # The lines of a query mostly stand together: it is looked up once for all of them.
    last_query: str | None = None
    query_row = None
    for number, (query, doc, value) in lines:
        if query != last_query:
            last_query = query
            query_row = queries.row(query)
        doc_row = corpus.row(doc)
        if query_row is None:
            raise InputError(f"{source}:{number}: query {query!r} is not in queries.jsonl")
        if doc_row is None:
            raise InputError(f"{source}:{number}: document {doc!r} is not in corpus.jsonl")
        numbers.append(number)
        query_rows.append(query_row)
        doc_rows.append(doc_row)
        values.append(value)
    if not numbers:
        raise InputError(f"{source}: the split is empty; at least one {kind} is needed")
    _check_pairs_once(source, kind, queries, corpus, numbers, query_rows, doc_rows)
    return QueryLists.from_rows(query_rows, doc_rows, values)


def _check_pairs_once(
    source: str | Path,
    kind: str,
    queries: TextTable,
    corpus: TextTable,
    numbers: Sequence[int],
    query_rows: Sequence[int],
    doc_rows: Sequence[int],
) -> None:
    """Raise an InputError if two lines are of one query and document; all three sequences have an
    entry a line.
    """
    # Sorted so, lines of one pair are neighbours, in the order of the file.
    order = np.lexsort((numbers, doc_rows, query_rows))
    same_query = np.diff(np.asarray(query_rows)[order]) == 0
    same_doc = np.diff(np.asarray(doc_rows)[order]) == 0
    repeats = np.flatnonzero(same_query & same_doc)
    if len(repeats) == 0:
        return
    first = order[repeats[0]]
    second = order[repeats[0] + 1]
    query_id = queries.ids[query_rows[second]]
    doc_id = corpus.ids[doc_rows[second]]
    raise InputError(
        f"{source}:{numbers[second]}: a second {kind} for query {query_id!r} and document {doc_id!r}, first in line {numbers[first]}"
    )


class Triple(NamedTuple):
    """One line of a file of triples or pairs: texts without ids."""

    where: str  # file:line
    query: str
    positive: str
    negatives: list[str]  # any number

    def graded_docs(self) -> list[tuple[str, float]]:
        """The documents with their grades: 1 for the positive, 0 for the negatives."""
        graded = [(self.positive, 1.0)]
        for text in self.negatives:
            graded.append((text, 0.0))
        return graded


def _from_triples(source: str, files: dict[str, Path]) -> Collection:
    digests = ""
    for split, file in files.items():
        digests += f"{split} {digest_of(file)} "
    content = hashlib.sha256(digests.encode()).hexdigest()
    docs = first_of_each(_doc_records(files.values()))
    corpus = open_table(source, content, docs, "document")
    query_records = first_of_each(_query_records(files.values()))
    queries = open_table(source, content, query_records, "query")
    qrels = {}
    candidates = {}
    for split, file in files.items():
        judged = _lists_of_file(file, queries, corpus, _lists_of_triples)
        qrels[split] = judged
        has_negatives = bool((judged.values == 0).any())
        if has_negatives:  # relevant documents alone make no pool
            # The texts of the split as candidates: without their grades, so that the order of a
            # pool does not tell them.
            without_grades = judged._replace(values=np.zeros_like(judged.values))
            candidates[split] = without_grades.best_first()
    how_to_add_pools = "give every line of the split a negative (a third column)"
    return Collection(source, corpus, queries, qrels, candidates, how_to_add_pools)


def _doc_records(files: Iterable[Path]) -> Iterator[Record]:
    for file in files:
        for triple in _triples(file):
            for text, _ in triple.graded_docs():
                yield Record(id_of("d", text), text, triple.where)


def _query_records(files: Iterable[Path]) -> Iterator[Record]:
    for file in files:
        for triple in _triples(file):
            yield Record(id_of("q", triple.query), triple.query, triple.where)


def _lists_of_triples(file: Path, queries: TextTable, corpus: TextTable) -> QueryLists:
    """The grades of all lines; a query and a document may stand together in several."""
    grades: dict[tuple[int, int], float] = {}  # by rows of query and document
    for triple in _triples(file):
        query_row = queries.row(id_of("q", triple.query))
        for text, grade in triple.graded_docs():
            doc_row = corpus.row(id_of("d", text))
            assert query_row is not None, "the table of queries was made of this file"
            assert doc_row is not None, "the table of documents was made of this file"
            if grades.setdefault((query_row, doc_row), grade) != grade:
                raise InputError(
                    f"{triple.where}: a text is positive and negative for the same query: {text[:60]!r}"
                )
    if not grades:
        raise InputError(
            f"{file}: the split is empty; at least one line query<TAB>positive is needed"
        )
    query_rows = [query_row for query_row, _ in grades]
    doc_rows = [doc_row for _, doc_row in grades]
    return QueryLists.from_rows(query_rows, doc_rows, grades.values())


def _triples(file: Path) -> Iterator[Triple]:
    for number, line in numbered_lines(file):
        where = f"{file}:{number}"
        columns = line.split("\t")
        if len(columns) < 2:
            raise InputError(
                f"{where}: expected query<TAB>positive[<TAB>negative…], got one column: {line[:60]!r}"
            )
        for column_number, column in enumerate(columns, start=1):
            if not column.strip():
                raise InputError(f"{where}: column {column_number} is empty")
        query, positive, *negatives = columns
        yield Triple(where, query, positive, negatives)


def _from_ir_datasets(name: str) -> Collection:
    try:
        import ir_datasets
    except ImportError:
        raise InputError(
            f"ir_datasets:{name} needs the package ir_datasets: pip install ir_datasets"
        ) from None
    try:
        whole = ir_datasets.load(name)
    except KeyError:
        raise InputError(f"ir_datasets:{name}: ir_datasets knows no such data set") from None
    parts = {}
    for split in SPLITS:
        with suppress(KeyError):
            part = ir_datasets.load(f"{name}/{split}")
            if part.has_qrels() and part.has_queries():
                parts[split] = part
    if not parts and whole.has_qrels() and whole.has_queries():
        parts = {"test": whole}
    if not (parts and whole.has_docs()):
        raise InputError(
            f"ir_datasets:{name}: it must have documents, and it or its /train, /dev, /test queries and qrels"
        )
    source = f"ir_datasets:{name}"
    content = f"ir_datasets {ir_datasets.__version__} {name}"

    docs = ((doc.doc_id, doc.default_text()) for doc in whole.docs_iter())
    doc_records = _records_with_text(source, "documents", docs)
    corpus = TextTable.open(f"{content} {_docs_version(whole)}", doc_records, "document")

    id_and_text = []
    for part in parts.values():
        for query in part.queries_iter():
            id_and_text.append((query.query_id, query.default_text()))
    digest = hashlib.sha256(json.dumps(id_and_text).encode()).hexdigest()
    query_records = first_of_each(_records_with_text(source, "queries", id_and_text))
    queries = TextTable.open(f"{content} {digest}", query_records, "query")

    qrels = {}
    for split, part in parts.items():
        where = source if part is whole else f"{source}/{split}"
        qrels[split] = _ir_datasets_qrels(where, part, queries, corpus)
    return Collection(source, corpus, queries, qrels, {})


def _records_with_text(
    source: str, kind: str, texts: Iterable[tuple[str, str]]
) -> Iterator[Record]:
    """Records of texts with their ids. Empty texts, which the user can't mend, are left out, and
    counted in a warning.
    """
    n_empty = 0
    for id_, text in texts:
        if text.strip():
            yield Record(id_, text, f"{source} {id_}")
        else:
            n_empty += 1
    if n_empty:
        log.warning("%s: %d %s have no text and are left out", source, n_empty, kind)


def _ir_datasets_qrels(source: str, part: Any, queries: TextTable, corpus: TextTable) -> QueryLists:
    """The judgements of a split. Left out, and counted in a warning: judgements of absent queries
    or documents, and every judgement of a pair after its first.
    """
    lines: dict[tuple[str, str], tuple[str, str, float]] = {}
    n_judgements = 0
    for judgement in part.qrels_iter():
        n_judgements += 1
        query_id = judgement.query_id
        doc_id = judgement.doc_id
        if queries.row(query_id) is None or corpus.row(doc_id) is None:
            continue
        grade = max(0.0, float(judgement.relevance))
        lines.setdefault((query_id, doc_id), (query_id, doc_id, grade))
    if left_out := n_judgements - len(lines):
        log.warning(
            "%s: %d judgements of absent queries or documents, or of a pair again, are left out",
            source,
            left_out,
        )
    numbered = enumerate(lines.values(), start=1)
    return lists_of_lines(f"{source} qrels", "judgement", queries, corpus, numbered)


def _docs_version(whole: Any) -> str:
    """Size and time of the documents' file, where ir_datasets says which: a data set of one's own
    may change under its name.
    """
    with suppress(AttributeError, TypeError, OSError):
        next(iter(whole.docs_iter()), None)  # fetches the documents, if they are not there yet
        status = Path(whole.docs_path(force=False)).stat()
        return f"{status.st_size} {status.st_mtime_ns}"
    return ""
