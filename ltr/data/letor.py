"""Learning-to-rank data sets of feature vectors: which files make a split, and the split as
memory-mapped arrays.
"""

import json
import logging
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ltr.data.files import cached, digest_of, is_file, new_array
from ltr.data.query_lists import LabelledList
from ltr.data.svmlight import place_of, read_rows
from ltr.data.texts import Strings
from ltr.errors import InputError

log = logging.getLogger(__name__)

NAMES = {"train": ("train",), "dev": ("dev", "vali", "valid", "validation"), "test": ("test",)}
KINDS = (".txt", ".svm", ".svmlight", ".libsvm", ".letor")
ENDS = f"{', '.join(KINDS)} (+ .gz)"
SUFFIXES = tuple(kind + packed for kind in KINDS for packed in ("", ".gz"))


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

    ``queries``, ``[Q]`` int64, are the stored queries that this split has, by default all.
    """

    key: str  # names the stored rows; splits made by `only` share it
    features: np.ndarray  # [R, F] float32
    labels: np.ndarray  # [R] float32, 0 or more
    offsets: (
        np.ndarray
    )  # [S + 1] int64; the rows of stored query s stand from offsets[s] to offsets[s + 1]
    query_ids: Sequence[str]  # [Q]
    doc_ids: Sequence[
        str
    ]  # [R]; within a query they ascend as bytes, so a row number orders documents as their ids do

    def __post_init__(self) -> None:
        self.queries = np.arange(len(self.offsets) - 1)
        arrays = self.features, self.labels, self.offsets
        self._made_by: tuple = FeatureSplit, (self.key, *arrays, self.query_ids, self.doc_ids)

    @classmethod
    def open(cls, folder: Path) -> "FeatureSplit":
        """Map a folder that :func:`read_letor` wrote; it is pickled as this path alone."""
        features, labels, offsets = (
            np.load(folder / f"{name}.npy", mmap_mode="r")
            for name in ("features", "labels", "offsets")
        )
        has_ids = (folder / "doc_ids.npy").exists()
        doc_ids = Strings(folder, "doc_ids") if has_ids else RowNames(len(labels))
        split = cls(folder.name, features, labels, offsets, Strings(folder, "query_ids"), doc_ids)
        split._made_by = cls.open, (folder,)
        return split

    def only(self, queries: np.ndarray) -> "FeatureSplit":
        """The split of some queries, given by their numbers in this one, over the same rows:
        nothing is copied.
        """
        queries = np.asarray(queries, dtype=np.int64)
        query_ids = [self.query_ids[query] for query in queries]
        part = FeatureSplit(
            self.key, self.features, self.labels, self.offsets, query_ids, self.doc_ids
        )
        part.queries = self.queries[queries]
        part._made_by = FeatureSplit.only, (self, queries)
        return part

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
        return LabelledList(query, rows, self.labels[rows])

    def __reduce__(self) -> tuple:
        return self._made_by


def hold_out(split: FeatureSplit, share: float) -> tuple[FeatureSplit, FeatureSplit]:
    """Divide the queries of a split at random, the same under every seed: the rest, and about
    ``share``, at least one of each.
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


def find_splits(path: Path, fold: int | None = None) -> dict[str, list[Path]]:
    """The files of each split of a data folder, by ``train``, ``dev`` and ``test``.

    Three layouts are known; a file ends in ``.txt``, ``.svm``, ``.svmlight``, ``.libsvm`` or
    ``.letor``, perhaps with ``.gz``:

    * files ``train.*``, ``dev.*`` (also ``vali.*``, ``valid.*``, ``validation.*``) and ``test.*``,
      or sub-folders of these names, whose files are joined in the order of their names;
    * folders ``Fold1``, ``Fold2`` … of the first kind, of which ``fold`` chooses one;
    * ``folds.json``, of which ``fold`` chooses an entry, with the files named in it without their
      ends: ``{"Fold1": {"train": ["S1", "S2", "S3"], "vali": ["S4"], "test": ["S5"]}, …}``.

    Raises:
        InputError: if the folder or its files are missing, a split has two sources, or the fold is
            missing, unknown or needless.
    """
    if not path.is_dir():
        raise InputError(f"{path}: there is no such data folder", option="path")
    plan = path / "folds.json"
    folders = {folder.name: folder for folder in path.glob("Fold[0-9]*") if folder.is_dir()}
    folds = _read_plan(plan) if is_file(plan) else folders
    if not folds:
        if fold is not None:
            raise InputError(
                f"{path}: there are no folds, got fold {fold}; leave fold out", option="fold"
            )
        return _splits_of(path)
    numbers = ", ".join(sorted(name.removeprefix("Fold") for name in folds))
    if f"Fold{fold}" not in folds:
        text = (
            f"choose one of the folds {numbers}"
            if fold is None
            else f"there is no fold {fold}, only {numbers}"
        )
        raise InputError(f"{path}: {text}", option="fold")
    chosen = folds[f"Fold{fold}"]
    if isinstance(chosen, Path):
        return _splits_of(chosen)
    stems = {
        split: [stem for name in names for stem in chosen.get(name, [])]
        for split, names in NAMES.items()
    }
    return {
        split: [_part(plan, stem) for stem in of_split]
        for split, of_split in stems.items()
        if of_split
    }


def _splits_of(folder: Path) -> dict[str, list[Path]]:
    splits = {}
    for split, names in NAMES.items():
        sources = [
            source
            for name in names
            for source in (folder / name, *_ending(folder, name))
            if os.path.lexists(source)
        ]
        if len(sources) > 1:
            raise InputError(
                f"{folder}: there must be one source of {split}, got {', '.join(s.name for s in sources)}; keep one"
            )
        for source in sources:
            inside = (
                sorted(file for file in source.iterdir() if file.name.endswith(SUFFIXES))
                if source.is_dir()
                else [source]
            )
            if not inside:
                raise InputError(
                    f"{source}: the folder must hold files that end in {ENDS}; there are none"
                )
            splits[split] = inside
    if not splits:
        listed = ", ".join(name for names in NAMES.values() for name in names)
        known = f"files or folders named {listed} (files end in {ENDS}), folders Fold1, Fold2 … of such, or folds.json"
        raise InputError(
            f"{folder}: there must be {known}; found {sorted(p.name for p in folder.iterdir())[:8]}"
        )
    return splits


def _ending(folder: Path, stem: str) -> list[Path]:
    return [file for suffix in SUFFIXES if is_file(file := folder / f"{stem}{suffix}")]


def _read_plan(plan: Path) -> dict[str, dict[str, list[str]]]:
    try:
        folds = json.loads(plan.read_bytes())
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deep
        raise InputError(
            f"{plan}:{getattr(error, 'lineno', 1)}: the file must be JSON ({error})"
        ) from None
    known = {name for names in NAMES.values() for name in names}
    for name, splits in folds.items() if isinstance(folds, dict) and folds else [("", folds)]:
        named = isinstance(splits, dict) and splits and splits.keys() <= known
        if not (named and all(isinstance(stems, list) and stems for stems in splits.values())):
            expected = '{"Fold1": {"train": ["S1", …], "vali": […], "test": […]}, …}'
            raise InputError(f"{plan}: expected {expected}, got {name!r}: {splits!r}")
        stems = [stem for of_split in splits.values() for stem in of_split]
        if twice := [stem for stem in stems if stems.count(stem) > 1]:
            raise InputError(
                f"{plan}: a part must stand once in a fold, got {twice[0]!r} twice in {name}"
            )
    return folds


def _part(plan: Path, stem: str) -> Path:
    files = _ending(plan.parent, stem)
    if len(files) != 1:
        came = ", ".join(file.name for file in files) or "none"
        raise InputError(f"{plan}: there must be one file {stem} with the end {ENDS}, got {came}")
    return files[0]


def read_letor(files: Sequence[Path], first_feature: int = 1) -> FeatureSplit:
    """Read the SVMlight or LETOR files of one split; see :func:`ltr.data.svmlight.read_rows` for a
    line.

    The rows of one query are joined wherever they stand, and a warning counts such queries. Queries
    keep the order of their first rows. ``#docid = …`` in the comments gives the ids of documents,
    and those of a query are sorted by it; without any, the order of the files is kept and rows are
    named by their numbers. What is read is kept under the content of the files, as a dense table,
    and mapped from then on.

    Args:
        files: read as if they were one.
        first_feature: the number of the first feature in the files.

    Raises:
        InputError: ``file:line`` of what is no row; of a row without a document id where others
            have one, or with one that stands twice in its query; for a split without a row or a
            feature.
    """
    if missing := [file for file in files if not file.is_file()]:
        raise InputError(f"{missing[0]}: there is no such file")
    content = f"letor-1 {first_feature} {' '.join(digest_of(file) + file.suffix * (file.suffix == '.gz') for file in files)}"
    return FeatureSplit.open(
        cached("letor", content, lambda folder: _build(folder, files, first_feature))
    )


def _build(folder: Path, files: Sequence[Path], first_feature: int) -> None:
    # what may not fit into memory waits here for the order of the rows
    sparse = folder / "sparse"
    ids = folder / "ids"
    label_parts = []
    qid_parts = []
    length_parts = []
    n_features = 0
    n_blocks = 0
    with open(sparse, "wb") as sparse_file, open(ids, "wb") as ids_file:
        for block in (block for file in files for block in read_rows(file, first_feature)):
            for part in (block.counts, block.columns, block.values):
                np.save(sparse_file, part)
            ids_file.writelines(block.doc_ids)
            label_parts.append(block.labels)
            qid_parts.append(block.qids)
            length_parts.append(np.fromiter(map(len, block.doc_ids), dtype=np.int32))
            n_features = max(n_features, block.columns.max(initial=-1) + 1)
            n_blocks += 1
    if not any(map(len, label_parts)):
        raise InputError(
            f"{files[0]}: the split is empty; at least one row 'label qid:N feature:value …' is needed"
        )
    if n_features == 0:
        raise InputError(f"{files[0]}: no row of the split has a feature; at least one is needed")
    labels, qids, id_lengths = map(np.concatenate, (label_parts, qid_parts, length_parts))
    query_ids, query_of_row = _queries(qids, files)
    order = np.argsort(query_of_row, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(query_of_row))])
    if id_lengths.any():
        Strings.write(
            folder,
            "doc_ids",
            _sorted_ids(order, offsets, ids, id_lengths, files),
            int(id_lengths.sum()),
        )
    Strings.write(folder, "query_ids", query_ids)
    np.save(folder / "labels.npy", labels[order])
    np.save(folder / "offsets.npy", offsets)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    with open(sparse, "rb") as sparse_file:
        _scatter(sparse_file, n_blocks, place, folder / "features.npy", n_features)
    sparse.unlink()
    ids.unlink()


def _queries(qids: np.ndarray, files: Sequence[Path]) -> tuple[list[bytes], np.ndarray]:
    """Query ids in the order of their first rows, and the query of each row."""
    distinct, first_row, inverse = np.unique(qids, return_index=True, return_inverse=True)
    rank = np.empty_like(first_row)
    rank[np.argsort(first_row)] = np.arange(len(distinct))
    query_of_row = rank[inverse]
    begins = np.flatnonzero(np.diff(qids, prepend=-1))
    again = begins[first_row[inverse[begins]] < begins]
    if len(again):
        log.warning(
            "%s: query %d comes again after other queries, as %d of %d do; their rows are joined",
            place_of(files, int(again[0])), qids[again[0]], len(np.unique(qids[again])), len(distinct),
        )  # fmt: skip
    return [b"%d" % qid for qid in distinct[np.argsort(first_row)]], query_of_row


def _sorted_ids(
    order: np.ndarray, offsets: np.ndarray, ids: Path, lengths: np.ndarray, files: Sequence[Path]
) -> Iterator[bytes]:
    """Sort the rows of each query, in place in ``order``, by their document ids; these come out in
    the new order.
    """
    if (lengths == 0).any():
        without = place_of(files, int(np.argmin(lengths)))
        first = place_of(files, int(np.argmax(lengths > 0)))
        others = f"others of the split have one, first {first}; give every row its id, or none"
        raise InputError(f"{without}: the row has no '#docid = …' in its comment, but {others}")
    ends = np.cumsum(lengths, dtype=np.int64)
    with open(ids, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        for start, stop in zip(offsets[:-1], offsets[1:], strict=True):
            rows = order[start:stop]
            spans = zip(
                (ends[rows] - lengths[rows]).tolist(),
                ends[rows].tolist(),
                rows.tolist(),
                strict=True,
            )
            named = sorted((text[begin:end], row) for begin, end, row in spans)
            for (name, row), (next_name, next_row) in pairwise(named):
                if name == next_name:
                    again = place_of(files, next_row)
                    first = place_of(files, row)
                    raise InputError(
                        f"{again}: document {name.decode()!r} stands twice in its query, first at {first}"
                    )
            order[start:stop] = [row for _, row in named]
            yield from (name for name, _ in named)


def _scatter(
    sparse: BinaryIO, n_blocks: int, place: np.ndarray, file: Path, n_features: int
) -> None:
    """Write each block of sparse rows to its place in a dense table; what no row names is 0."""
    table = new_array(file, np.float32, (len(place), int(n_features)))
    row = 0
    for _ in range(n_blocks):
        counts, columns, values = (np.load(sparse) for _ in range(3))
        table[np.repeat(place[row : row + len(counts)], counts), columns] = values
        row += len(counts)
    table.flush()
