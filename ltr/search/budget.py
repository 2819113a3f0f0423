"""Search of an encoded corpus within a budget of memory: the embeddings themselves where they fit,
else codes of them whose recall was measured on queries.

Letters of shapes: D documents, Q queries, H dimensions.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import numpy as np
import torch

from ltr.data.cache_folder import sealed_folder
from ltr.data.outputs import check_inside
from ltr.data.whole_files import write_whole
from ltr.entries import check_entries, read_json
from ltr.errors import InputError
from ltr.search.codes import (
    CodedIndex,
    count_of_sample,
    read_codes,
    size_of_codes,
    write_codes,
)
from ltr.search.embeddings import DOCS_AT_ONCE, StoredEmbeddings
from ltr.search.encoding import Encoding
from ltr.search.exact import QUERIES_AT_ONCE
from ltr.search.index import CPU, DenseIndex
from ltr.similarity import Similarity

log = logging.getLogger(__name__)

Kind = Literal["exact", "clusters", "one bit"]

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
RECALL = 0.95  # below it a search is refused, unless another one is asked for
QUERIES = 200  # on which recall is measured, at most
FEWEST_FOR_CLUSTERS = 100_000  # documents: fewer are looked at one by one in milliseconds
# What a search looks at is doubled until the recall is reached: from twice as many candidates as are
# wanted and a 64th of the clusters up to 64 times as many and half the clusters.
STEPS = 6
INDEXES = "indexes"  # the folder of an encoding
FILE = "index.faiss"
VERSION = "codes-1"  # counts up when the files hold something else


def bytes_of(memory: str, option: str = "--memory") -> int:
    """The bytes of a budget as it is written.

    >>> bytes_of("1.5GB")
    1500000000

    Raises:
        InputError: if it is no number with a unit, or 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]B)", memory.strip(), flags=re.IGNORECASE)
    n_bytes = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if n_bytes < 1:
        raise InputError(
            f"{option} must be a number above 0 with a unit, KB, MB, GB or TB, such as 4GB, got {memory!r}"
        )
    return n_bytes


def size_text(n_bytes: int) -> str:
    """Bytes in words, rounded up, so that :func:`bytes_of` gives at least as many.

    >>> size_text(117_440_512), size_text(5_600_000_001)
    ('118MB', '5.7GB')
    """
    if n_bytes >= UNITS["GB"]:
        return f"{-(-n_bytes // 10**8) / 10:g}GB"
    if n_bytes >= UNITS["MB"]:
        return f"{-(-n_bytes // 10**6)}MB"
    return f"{-(-n_bytes // 10**3)}KB"


@dataclass(frozen=True)
class Budget:
    """What a search may take, and what it must reach.

    Attributes:
        memory: bytes: of the embeddings or their codes, whether these are read or mapped, and of
            what a search compares at a time. What is beside it, the model and the texts, is not
            counted.
        depth: at which recall is measured: how many documents of each query are wanted.
        recall: the share of the documents of exact search that must be found, from 0 to 1.
    """

    memory: int
    depth: int
    recall: float = RECALL

    def __post_init__(self) -> None:
        if not 0 < self.recall <= 1:
            raise InputError(f"recall must lie above 0, and be at most 1, got {self.recall}")


@dataclass(frozen=True)
class Asked:
    """The queries on which recall is measured: codes that are good for some are bad for others.

    Attributes:
        count: Q.
        key: of what they are and of the weights that embed them.
        embed: makes the embeddings ``[Q, H]``; called where nothing was measured before.
    """

    count: int
    key: str
    embed: Callable[[], np.ndarray]


@dataclass(frozen=True)
class Chosen:
    """An index within a budget.

    Attributes:
        index: what searches.
        kind: of the index.
        recall: as it was measured; 1 of exact search, where nothing is.
        line: what was chosen, for people.
    """

    index: DenseIndex
    kind: Kind
    recall: float
    line: str


def clusters_of(count: int) -> int:
    """How many clusters D documents get: a power of two near the square root.

    >>> clusters_of(10**6), clusters_of(10**8)
    (1024, 8192)
    """
    return int(2 ** round(np.log2(count) / 2))


def memory_needed(kind: Kind, shape: tuple[int, int], bytes_of_embedding: int) -> int:
    """The bytes that an index of a kind takes while it is built and searched.

    Args:
        kind: of the index.
        shape: D, H.
        bytes_of_embedding: as it is stored.
    """
    count, dim = shape
    n_at_once = min(count, DOCS_AT_ONCE)
    # Up to six copies of the embeddings that are read at a time: by shards, put together, those
    # before them, prepared, and two while their lengths are computed. And a tile of their scores,
    # with what is best of it.
    n_queries = QUERIES_AT_ONCE if kind == "exact" else QUERIES
    work = n_at_once * (6 * 4 * dim + 2 * 4 * n_queries)
    if kind == "exact":
        return work + count * bytes_of_embedding
    if kind == "one bit":
        return work + size_of_codes(count, dim, None)
    clusters = clusters_of(count)
    # While documents are added, the lists of clusters have room for up to twice as many. Before that
    # come up to four copies of what clusters are learnt of.
    adding = work + 2 * size_of_codes(count, dim, clusters)
    learning = 4 * 4 * count_of_sample(count, clusters) * dim
    return max(adding, learning)


def index_within(
    budget: Budget,
    encoding: Encoding,
    similarity: Similarity,
    asked: Asked | None,
    device: torch.device = CPU,
) -> Chosen:
    """The best index of an encoded corpus that a budget holds: the embeddings, for exact search;
    else codes of one bit a dimension, in clusters where that is enough, whose best documents are
    scored again by their embeddings. Codes are made once, and kept in the folder of the encoding.

    Args:
        budget: what it may take.
        encoding: a finished one.
        similarity: how a query and a document are compared.
        asked: the queries on which recall is measured; None where there are none to be had.
        device: where exact search runs; codes are searched on the CPU.

    Raises:
        InputError: if nothing fits, the recall isn't reached, or there are no queries to measure it
            on.
    """
    docs = encoding.embeddings()
    count, dim = docs.shape
    bytes_of_embedding = docs.shards[0].bytes_of_row
    needed: dict[Kind, int] = {}
    for kind in get_args(Kind):
        if kind != "clusters" or count >= FEWEST_FOR_CLUSTERS:
            needed[kind] = memory_needed(kind, docs.shape, bytes_of_embedding)
    exact = DenseIndex.build(docs, similarity, device=device)
    if needed["exact"] <= budget.memory:
        line = f"exact search of embeddings that need {size_text(needed['exact'])}"
        return Chosen(exact, "exact", 1.0, line)
    enough = f"--memory {size_text(needed['exact'])} holds the embeddings, and without --memory they are read from the disk for each search"
    kinds = [kind for kind in needed if needed[kind] <= budget.memory]
    if not kinds:
        raise InputError(
            f"--memory must be at least {size_text(needed['one bit'])} for {count:,} documents of {dim} dimensions, got {size_text(budget.memory)}"
        )
    if asked is None or asked.count == 0:
        raise InputError(
            f"--memory {size_text(budget.memory)} holds codes of the embeddings alone, whose recall is measured on queries, and there are none: name some by --recall_queries, or take the run of a collection that has queries; {enough}"
        )
    trials = []
    for kind in kinds:
        codes = _Codes(encoding, docs, kind, similarity, exact)
        found = codes.measured(asked, budget)
        if found["recall"] >= budget.recall:
            return codes.chosen(found, asked)
        trials.append(f"{found['recall']:.3f} by {kind}")
    raise InputError(
        f"--memory {size_text(budget.memory)} must hold an index that finds {budget.recall:g} of the {budget.depth} best documents, and of {asked.count} queries it finds {' and '.join(trials)}; {enough}; or ask for less by --recall"
    )


class Measured(TypedDict):
    """What was measured of codes on some queries."""

    recall: float
    step: int  # of :meth:`_Codes.at`
    depth: int
    queries: int
    candidates: int


class CodesManifest(TypedDict):
    """What lies beside codes, and the entries that say what they were made of."""

    measured: dict[str, Measured]


class _Codes:
    """An index of codes in the folder of an encoding. Beside its folder lies a manifest: what it is,
    and the recalls that were measured.
    """

    def __init__(
        self,
        encoding: Encoding,
        docs: StoredEmbeddings,
        kind: Kind,
        similarity: Similarity,
        exact: DenseIndex,
    ) -> None:
        self.kind = kind
        self._docs = docs
        self._similarity = similarity
        self._exact = exact
        self._clusters = clusters_of(len(docs)) if kind == "clusters" else None
        manifest = encoding.manifest()
        assert manifest is not None, "the encoding is finished"
        self._about = {
            "version": VERSION,
            "encoding": encoding.plan.key,
            "digest": manifest["digest"],
            "kind": kind,
            "clusters": self._clusters,
            "similarity": similarity.name,
        }
        key = hashlib.sha256(json.dumps(self._about).encode()).hexdigest()[:32]
        self._root = encoding.folder
        folder = encoding.folder / INDEXES / key
        if not folder.is_dir():
            self._check_writable()
        folder.parent.mkdir(exist_ok=True)
        sealed_folder(folder, self._build)
        self._file = folder / FILE
        self._manifest = folder.with_suffix(".json")
        self._index = read_codes(self._file, docs.shape)

    def _check_writable(self) -> None:
        check_inside(self._root, "the folder of the encoding, where --memory keeps an index")

    def _build(self, folder: Path) -> None:
        prepare = partial(self._similarity.prepare, centre=self._exact.centre)
        squared = self._similarity.by_distance
        write_codes(folder / FILE, self._docs, prepare, self._clusters, squared=squared)

    def at(self, step: int) -> DenseIndex:
        """The index, which looks at twice as much with each step, from 1."""
        probes = 1
        if self._clusters is not None:
            probes = max(1, self._clusters * 2**step // 128)
        prepare = partial(self._similarity.prepare, centre=self._exact.centre)
        coded = CodedIndex(self._index, self._docs, prepare, 2**step, probes)
        return DenseIndex(coded, self._similarity, self._exact.centre)

    def measured(self, asked: Asked, budget: Budget) -> dict[str, Any]:
        """The first step that reaches a budget's recall, or the last; and its recall."""
        key = hashlib.sha256(f"{asked.key} {budget.depth}".encode()).hexdigest()[:32]
        manifest = self._read_manifest()
        measured = manifest["measured"].get(key)
        if measured and (measured["recall"] >= budget.recall or measured["step"] == STEPS):
            return measured
        self._check_writable()
        queries = asked.embed()
        depth = min(budget.depth, len(self._docs))
        exact = self._exact.search(queries, depth)
        for step in range(1, STEPS + 1):
            recall = recall_of(self.at(step).search(queries, depth), exact)
            measured = {
                "recall": recall,
                "step": step,
                "depth": budget.depth,
                "queries": asked.count,
                "candidates": 2**step * depth,
            }
            if recall >= budget.recall:
                break
        manifest["measured"][key] = measured
        write_whole(self._manifest, [json.dumps(manifest, indent=2) + "\n"])
        return measured

    def _read_manifest(self) -> dict[str, Any]:
        """The manifest; a new one where there is none, or it is damaged."""
        try:
            manifest = read_json(self._manifest, mend="")
            check_entries(manifest, CodesManifest, self._manifest, mend="")
        except InputError:
            manifest = {}
        steps = [each["step"] for each in manifest.get("measured", {}).values()]
        if self._about.items() <= manifest.items() and all(1 <= step <= STEPS for step in steps):
            return manifest
        return {**self._about, "bytes": self._file.stat().st_size, "measured": {}}

    def chosen(self, measured: dict[str, Any], asked: Asked) -> Chosen:
        """The index at the step that was measured."""
        recall = measured["recall"]
        name = "codes of one bit a dimension"
        if self._clusters is not None:
            name += f" in {self._clusters:,} clusters"
        line = f"{name}, {size_text(self._file.stat().st_size)}; recall {recall:.3f} of the {measured['depth']} best, measured on {asked.count} queries, with {measured['candidates']:,} candidates that are scored again"
        return Chosen(self.at(measured["step"]), self.kind, recall, line)


def recall_of(found: tuple[np.ndarray, np.ndarray], exact: tuple[np.ndarray, np.ndarray]) -> float:
    """The share of the documents of exact search that were found, as the mean over queries. One
    whose score ties with the last of these counts, too.

    Args:
        found: scores and rows ``[Q, k]`` as :meth:`ltr.search.index.DenseIndex.search` gives them.
        exact: those of exact search.
    """
    shares = []
    for scores, rows, exact_scores, exact_rows in zip(*found, *exact, strict=True):
        is_right = (rows >= 0) & (np.isin(rows, exact_rows) | (scores >= exact_scores[-1]))
        shares.append(is_right.sum() / len(exact_rows))
    return float(np.mean(shares))
