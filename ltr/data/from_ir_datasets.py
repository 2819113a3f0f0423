"""Texts and judgements of the package ir_datasets."""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ltr.data.cache_folder import details
from ltr.data.judged_lists import known_judgements, lists_without_repeats
from ltr.data.lines import Line, look_up
from ltr.data.query_lists import QueryLists
from ltr.data.splits import SPLITS
from ltr.data.texts import Record, TextTable, first_of_each
from ltr.errors import InputError

log = logging.getLogger(__name__)


def read_ir_datasets(name: str) -> tuple[TextTable, TextTable, dict[str, QueryLists]]:
    """The documents, the queries and the judgements by split of a data set of that name; an
    InputError if there is none, or it lacks one of these.
    """
    try:
        import ir_datasets
    except ImportError:
        raise InputError(
            f"ir_datasets:{name} needs the package ir_datasets: pip install ir_datasets"
        ) from None
    try:
        data_set = ir_datasets.load(name)
    except KeyError:
        raise InputError(f"ir_datasets:{name}: ir_datasets knows no such data set") from None
    parts = {}
    for split in SPLITS:
        with suppress(KeyError):
            part = ir_datasets.load(f"{name}/{split}")
            if part.has_qrels() and part.has_queries():
                parts[split] = part
    if not parts and data_set.has_qrels() and data_set.has_queries():
        parts = {"test": data_set}
    if not (parts and data_set.has_docs()):
        raise InputError(
            f"ir_datasets:{name}: it must have documents, and it or its /train, /dev, /test queries and qrels"
        )
    source = f"ir_datasets:{name}"
    content = f"ir_datasets {ir_datasets.__version__} {name}"

    docs = ((doc.doc_id, doc.default_text()) for doc in data_set.docs_iter())
    doc_records = _records(source, "documents", docs)
    docs_content = f"{content} {_docs_version(data_set)}"
    corpus = TextTable.open(docs_content, doc_records, "document", source, leave_out_empty=True)

    id_and_text = []
    for part in parts.values():
        for query in part.queries_iter():
            id_and_text.append((query.query_id, query.default_text()))
    digest = hashlib.sha256(json.dumps(id_and_text).encode()).hexdigest()
    # A query may be in several splits; a document is there once.
    query_records = first_of_each(_records(source, "queries", id_and_text))
    queries = TextTable.open(
        f"{content} {digest}", query_records, "query", source, leave_out_empty=True
    )

    qrels = {}
    for split, part in parts.items():
        where = source if part is data_set else f"{source}/{split}"
        qrels[split] = _read_qrels(where, part, queries, corpus)
    return corpus, queries, qrels


def _records(source: str, kind: str, texts: Iterable[tuple[str, str]]) -> Iterator[Record]:
    """Records of texts with their ids. The user can't mend the texts: NULs are read as spaces, and a
    warning counts them.
    """
    n_with_nul = 0
    for number, (id_, text) in enumerate(texts, start=1):
        if "\0" in text:
            n_with_nul += 1
            text = text.replace("\0", " ")
        yield Record(id_, text, f"{source} {kind}", number)
    if n_with_nul:
        log.warning("%s: %d %s hold NUL, which is read as a space", source, n_with_nul, kind)


def _read_qrels(where: str, part: Any, queries: TextTable, corpus: TextTable) -> QueryLists:
    """The judgements of a split. Left out, and counted in warnings: judgements of absent queries
    or documents, and every judgement of a pair after its first.

    They are looked up at each opening: there is no file whose content could name them in the cache.
    """
    rows = look_up(_numbered_judgements(part), queries, corpus)
    sources = [f"{where} qrels"]
    known, notes = known_judgements(sources, rows)
    lists, notes = lists_without_repeats(sources, known, notes)
    details.info("%s: %s", where, notes.counts)
    for note in notes.left_out:
        log.warning("%s: %s", where, note)
    return lists


def _numbered_judgements(part: Any) -> Iterator[Line]:
    """The judgements; a negative grade counts as 0, as :func:`ltr.data.trec.read_qrels` has it."""
    for number, judgement in enumerate(part.qrels_iter(), start=1):
        grade = max(0.0, float(judgement.relevance))
        yield number, (judgement.query_id, judgement.doc_id, grade)


def _docs_version(data_set: Any) -> str:
    """Size and time of the documents' file, where ir_datasets says which: a data set of one's own
    may change under its name. The documents are fetched for it; what is wrong with that is raised
    when they are read.
    """
    with suppress(AttributeError, TypeError, OSError):
        next(iter(data_set.docs_iter()), None)  # fetches the documents, if they are not there yet
        status = Path(data_set.docs_path(force=False)).stat()
        return f"{status.st_size} {status.st_mtime_ns}"
    return ""
