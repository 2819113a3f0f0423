"""A data set that ``ltr test`` measures beside others: which documents are ranked, and ``row.json``,
which tells whether it was measured before, by the same weights and in the same way.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple, TypedDict, cast

import jsonargparse

from ltr.cli.messages import line_for_user
from ltr.compare.tested_run import is_tested
from ltr.data.bm25 import ALL_WORDS, DEPTH
from ltr.data.files import HUBS, digest_of, digest_of_json
from ltr.data.whole_files import write_whole
from ltr.datamodules import FeatureDataModule, RankingDataModule
from ltr.datamodules.pools import PoolDataModule
from ltr.entries import check_entries, read_json
from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.run.data_sets import SUITE, DataSet
from ltr.run.run_folder import RunFolder
from ltr.run.same_options import deciding_options

DATA_PATH = "--data.path"


class KeptResult(TypedDict):
    """``row.json`` of a set: its row of the table. It is written when all else of the set is."""

    results: str  # a digest of the metrics.json beside it: the row tells of this file alone
    set: str
    path: str
    content: str | None  # a digest of the data; null where nobody knows it
    key: str | None  # of the weights, the data, and how both were measured
    ranked: str
    queries: int
    metrics: dict[str, float | None]


class HowMeasured(NamedTuple):
    """How a data set is measured.

    Attributes:
        options: of ``ltr test``, for what is ranked of this set alone.
        ranked: which documents are ranked, in words.
        content: a digest of the data; None where nobody knows it.
    """

    options: Sequence[str] = ()
    ranked: str = "its lists"
    content: str | None = None


class MeasuredPart(NamedTuple):
    """A data set or a split, one of several that a run is measured on.

    Attributes:
        name: of its row in the table.
        options: of ``ltr test``, for this part alone.
        folder: where its results go.
        data_set: whose result is kept; None for a split, which is measured each time.
        how: a data set is measured.
        key: tells whether a data set was measured by the same weights, in the same way; None where
            nobody knows its content.
    """

    name: str
    options: list[str]
    folder: RunFolder
    data_set: DataSet | None = None
    how: HowMeasured = HowMeasured()
    key: str | None = None


def make_data_module(options: Mapping[str, Any], path: str | None = None) -> RankingDataModule:
    """The data module of a whole configuration.

    Args:
        options: the configuration, as plain dicts, lists and values.
        path: of other data; None for that of the configuration.
    """
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(RankingDataModule, "data")
    init_args = dict(options["data"].get("init_args") or {})
    if path is not None:
        init_args["path"] = path
    config = parser.parse_object({"data": {**options["data"], "init_args": init_args}})
    data: RankingDataModule = parser.instantiate(config).data
    return data


def how_measured(options: Mapping[str, Any], data_set: DataSet) -> HowMeasured:
    """How a set is measured: as the configuration says; where it says pools (``candidates`` or
    ``auto``) and the set has none, a dual encoder searches the corpus, and other rankers get the best
    of BM25.

    Args:
        options: the configuration of ``ltr test``, whole, as plain dicts, lists and values.
        data_set: its name and path.

    Raises:
        InputError: for a set that can't be measured.
    """
    try:
        data = make_data_module(options, data_set.path)
        data.test_on(options["split"])
        if isinstance(data, PoolDataModule):
            return _how_ranked(options, data)
        if isinstance(data, FeatureDataModule):
            split = data.split("test")
            if split is None:
                raise InputError(f"{data_set.path} has no 'test' split")
            return HowMeasured(content=digest_of_json([split.key])[:16])
        return HowMeasured()
    except InputError as error:
        raise InputError(
            f"{DATA_PATH}: {data_set.name} can't be measured, so nothing was: {error.message}"
        ) from None
    except Exception as error:  # whatever a hub raises that can't be reached
        if not data_set.path.startswith(HUBS):
            raise
        line = line_for_user(error) or " ".join(str(error).split())
        raise InputError(
            f"{DATA_PATH}: {data_set.name} can't be fetched, so nothing was measured; fetch it where there is a network, or name a folder ({data_set.path}: {line[:160]})"
        ) from error


def _how_ranked(options: Mapping[str, Any], data: PoolDataModule) -> HowMeasured:
    """How a set of texts is measured. The arguments are the configuration and the set's data."""
    own_options: list[str] = []
    collection = data.measured_collection()
    keys = [collection.queries.key, collection.corpus.key]
    keys.append(collection.judgements(data.tested_split).digest())
    evaluation = data.evaluation.of_split(collection, data.tested_split)
    candidates = evaluation.candidates
    depth = evaluation.depth
    asks_for_pools = data.evaluation.candidates in ("auto", "candidates")
    if asks_for_pools and data.tested_split not in collection.candidates:
        ranker = resolve_name(options["model"]["ranker"]["class_path"])
        if issubclass(ranker, DualEncoder):
            candidates = "corpus"
            depth = max(
                data.evaluation.depth or 0, DEPTH
            )  # a search must go as deep as the metrics look
        else:
            candidates = "bm25"
            depth = depth or DEPTH
        own_options += ["--data.evaluation.candidates", candidates]
        own_options += ["--data.evaluation.depth", str(depth)]
    if candidates == "candidates":
        keys.append(collection.candidates[data.tested_split].digest())
        depth = collection.depth_of_pools(data.tested_split, depth)
    ranked = "its pools" if candidates == "candidates" else str(candidates)
    if candidates == "bm25" and data.bm25 != ALL_WORDS:
        ranked += f" with {data.bm25.in_words()}"
    ranked += f", {depth} deep" if depth is not None else ""
    return HowMeasured(own_options, ranked, digest_of_json(keys)[:16])


def key_of_set(options: Mapping[str, Any], weights_digest: object, how: HowMeasured) -> str | None:
    """The key of a :class:`MeasuredPart` that is a data set; None where nobody knows its content.

    Args:
        options: the configuration of ``ltr test``.
        weights_digest: a digest, or some, of the weights that are measured.
        how: of the set.
    """
    if how.content is None:
        return None
    said = {"weights": weights_digest, "content": how.content, "own": how.options}
    return digest_of_json(said | deciding_options(options, "set"))[:16]


def read_result(folder: RunFolder) -> KeptResult | None:
    """The result of a set that was measured; None where it was not.

    Raises:
        InputError: if the file is damaged.
    """
    if not folder.set_row.is_file():
        return None
    mend = "remove it, and the set is measured again"
    result = read_json(folder.set_row, mend)
    check_entries(result, KeptResult, folder.set_row, mend)
    return cast(KeptResult, result)


def known_result(part: MeasuredPart) -> KeptResult | None:
    """The result of a data set that was measured before, by the same weights and in the same way, and
    whose results are its own, and whole; else None.
    """
    result = None if part.data_set is None else read_result(part.folder)
    if result is None or part.key is None or result["key"] != part.key:
        return None
    if not is_tested(part.folder.path) or result["results"] != digest_of(part.folder.metrics):
        return None
    return result


def write_result(part: MeasuredPart, queries: int, metrics: dict[str, float | None]) -> None:
    """Write the result of a data set that was measured: how many queries it has, and their means."""
    assert part.data_set is not None, "of a split no result is kept"
    result: KeptResult = {
        "results": digest_of(part.folder.metrics),
        "set": part.name,
        "path": _absolute(part.data_set.path),
        "content": part.how.content,
        "key": part.key,
        "ranked": part.how.ranked,
        "queries": queries,
        "metrics": metrics,
    }
    write_whole(part.folder.set_row, [json.dumps(result, indent=1, ensure_ascii=False), "\n"])


def refuse_other_results(part: MeasuredPart) -> None:
    """Raise an InputError where the results of another data set of this name lie."""
    if part.data_set is None:
        return
    path = part.data_set.path
    result = read_result(part.folder)
    if result is None or result["content"] == part.how.content or result["path"] == _absolute(path):
        return
    raise InputError(
        f"{DATA_PATH}: {part.folder.path} has the results on {result['path']}, which is another data set than {path}; remove it, or name one of them otherwise in a file: {SUITE}FILE"
    )


def _absolute(path: str) -> str:
    return path if path.startswith(HUBS) else str(Path(path).resolve())
