"""What rankings in files are measured by: the judgements of a collection, or of one file."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ltr.data.collection import Collection, open_collection, with_split
from ltr.data.judge_labels import JudgeLabels, machine_judged_lines
from ltr.data.judged_lists import read_judgements
from ltr.data.lines import GivenIds, IdTable
from ltr.data.progress import reading
from ltr.data.query_lists import QueryLists
from ltr.data.texts import TextTable, id_of
from ltr.errors import InputError


class CollectionIds:
    """Ids by which rankings name the texts of a collection: by the rows of its table, and behind these
    other ids, numbered as they come. A text stands for the id that a collection of such texts gives it.

    Args:
        table: of the collection.
        letter: that ids of its texts begin with.
    """

    def __init__(self, table: TextTable, letter: str) -> None:
        self._table = table
        self._letter = letter
        self._others = GivenIds()
        self.ids: Sequence[str] = _IdsOfBoth(table.ids, self._others.ids)

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """``[N]`` int64: the row of each id, a new one for an id that is not there."""
        distinct = list(dict.fromkeys(ids))
        rows = self._table.rows(distinct)
        absent = np.flatnonzero(rows < 0)
        rows[absent] = self._table.rows([self._id_of(distinct[place]) for place in absent])
        absent = absent[rows[absent] < 0]
        of_others = self._others.rows([distinct[place] for place in absent])
        rows[absent] = len(self._table) + of_others
        row_of = dict(zip(distinct, rows.tolist(), strict=True))
        return np.fromiter(map(row_of.__getitem__, ids), np.int64, len(ids))

    def _id_of(self, text: str) -> str:
        """What a collection calls a text; itself where it is no text."""
        try:
            return id_of(self._letter, text)
        except UnicodeEncodeError:
            return text

    def are_there(self, rows: np.ndarray) -> np.ndarray:
        """``[N]`` bool: whether the collection has what these rows name."""
        return rows < len(self._table)


class _IdsOfBoth(Sequence[str]):
    """The ids of a table, and behind them others, which may become more."""

    def __init__(self, of_table: Sequence[str], others: Sequence[str]) -> None:
        self._of_table = of_table
        self._others = others

    def __len__(self) -> int:
        return len(self._of_table) + len(self._others)

    def __getitem__(self, row: int) -> str:  # type: ignore[override]  # no slices
        n_of_table = len(self._of_table)
        return self._of_table[row] if row < n_of_table else self._others[row - n_of_table]


@dataclass(frozen=True)
class Judgements:
    """What rankings are measured by.

    Attributes:
        source: the file or the data that they come from.
        lists: the grades, by query.
        queries, docs: the ids; those of the rankings join them as they are read.
        path: of the data whose texts these are; None where the judgements are alone.
        split: of the data.
        digests: of what is judged, by the names of ``evaluated`` in metrics.json.
        notes: what must be told of them.
        own_docs: the document that a query is itself, which rankings leave out as BEIR's do; None where
            no query is one.
    """

    source: str
    lists: QueryLists
    queries: IdTable
    docs: IdTable
    path: str | None = None
    split: str = "test"
    digests: dict[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    own_docs: QueryLists | None = None

    @property
    def query_ids(self) -> list[str]:
        """The judged queries, in the order of ``lists``."""
        return [self.queries.ids[row] for row in self.lists.query_rows]

    @property
    def max_grade(self) -> float:
        """The largest grade of the scale: that of ERR by default, or the largest that there is."""
        return max(4.0, float(self.lists.values.max()))

    def with_documents(self, others: QueryLists) -> "Judgements":
        """With more documents, and their grades, for queries that are judged."""
        return replace(self, lists=self.lists.joined(others))


def named_judgements(data: str | None, qrels: str | None, split: str) -> Judgements:
    """The judgements that measure rankings.

    Args:
        data: a collection; None for none.
        qrels: a file of judgements, in any form that a data folder has them in; None for none.
        split: of the collection.

    Raises:
        InputError: where not just one of them is named, or there is none.
    """
    if (data is None) == (qrels is None):
        raise InputError(
            "rankings in files are measured by the judgements of one data set or of one file; name it with --data PATH or --qrels FILE"
        )
    if data is not None:
        return judgements_of_data(data, split)
    if split != "test":
        raise InputError(f"--split is of --data, got {split}; leave it out beside --qrels")
    return judgements_of_file(str(qrels))


def judgements_of_file(file: str | Path) -> Judgements:
    """The judgements of a file."""
    path = Path(file)
    if not path.is_file():
        raise InputError(f"--qrels: there is no file {file}")
    queries = GivenIds()
    docs = GivenIds()
    with reading([path]):
        lists, notes = read_judgements([path], queries, docs)
    return replace(_judgements(str(file), lists, queries, docs), notes=notes.left_out)


def judgements_of_data(path: str, split: str = "test") -> Judgements:
    """The judgements of a split of a collection."""
    collection = open_collection(path)
    if split != "test":
        collection = with_split(collection, split)
    read = _judgements_of(collection, collection.judgements(split), path, split)
    return replace(read, notes=machine_judged_lines(collection, split))


def judgements_of_judge(labels: JudgeLabels, collection: Collection, split: str) -> Judgements:
    """What a machine has judged of the queries of a split, and of those that nobody has.

    Args:
        labels: of the machine.
        collection: that it has judged.
        split: whose queries people have judged; those of other splits are left out, as rankers may have
            been trained or chosen on them.
    """
    lists = labels.grades
    by_people = collection.judgements(split).query_rows
    both = lists.of_queries(by_people)
    kept = QueryLists.end_to_end([both, labels.of_nobody_else(collection)])
    kept = kept.lists_at(np.argsort(kept.query_rows, kind="stable"))
    if not len(kept.query_rows):
        raise InputError(
            f"{labels.folder}: at least one query must be of {split}, or judged by nobody, got {len(lists.query_rows)} of other splits"
        )
    notes = []
    n_left_out = len(lists.query_rows) - len(kept.query_rows)
    if n_left_out:
        notes.append(
            f"queries that people have judged in other splits are left out: {n_left_out:,}"
        )
    source = f"{labels.name}'s labels"
    # That whose queries run folders have ranked.
    of_runs = labels.mixed_split or split
    return replace(_judgements_of(collection, kept, source, of_runs), notes=notes)


def _judgements_of(
    collection: Collection, judged: QueryLists, source: str, split: str
) -> Judgements:
    """Judgements of queries and documents of a collection."""
    queries = CollectionIds(collection.queries, "q")
    docs = CollectionIds(collection.corpus, "d")
    read = _judgements(source, judged, queries, docs)
    texts = {"queries": collection.queries.key, "documents": collection.corpus.key}
    own_rows = collection.documents_left_out()[judged.query_rows]
    has_own = own_rows >= 0
    own_docs = QueryLists.from_rows(
        judged.query_rows[has_own], own_rows[has_own], np.zeros(int(has_own.sum()))
    )
    digests = read.digests | texts
    path = collection.source
    return replace(read, path=path, split=split, digests=digests, own_docs=own_docs)


def _judgements(source: str, lists: QueryLists, queries: IdTable, docs: IdTable) -> Judgements:
    return Judgements(source, lists, queries, docs, digests={"judgements": lists.digest()[:16]})
