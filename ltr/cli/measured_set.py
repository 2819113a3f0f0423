"""A data set that ``ltr test`` measures beside others: which documents are ranked, and ``row.json``,
which tells whether it was measured before, by the same weights and in the same way.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple, TypedDict, cast

from ltr.cli.messages import line_for_user
from ltr.cli.parsed import data_module
from ltr.compare.run import is_tested
from ltr.data.files import digest_of, digest_of_json
from ltr.data.whole_files import write_whole
from ltr.datamodules import FeatureDataModule
from ltr.datamodules.pools import PoolDataModule
from ltr.entries import check_entries, read_json
from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.run.data_sets import HUB, SUITE, DataSet
from ltr.run.run_folder import RunFolder
from ltr.run.same_options import deciding_options

DATA_PATH = "--data.path"
DEPTH = 100  # of a set without pools, where the configuration names no depth


class SetRow(TypedDict):
    """``row.json`` of a set: its row of the table. It is written when all else of the set is."""

    results: str  # a digest of the metrics.json beside it: the row tells of this file alone
    set: str
    path: str
    content: str | None  # a digest of the data; null where nobody knows it
    key: str | None  # of the weights, the data, and how both were measured
    ranked: str
    queries: int
    metrics: dict[str, float | None]


class MeasuredPart(NamedTuple):
    """A data set or a split, one of several that a run is measured on.

    Attributes:
        name: of its row in the table.
        options: of ``ltr test``, for this part alone.
        place: where its results go.
        data_set: whose row is kept; None for a split, which is measured each time.
        ranked: which documents of a data set are, in words.
        content: a digest of a data set; None where nobody knows it.
        key: tells whether a data set was measured by the same weights, in the same way; None where
            nobody knows its content.
    """

    name: str
    options: list[str]
    place: RunFolder
    data_set: DataSet | None = None
    ranked: str = ""
    content: str | None = None
    key: str | None = None


def how_measured(
    options: Mapping[str, Any], data_set: DataSet
) -> tuple[list[str], str, str | None]:
    """How a set is measured: as the configuration says; where it says pools and the set has none, a
    dual encoder searches the corpus, and other rankers get the best of BM25.

    Args:
        options: the configuration of ``ltr test``, whole, as plain dicts, lists and values.
        data_set: its name and path.

    Returns:
        The options of ``ltr test`` for what is ranked of this set alone; which documents are ranked,
        in words; and a digest of the data, or None where nobody knows it.

    Raises:
        InputError: for a set that can't be measured.
    """
    own_options: list[str] = []
    ranked = "its lists"
    content = None
    try:
        data = data_module(options, data_set.path)
        data.test_on(options["split"])
        if isinstance(data, PoolDataModule):
            collection = data.measured_collection()
            keys = [collection.queries.key, collection.corpus.key]
            keys.append(collection.judgements(data.tested_split).digest())
            candidates = data.evaluation.candidates
            depth = data.evaluation.depth
            if candidates == "candidates" and data.tested_split not in collection.candidates:
                ranker = resolve_name(options["model"]["ranker"]["class_path"])
                if issubclass(ranker, DualEncoder):
                    candidates = "corpus"
                    depth = max(depth or 0, DEPTH)  # a search must go as deep as the metrics look
                else:
                    candidates = "bm25"
                    depth = depth or DEPTH
                own_options = [
                    *("--data.evaluation.candidates", candidates),
                    *("--data.evaluation.depth", str(depth)),
                ]
            if candidates == "candidates":
                keys.append(collection.candidates[data.tested_split].digest())
            ranked = "its pools" if candidates == "candidates" else str(candidates)
            ranked += f", {depth} deep" if depth is not None else ""
            content = digest_of_json(keys)[:16]
        elif isinstance(data, FeatureDataModule):
            split = data.split("test")
            if split is None:
                raise InputError(f"{data_set.path} has no 'test' split")
            content = digest_of_json([split.key])[:16]
    except InputError as error:
        raise InputError(
            f"{DATA_PATH}: {data_set.name} can't be measured, so nothing was: {error.message}"
        ) from None
    except Exception as error:  # whatever a hub raises that can't be reached
        if not data_set.path.startswith(HUB):
            raise
        line = line_for_user(error) or " ".join(str(error).split())
        raise InputError(
            f"{DATA_PATH}: {data_set.name} can't be fetched, so nothing was measured; fetch it where there is a network, or name a folder ({data_set.path}: {line[:160]})"
        ) from error
    return own_options, ranked, content


def key_of_set(
    options: Mapping[str, Any], weights: object, own_options: list[str], content: str | None
) -> str | None:
    """The key of a :class:`MeasuredPart` that is a data set.

    Args:
        options: the configuration of ``ltr test``.
        weights: what tells them from others.
        own_options: of this set alone.
        content: a digest of the data; None where nobody knows it.
    """
    if content is None:
        return None
    said = {"weights": weights, "content": content, "own": own_options}
    return digest_of_json(said | deciding_options(options, "set"))[:16]


def read_row(place: RunFolder) -> SetRow | None:
    """The row of a set that was measured; None where it was not.

    Raises:
        InputError: if the file is damaged.
    """
    if not place.row.is_file():
        return None
    mend = "remove it, and the set is measured again"
    row = read_json(place.row, mend)
    check_entries(row, SetRow, place.row, mend)
    return cast(SetRow, row)


def known_row(part: MeasuredPart) -> SetRow | None:
    """The row of a data set that was measured before, by the same weights and in the same way, and
    whose results are its own, and whole; else None.
    """
    row = None if part.data_set is None else read_row(part.place)
    if row is None or part.key is None or row["key"] != part.key:
        return None
    if not is_tested(part.place.path) or row["results"] != digest_of(part.place.results):
        return None
    return row


def write_row(part: MeasuredPart, queries: int, metrics: dict[str, float | None]) -> None:
    """Write the row of a data set that was measured.

    Args:
        part: the data set.
        queries: how many there are.
        metrics: their means.
    """
    assert part.data_set is not None, "a split has no row"
    row: SetRow = {
        "results": digest_of(part.place.results),
        "set": part.name,
        "path": _absolute(part.data_set.path),
        "content": part.content,
        "key": part.key,
        "ranked": part.ranked,
        "queries": queries,
        "metrics": metrics,
    }
    write_whole(part.place.row, [json.dumps(row, indent=1, ensure_ascii=False), "\n"])


def check_place(part: MeasuredPart) -> None:
    """Raise an InputError where the results of another data set of this name lie."""
    if part.data_set is None:
        return
    path = part.data_set.path
    row = read_row(part.place)
    if row is None or row["content"] == part.content or row["path"] == _absolute(path):
        return
    raise InputError(
        f"{DATA_PATH}: {part.place.path} has the results on {row['path']}, which is another data set than {path}; remove it, or name one of them otherwise in a file: {SUITE}FILE"
    )


def _absolute(path: str) -> str:
    return path if path.startswith(HUB) else str(Path(path).resolve())
