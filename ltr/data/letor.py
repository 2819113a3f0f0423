"""Learning-to-rank data sets of feature vectors: a split as memory-mapped arrays."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from ltr.data.cache_folder import cached, origin_of
from ltr.data.disk import new_array
from ltr.data.files import digest_of, map_array
from ltr.data.progress import reading
from ltr.data.query_lists import LabelledList, zero_below
from ltr.data.query_sizes import QuerySizes, read_query_sizes, warn_of_others
from ltr.data.strings import Strings, StringsFile
from ltr.data.svmlight import place_of, read_rows
from ltr.errors import InputError

log = logging.getLogger(__name__)

# What the rows of the files become in a folder before their order is known.
SPARSE = "sparse"
IDS = "ids"


class RowNames(Sequence[str]):
    """Ids for rows that have none: their numbers, with zeros in front so that they sort as the rows
    do.
    """

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        if not 0 <= row < self._n_rows:
            raise IndexError(f"there are {self._n_rows} rows, got {row}")
        return str(row).zfill(len(str(self._n_rows - 1)))


@dataclass(eq=False)
class FeatureSplit:
    """Queries with labelled documents, each a vector of features; the rows of one query stand
    together.

    A split may have only some of the queries whose rows it stores (see :meth:`only`). Its own
    queries are numbered 0 to Q - 1.
    """

    key: str  # names the stored rows; splits made by `only` share it
    features: np.ndarray  # [R, F] float32
    labels: np.ndarray  # [R] float32, 0 or more
    # [S + 1] int64; the rows of stored query s stand from offsets[s] to offsets[s + 1].
    offsets: np.ndarray
    query_ids: Sequence[str]  # [Q]
    # [R]; within a query they ascend as bytes, so a row number orders documents as their ids do.
    doc_ids: Sequence[str]
    folder: Path | None = None  # in the cache, from which the arrays are mapped; None: in memory
    chosen: np.ndarray | None = None  # [Q] int64, of the S stored queries; None: all
    # Lists have 0 in the place of a label below it; None: as they are.
    relevant_from: float | None = None

    @cached_property
    def queries(self) -> np.ndarray:
        """``[Q]`` int64: the stored query behind each number."""
        return np.arange(len(self.offsets) - 1) if self.chosen is None else self.chosen

    @classmethod
    def open(
        cls,
        folder: Path,
        chosen: np.ndarray | None = None,
        relevant_from: float | None = None,
    ) -> "FeatureSplit":
        """Map a folder that :func:`read_letor` wrote.

        Args:
            folder: in the cache.
            chosen: ``[Q]`` int64, of the stored queries; None: all.
            relevant_from: lists have 0 in the place of a label below it; None: as they are.
        """
        labels = map_array(folder / "labels.npy")
        query_ids: Sequence[str] = Strings(folder, "query_ids")
        if chosen is not None:
            query_ids = [query_ids[query] for query in chosen]
        doc_ids: Sequence[str] = RowNames(len(labels))
        if (folder / "doc_ids.npy").exists():
            doc_ids = Strings(folder, "doc_ids")
        return cls(
            key=folder.name,
            features=map_array(folder / "features.npy"),
            labels=labels,
            offsets=map_array(folder / "offsets.npy"),
            query_ids=query_ids,
            doc_ids=doc_ids,
            folder=folder,
            chosen=chosen,
            relevant_from=relevant_from,
        )

    def __reduce__(self) -> tuple:
        # A worker maps the files and is sent no rows.
        if self.folder is not None:
            return FeatureSplit.open, (self.folder, self.chosen, self.relevant_from)
        return FeatureSplit, (
            self.key,
            self.features,
            self.labels,
            self.offsets,
            self.query_ids,
            self.doc_ids,
            self.folder,
            self.chosen,
            self.relevant_from,
        )

    def only(self, queries: np.ndarray) -> "FeatureSplit":
        """The split of some queries, given by their numbers in this one, over the same rows:
        nothing is copied.
        """
        queries = np.asarray(queries, dtype=np.int64)
        query_ids = [self.query_ids[query] for query in queries]
        return replace(self, query_ids=query_ids, chosen=self.queries[queries])

    @property
    def n_features(self) -> int:
        return self.features.shape[1]

    def __len__(self) -> int:
        return len(self.queries)

    def rows(self, query: int) -> np.ndarray:
        """Row numbers (int64) of the documents of a query."""
        stored = self.queries[query]
        return np.arange(self.offsets[stored], self.offsets[stored + 1])

    def whole(self, query: int) -> LabelledList:
        """A query with all its documents."""
        rows = self.rows(query)
        return LabelledList(query, rows, zero_below(self.labels[rows], self.relevant_from))


def hold_out(split: FeatureSplit, share: float) -> tuple[FeatureSplit, FeatureSplit]:
    """Divide the queries of a split at random, the same way under every seed.

    Returns:
        The rest, and the queries held out: about ``share`` of all. Each has at least one query.
    """
    if not 0 < share < 1:
        raise InputError(
            f"the share of queries to hold out must lie between 0 and 1, got {share}",
            option="dev_share",
        )
    if len(split) < 2:
        raise InputError(
            f"to hold out queries a split must have at least two, got {len(split)}; add a dev split"
        )
    n_held = min(max(round(share * len(split)), 1), len(split) - 1)
    shuffled = np.random.default_rng(0).permutation(len(split))
    return split.only(np.sort(shuffled[n_held:])), split.only(np.sort(shuffled[:n_held]))


def read_letor(files: Sequence[Path], first_feature: int = 1) -> FeatureSplit:
    """Read the SVMlight or LETOR files of one split; :func:`ltr.data.svmlight.read_rows` says what a
    line holds.

    The rows of one query are joined wherever they stand; a warning counts the queries whose rows
    stand apart. Where the rows of a file have no qid, their queries are told by the sizes beside it
    (:func:`ltr.data.query_sizes.read_query_sizes`), and numbered from 1 through all files.
    Queries keep the order of their first rows. ``#docid = …`` in the comments gives
    the ids of documents, and the documents of a query are sorted by id. In files without any id,
    they keep the order of the files and are named by the numbers of their rows. The split is
    cached as a dense table under the content of the files, and mapped from then on.

    Args:
        files: read as if they were one.
        first_feature: the number of the first feature in the files.

    Raises:
        InputError: with ``file:line`` for a line that is no row, for sizes that do not add up to
            the rows, for a row without a document id where others have one, and for a document that stands twice in its query; for a split
            without a row or a feature.
    """
    if missing := [file for file in files if not file.is_file()]:
        raise InputError(f"{missing[0]}: there is no such file")
    for file in files:
        warn_of_others(file)
    sizes_of_file = [read_query_sizes(file) for file in files]
    _check_all_have_sizes(files, sizes_of_file)
    digests = []
    for file, sizes in zip(files, sizes_of_file, strict=True):
        # The bytes say all; the end is a part of the key so that tables on disk stay.
        packed = ".gz" if file.suffix == ".gz" else ""
        digests.append(digest_of(file) + packed)
        if sizes is not None:
            digests.append(f"sizes {digest_of(sizes.file)}")
    content = f"letor-2 {first_feature} {' '.join(digests)}"
    with reading(files):
        return cached(
            "letor",
            content,
            lambda folder: _write_split(folder, files, sizes_of_file, first_feature),
            FeatureSplit.open,
            origin_of(*files),
        )


class _ReadRows(NamedTuple):
    """All rows of a split in the order of its files; what may not fit into memory is on disk."""

    labels: np.ndarray  # [R] float32
    qids: np.ndarray  # [R] int64
    n_features: int
    n_blocks: int


def _check_all_have_sizes(files: Sequence[Path], sizes_of_file: list[QuerySizes | None]) -> None:
    """Numbers of queries that the rows have, and numbers by sizes, could be the same."""
    without = [file for file, sizes in zip(files, sizes_of_file, strict=True) if sizes is None]
    if 0 < len(without) < len(files):
        raise InputError(
            f"{without[0]}: the rows have a qid, or no sizes beside them, and those of other files of the split have no qid; give all rows a qid"
        )


def _write_split(
    folder: Path,
    files: Sequence[Path],
    sizes_of_file: list[QuerySizes | None],
    first_feature: int,
) -> None:
    """Read the files once, find the order of the rows, and write the arrays in that order."""
    read = _read_files(folder, files, sizes_of_file, first_feature)
    qids, query_of_row = _queries_of_rows(read.qids)
    _warn_of_scattered(read.qids, query_of_row, files)
    # order[n] is the row of the files that becomes row n of the split.
    order = np.argsort(query_of_row, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(query_of_row))])
    ids = Strings(folder, IDS)
    has_id = ids.lengths(np.arange(len(order))) > 0
    if has_id.any():
        _check_all_have_ids(has_id, files)
        order = _order_by_id(order, offsets, ids, files)
        Strings.write(folder, "doc_ids", ids.in_order(order))
    Strings.write(folder, "query_ids", [b"%d" % qid for qid in qids])
    np.save(folder / "labels.npy", read.labels[order])
    np.save(folder / "offsets.npy", offsets)
    new_row = np.empty_like(order)
    new_row[order] = np.arange(len(order))
    features = new_array(folder / "features.npy", np.float32, (len(order), int(read.n_features)))
    with open(folder / SPARSE, "rb") as sparse:
        _fill_table(features, sparse, read.n_blocks, new_row)
    for name in (SPARSE, f"{IDS}.npy", f"{IDS}.offsets.npy"):
        (folder / name).unlink()


def _read_files(
    folder: Path,
    files: Sequence[Path],
    sizes_of_file: list[QuerySizes | None],
    first_feature: int,
) -> _ReadRows:
    """Read all rows. In the folder a file takes three arrays of each block (counts, columns, values),
    and strings the document ids, empty where a row has none.
    """
    labels = []
    qids = []
    n_features = 0
    next_query = 1
    with open(folder / SPARSE, "wb") as sparse, StringsFile(folder, IDS) as ids:
        for file, sizes in zip(files, sizes_of_file, strict=True):
            numbers = None if sizes is None else sizes.qids(next_query)
            n_rows = 0
            for block in read_rows(file, first_feature, numbers):
                n_rows += len(block.labels)
                np.save(sparse, block.counts)
                np.save(sparse, block.columns)
                np.save(sparse, block.values)
                ids.extend(block.doc_ids)
                labels.append(block.labels)
                qids.append(block.qids)
                n_features = max(n_features, block.columns.max(initial=-1) + 1)
            if sizes is not None:
                sizes.check(file, n_rows)
                next_query += len(sizes.sizes)
    if not any(map(len, labels)):
        raise InputError(
            f"{files[0]}: the split is empty; at least one row 'label qid:N feature:value …' is needed"
        )
    if n_features == 0:
        raise InputError(f"{files[0]}: no row of the split has a feature; at least one is needed")
    return _ReadRows(
        labels=np.concatenate(labels),
        qids=np.concatenate(qids),
        n_features=n_features,
        n_blocks=len(labels),
    )


def _queries_of_rows(qids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different qids in the order of their first rows, and for each row the place of its query
    among them.

    >>> _queries_of_rows(np.array([7, 7, 3, 5, 3]))
    (array([7, 3, 5]), array([0, 0, 1, 2, 1]))
    """
    # np.unique sorts the qids by value.
    sorted_qids, first_row, place_by_value = np.unique(qids, return_index=True, return_inverse=True)
    by_first_row = np.argsort(first_row)
    place = np.empty_like(first_row)
    place[by_first_row] = np.arange(len(sorted_qids))
    return sorted_qids[by_first_row], place[place_by_value]


def _warn_of_scattered(qids: np.ndarray, query_of_row: np.ndarray, files: Sequence[Path]) -> None:
    """Count the queries whose rows stand apart in a warning.

    Args:
        qids: ``[R]``, in the order of the files.
        query_of_row: ``[R]``, numbers of queries in the order of their first rows.
        files: of the split, for the warning.
    """
    begins = np.flatnonzero(np.diff(query_of_row, prepend=-1))  # of stretches of rows of one query
    queries = query_of_row[begins]
    # The first stretch of a query has a larger number than all before it.
    later = begins[1:][queries[1:] <= np.maximum.accumulate(queries)[:-1]]
    if len(later):
        log.warning(
            "%s: query %d comes again after other queries, as %d of %d do; their rows are joined",
            place_of(files, int(later[0])),
            qids[later[0]],
            len(np.unique(qids[later])),
            queries.max() + 1,
        )


def _check_all_have_ids(has_id: np.ndarray, files: Sequence[Path]) -> None:
    if has_id.all():
        return
    without_id = place_of(files, int(np.argmin(has_id)))
    with_id = place_of(files, int(np.argmax(has_id)))
    raise InputError(
        f"{without_id}: the row has no '#docid = …' in its comment, but others of the split have one, first {with_id}; give every row its id, or none"
    )


def _order_by_id(
    order: np.ndarray, offsets: np.ndarray, ids: Strings, files: Sequence[Path]
) -> np.ndarray:
    """``[R]``: the rows of each query in the order of their document ids.

    Args:
        order: ``[R]``, rows of the files; those of query q stand from offsets[q] to offsets[q + 1].
        offsets: ``[Q + 1]``.
        ids: of all rows, in the order of the files.
        files: of the split, for errors.
    """
    order_by_id = np.empty_like(order)
    ids_of_queries = ids.in_order(order)
    for start, stop in pairwise(offsets.tolist()):
        ids_of_query = islice(ids_of_queries, stop - start)
        id_and_row = sorted(zip(ids_of_query, order[start:stop].tolist(), strict=True))
        for (id_, row), (next_id, next_row) in pairwise(id_and_row):
            if id_ == next_id:
                second = place_of(files, next_row)
                first = place_of(files, row)
                raise InputError(
                    f"{second}: document {id_.decode()!r} stands twice in its query, first at {first}"
                )
        order_by_id[start:stop] = [row for _, row in id_and_row]
    return order_by_id


def _fill_table(table: np.memmap, sparse: BinaryIO, n_blocks: int, new_row: np.ndarray) -> None:
    """Write each block of sparse rows to its rows of a dense table of zeros.

    Args:
        table: ``[R, F]``, mapped from a file.
        sparse: holds three arrays of each block, as :func:`_read_files` wrote them.
        n_blocks: how many blocks it holds.
        new_row: ``[R]``, the row of the table for each row of the files.
    """
    row = 0
    for _ in range(n_blocks):
        counts = np.load(sparse)
        columns = np.load(sparse)
        values = np.load(sparse)
        rows_of_block = new_row[row : row + len(counts)]
        table[np.repeat(rows_of_block, counts), columns] = values
        row += len(counts)
    table.flush()
