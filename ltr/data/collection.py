"""A collection: documents, queries, judgements and candidate pools, read from files and checked
once.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ltr.data import trec
from ltr.data.cache_folder import cached, keep_notes, log_notes, made_of
from ltr.data.files import digest_of, numbered_lines, seen_from
from ltr.data.lines import Line, LineRows, lists_of_lines, look_up
from ltr.data.own_documents import own_documents, without_own
from ltr.data.query_lists import QueryLists
from ltr.data.record_files import find_texts, open_text_files
from ltr.data.splits import SPLITS, file_of_split, parent_split, splits_in
from ltr.data.tab_separated import LineLayout, layout_of
from ltr.data.texts import Record, TextTable, first_of_each, id_of
from ltr.errors import InputError, local_path

log = logging.getLogger(__name__)

T = TypeVar("T")
Noted = tuple[T, list[str]]  # what was read, and what is to be said of it

MANY_LINES_A_QUERY = 4  # lines of triples for each query, from which their number is said


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
        """The judgements of the queries of a split that have a relevant document.

        Raises:
            InputError: if there are no judgements, or no query has a relevant document.
        """
        judged = self.judgements(split)
        is_learnable = judged.n_relevant() > 0
        if is_learnable.all():
            return judged
        if not is_learnable.any():
            raise InputError(
                f"{self.source}: split {split!r}: none of {len(judged.query_rows)} queries has a document with a grade above 0; there is nothing to learn from"
            )
        return judged.lists_at(np.flatnonzero(is_learnable))

    def warn_of_unlearnable(self, split: str) -> None:
        """Count the queries that :meth:`learnable` leaves out in a warning."""
        judged = self.judgements(split)
        without = judged.query_rows[judged.n_relevant() == 0]
        if len(without):
            log.warning(
                "%s: split %r: %d of %d queries have no document with a grade above 0 and are left out, first %r",
                self.source,
                split,
                len(without),
                len(judged.query_rows),
                self.queries.ids[without[0]],
            )

    def own_documents(self) -> np.ndarray:
        """``[Q]`` int64: for each query the document that it is itself, see
        :func:`ltr.data.own_documents.own_documents`; −1 where there is none, or people judged it
        relevant for the query.

        A ranking leaves it out, as BEIR's do: a text that finds itself says nothing.
        """
        own_docs = own_documents(self.queries, self.corpus).copy()
        for judged in self.qrels.values():
            query_rows = judged.query_of_doc
            is_relevant = (own_docs[query_rows] == judged.doc_rows) & (judged.values > 0)
            own_docs[query_rows[is_relevant]] = -1
        return own_docs

    def pools(self, split: str, *, option: str) -> QueryLists:
        """Candidate pools of a split, without each query's own document (:meth:`own_documents`).

        Args:
            split: its name.
            option: the option that asks for the pools, for errors.

        Raises:
            InputError: if the split has none.
        """
        if split in self.candidates:
            return without_own(self.candidates[split], self.own_documents())
        hint = f"set {option} to bm25"
        if option == "candidates":
            hint += " and depth to 100"
        if self.how_to_add_pools:
            hint = f"{self.how_to_add_pools.format(split=split)}, or {hint}"
        raise InputError(
            f"{self.source}: there are no candidates for the split {split!r}; {hint}",
            option=option,
        )


def open_collection(path: str | Path) -> Collection:
    """Open a collection, and check all of it at the first opening.

    Args:
        path: a data folder in the BEIR layout (``corpus.jsonl[.gz]``, ``queries.jsonl[.gz]``,
            ``qrels/{train,dev,test}.tsv``, ``candidates/{train,dev,test}.trec[.gz]`` where there
            are fixed pools; corpus and queries may also be ``.parquet``, or folders of files); a
            file of text triples or pairs, one
            ``query<TAB>positive[<TAB>negative…]`` a line, or a folder of such files
            ``{train,dev,test}.tsv[.gz]``; or ``ir_datasets:NAME``, where the splits are NAME/train,
            NAME/dev and NAME/test, or NAME itself as test. In a folder ``dev`` may be called
            ``val``, ``vali``, ``valid`` or ``validation``.

    Raises:
        InputError: with ``file:line`` for unknown or repeated ids, bad grades, empty texts, broken
            gzip or UTF-8, missing columns; for missing files.
    """
    path = str(path)
    local_path("path", path)
    if path.startswith("ir_datasets:"):
        return _from_ir_datasets(path.removeprefix("ir_datasets:"))
    if find_texts(Path(path), "corpus"):
        return _from_beir_folder(Path(path))
    files = files_by_split(
        path,
        "a data folder must hold corpus.jsonl[.gz] (or .parquet, or a folder), queries.jsonl[.gz] and qrels/, or text triples {train,dev,test}.tsv[.gz]",
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
        raise InputError(
            f"{path}: there is no such data folder or file{seen_from(path)}", option="path"
        )
    files = {}
    for split in SPLITS:
        file = file_of_split(Path(path), split, ".tsv")
        if file is not None:
            files[split] = file
    if not files:
        raise InputError(f"{path}: {must_hold}; found {names_in(Path(path))}")
    return files


def names_in(folder: Path) -> list[str]:
    """The first names of what lies in a folder, for errors; none where it is not there."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir())[:8]


def _from_beir_folder(folder: Path) -> Collection:
    corpus = _table(folder, "corpus", "document")
    queries = _table(folder, "queries", "query")
    qrels = {}
    candidates = {}
    for split in SPLITS:
        if file := file_of_split(folder / "qrels", split, ".tsv"):
            qrels[split] = _lists_of_file(file, queries, corpus, _lists_of_qrels)
        if file := file_of_split(folder / "candidates", split, ".trec"):
            candidates[split] = _lists_of_file(file, queries, corpus, _lists_of_pools)
    if not qrels:
        raise InputError(
            f"{folder / 'qrels'}: there must be at least one of train.tsv, dev.tsv, test.tsv (or .tsv.gz); found {names_in(folder / 'qrels')}"
        )
    return Collection(
        str(folder), corpus, queries, qrels, candidates, "add candidates/{split}.trec"
    )


def with_split(collection: Collection, split: str) -> Collection:
    """The collection and one split more, of any name. It is read and checked here; without being
    asked for, such splits are not looked at.

    Its judgements are ``qrels/SPLIT.tsv[.gz]`` of the data folder, and its pools
    ``candidates/SPLIT.trec[.gz]``. Where there are no such pools, it has those of the split that it is
    a part of by its name (:func:`ltr.data.splits.parent_split`): test.clean those of test. They are
    restricted to its judged queries.

    Raises:
        InputError: if there is no such split, or a file of it is broken.
    """
    if split in collection.qrels:
        return collection
    folder = Path(collection.source)
    if not (folder / "qrels").is_dir():
        raise InputError(
            f"{collection.source}: a split must be one of {', '.join(collection.qrels)}, got {split!r}; only a data folder with qrels/ can have others"
        )
    file = file_of_split(folder / "qrels", split, ".tsv")
    if file is None:
        raise InputError(
            f"{collection.source}: a split must be one of {', '.join(splits_in(folder / 'qrels'))}, got {split!r}; there is no {folder / 'qrels' / split}.tsv"
        )
    judged = _lists_of_file(file, collection.queries, collection.corpus, _lists_of_qrels)
    candidates = dict(collection.candidates)
    pools = _pools_of(collection, folder / "candidates", split)
    if pools is not None:
        candidates[split] = pools.of_queries(judged.query_rows)
    return collection._replace(qrels=collection.qrels | {split: judged}, candidates=candidates)


def _pools_of(collection: Collection, folder: Path, split: str) -> QueryLists | None:
    """The pools of a split, or else of the one that it is a part of; None where there are none."""
    if split in collection.candidates:
        return collection.candidates[split]
    file = file_of_split(folder, split, ".trec")
    if file is not None:
        return _lists_of_file(file, collection.queries, collection.corpus, _lists_of_pools)
    whole = parent_split(split)
    return None if whole is None else _pools_of(collection, folder, whole)


def _table(folder: Path, name: str, kind: str) -> TextTable:
    path = find_texts(folder, name)
    if path is None:
        raise InputError(
            f"{folder / name}.jsonl[.gz]: there is no such file, nor {name}.parquet or a folder {name}; a data folder needs it"
        )
    return open_text_files(path, kind)


def _lists_of_qrels(file: Path, queries: TextTable, corpus: TextTable) -> Noted[QueryLists]:
    """The judgements of a file. As in the files that others ship, absent queries and documents may be
    judged, and a pair twice with one grade: such judgements are left out and counted.
    """
    rows = look_up(trec.read_qrels(file), queries, corpus)
    known, notes = _known_judgements(str(file), rows)
    firsts = known.first_of_pairs()
    conflicts = np.flatnonzero(known.values != known.values[firsts])
    if len(conflicts):
        second = conflicts[0]
        first = firsts[second]
        query_id = queries.ids[known.query_rows[second]]
        doc_id = corpus.ids[known.doc_rows[second]]
        raise InputError(
            f"{file}:{known.numbers[second]}: a second judgement for query {query_id!r} and document {doc_id!r}, {known.values[second]:g}, first {known.values[first]:g} in line {known.numbers[first]}; keep one"
        )
    return _once(known, notes)


def _known_judgements(source: str, rows: LineRows | None) -> Noted[LineRows]:
    """The judgements of queries and documents that are there, and how many are of others."""
    if rows is None:
        raise InputError(f"{source}: the split is empty; at least one judgement is needed")
    known = rows.select((rows.query_rows >= 0) & (rows.doc_rows >= 0))
    if not len(known.numbers):
        raise InputError(
            f"{source}: at least one judgement must be of a query and a document that are there, got {len(rows.numbers)} of others; these may be ids of other data"
        )
    notes = []
    for kind, kind_rows in (("queries", rows.query_rows), ("documents", rows.doc_rows)):
        absent = np.flatnonzero(kind_rows < 0)
        if len(absent):
            notes.append(
                f"{len(absent)} of {len(rows.numbers)} judgements are of absent {kind} and left out, first in line {rows.numbers[absent[0]]}"
            )
    return known, notes


def _once(known: LineRows, notes: list[str]) -> Noted[QueryLists]:
    """The first judgement of each pair of a query and a document."""
    firsts = known.select(np.unique(known.first_of_pairs()))
    n_again = len(known.numbers) - len(firsts.numbers)
    if n_again:
        notes.append(f"{n_again} judgements are of a pair again and left out")
    return firsts.lists(), notes


def lists_of_run(file: Path, queries: TextTable, corpus: TextTable) -> QueryLists:
    """The documents of each query of a run file, best first; every id and pair checked."""
    return lists_of_lines(file, "line", queries, corpus, trec.read_run(file)).best_first()


def _lists_of_pools(file: Path, queries: TextTable, corpus: TextTable) -> Noted[QueryLists]:
    return lists_of_run(file, queries, corpus), []


def _lists_of_file(
    file: Path,
    queries: TextTable,
    corpus: TextTable,
    read: Callable[[Path, TextTable, TextTable], Noted[QueryLists]],
) -> QueryLists:
    """The lists of a file: read and checked once, then cached under the content of the file and of
    both tables, and mapped by every process. What is to be said of them is said at each opening.
    """

    def build(folder: Path) -> None:
        lists, notes = read(file, queries, corpus)
        lists.save(folder)
        keep_notes(folder, notes)

    def open_lists(folder: Path) -> QueryLists:
        log_notes(folder, file)
        return QueryLists.load(folder)

    content = f"lists-2 {digest_of(file)} {queries.key} {corpus.key}"
    origin = made_of(file, queries.folder, corpus.folder)
    return cached("lists", content, build, open_lists, origin)


class Triple(NamedTuple):
    """One line of a file of triples, pairs or labelled pairs: texts without ids."""

    line: int  # of the file
    query: str
    graded_docs: list[tuple[str, float]]  # 1 for the positive, 0 for the negatives; or as labelled


def _from_triples(source: str, files: dict[str, Path]) -> Collection:
    layouts = {}
    digests = ""
    for split, file in files.items():
        layouts[file] = layout_of(file)
        # The same bytes are other texts under another layout.
        digests += f"{split} {digest_of(file)} {layouts[file]} "
    content = hashlib.sha256(digests.encode()).hexdigest()
    docs = first_of_each(_doc_records(layouts))
    corpus = TextTable.open(content, docs, "document", source)
    query_records = first_of_each(_query_records(layouts))
    queries = TextTable.open(content, query_records, "query", source)
    qrels = {}
    candidates = {}
    for split, file in files.items():
        read = partial(_lists_of_triples, layouts[file])
        judged = _lists_of_file(file, queries, corpus, read)
        qrels[split] = judged
        has_negatives = bool((judged.values == 0).any())
        if has_negatives:  # relevant documents alone make no pool
            # The texts of the split as candidates: without their grades, so that the order of a
            # pool does not tell them.
            without_grades = judged._replace(values=np.zeros_like(judged.values))
            candidates[split] = without_grades.best_first()
    how_to_add_pools = "give every line of the split a negative (a third column)"
    return Collection(source, corpus, queries, qrels, candidates, how_to_add_pools)


def _doc_records(layouts: dict[Path, LineLayout]) -> Iterator[Record]:
    for file, layout in layouts.items():
        source = str(file)
        for triple in _triples(file, layout):
            for text, _ in triple.graded_docs:
                yield Record(id_of("d", text), text, source, triple.line)


def _query_records(layouts: dict[Path, LineLayout]) -> Iterator[Record]:
    for file, layout in layouts.items():
        source = str(file)
        for triple in _triples(file, layout):
            yield Record(id_of("q", triple.query), triple.query, source, triple.line)


def _lists_of_triples(
    layout: LineLayout, file: Path, queries: TextTable, corpus: TextTable
) -> Noted[QueryLists]:
    """The grades of all lines; a query and a document may stand together in several."""
    rows = look_up(_lines_of_triples(file, layout), queries, corpus)
    if rows is None:
        raise InputError(
            f"{file}: the split is empty; at least one line query<TAB>positive is needed"
        )
    firsts = rows.first_of_pairs()
    conflicts = np.flatnonzero(rows.values != rows.values[firsts])
    if len(conflicts):
        line = rows.numbers[conflicts[0]]
        text = corpus.texts[rows.doc_rows[conflicts[0]]]
        what = "has two labels" if layout.has_labels else "is positive and negative"
        raise InputError(f"{file}:{line}: a text {what} for the same query: {text[:60]!r}")
    lists = rows.select(np.unique(firsts)).lists()
    n_lines = len(np.unique(rows.numbers))
    notes = []
    n_queries = len(lists.query_rows)
    if not layout.has_labels and MANY_LINES_A_QUERY * n_queries <= n_lines:
        notes.append(
            f"{n_lines} lines hold {n_queries} queries; the lines of one query are one list, and an epoch has each query once"
        )
    return lists, notes


def _lines_of_triples(file: Path, layout: LineLayout) -> Iterator[Line]:
    for triple in _triples(file, layout):
        query_id = id_of("q", triple.query)
        for text, grade in triple.graded_docs:
            yield triple.line, (query_id, id_of("d", text), grade)


def _triples(file: Path, layout: LineLayout) -> Iterator[Triple]:
    """The lines of a file whose columns have been looked at."""
    for number, line in numbered_lines(file):
        if number == layout.line_of_names:
            continue
        query, *texts = line.split("\t")
        if not layout.has_labels:
            grades = [1.0] + [0.0] * (len(texts) - 1)
            yield Triple(number, query, list(zip(texts, grades, strict=True)))
            continue
        where = f"{file}:{number}"
        if len(texts) != 2:
            raise InputError(
                f"{where}: expected 3 columns (query<TAB>document<TAB>label), got {len(texts) + 1}: {line[:60]!r}"
            )
        yield Triple(number, query, [(texts[0], float(trec.whole_grade(texts[1], where)))])


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
    corpus = TextTable.open(f"{content} {_docs_version(whole)}", doc_records, "document", source)

    id_and_text = []
    for part in parts.values():
        for query in part.queries_iter():
            id_and_text.append((query.query_id, query.default_text()))
    digest = hashlib.sha256(json.dumps(id_and_text).encode()).hexdigest()
    query_records = first_of_each(_records_with_text(source, "queries", id_and_text))
    queries = TextTable.open(f"{content} {digest}", query_records, "query", source)

    qrels = {}
    for split, part in parts.items():
        where = source if part is whole else f"{source}/{split}"
        qrels[split] = _ir_datasets_qrels(where, part, queries, corpus)
    return Collection(source, corpus, queries, qrels, {})


def _records_with_text(
    source: str, kind: str, texts: Iterable[tuple[str, str]]
) -> Iterator[Record]:
    """Records of texts with their ids. The user can't mend the texts: empty ones are left out, NULs
    are read as spaces, and warnings count both.
    """
    n_empty = 0
    n_with_nul = 0
    for number, (id_, text) in enumerate(texts, start=1):
        if "\0" in text:
            n_with_nul += 1
            text = text.replace("\0", " ")
        if text.strip():
            yield Record(id_, text, f"{source} {kind}", number)
        else:
            n_empty += 1
    if n_with_nul:
        log.warning("%s: %d %s hold NUL, which is read as a space", source, n_with_nul, kind)
    if n_empty:
        log.warning("%s: %d %s have no text and are left out", source, n_empty, kind)


def _ir_datasets_qrels(source: str, part: Any, queries: TextTable, corpus: TextTable) -> QueryLists:
    """The judgements of a split. Left out, and counted in warnings: judgements of absent queries
    or documents, and every judgement of a pair after its first.
    """
    rows = look_up(_numbered_judgements(part), queries, corpus)
    lists, notes = _once(*_known_judgements(f"{source} qrels", rows))
    for note in notes:
        log.warning("%s: %s", source, note)
    return lists


def _numbered_judgements(part: Any) -> Iterator[Line]:
    for number, judgement in enumerate(part.qrels_iter(), start=1):
        grade = max(0.0, float(judgement.relevance))
        yield number, (judgement.query_id, judgement.doc_id, grade)


def _docs_version(whole: Any) -> str:
    """Size and time of the documents' file, where ir_datasets says which: a data set of one's own
    may change under its name.
    """
    with suppress(AttributeError, TypeError, OSError):
        next(iter(whole.docs_iter()), None)  # fetches the documents, if they are not there yet
        status = Path(whole.docs_path(force=False)).stat()
        return f"{status.st_size} {status.st_mtime_ns}"
    return ""
