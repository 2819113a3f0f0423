"""ONNX graphs with weights in int8, and what they cost: metric, speed and size beside those of the
float graphs.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from ltr.compare.query_values import values_by_query
from ltr.data.bm25 import bm25_lists
from ltr.data.collection import Collection
from ltr.data.layouts import SingleTexts
from ltr.data.query_lists import QueryLists
from ltr.data.texts import TextTable
from ltr.metrics import RankingMetric
from ltr.models import DualEncoder
from ltr.models.encoder.tower import Tower
from ltr.models.pair_ranker import PairRanker
from ltr.use.onnx_graph import Session

METRIC = "nDCG@10"
N_QUERIES = 200
DEPTH = 20  # documents ranked for each query
BATCH = 32  # texts or pairs that a session reads at once


class GraphMeasurement(NamedTuple):
    """What graphs of one kind do on a data set.

    Attributes:
        kind: ``float32`` or ``int8``.
        ndcg: nDCG@10 of the dev queries.
        per_second: pairs of a cross-encoder, or texts of a dual encoder, without their
            tokenisation.
        megabytes: of the files.
    """

    kind: str
    ndcg: float
    per_second: float
    megabytes: float


def add_int8_graphs(
    folder: Path, model: PairRanker | DualEncoder, collection: Collection
) -> list[GraphMeasurement]:
    """Write an int8 graph beside each graph of a folder, and measure both kinds in onnxruntime, on
    all cores.

    Args:
        folder: holds the graphs of the ranker.
        model: the ranker: its tokenizers, lengths and similarity.
        collection: the first 200 of its dev queries are asked; for each the best 20 of its pool are
            ranked, of BM25 where the collection has no pools. A pool without an order is ranked
            whole.

    Raises:
        InputError: if there is no dev split, or no dev query has a relevant document.
    """
    float_files = {file.stem: file for file in sorted(folder.glob("*.onnx"))}
    int8_files = {name: folder / f"{name}_int8.onnx" for name in float_files}
    judged = collection.learnable("dev")
    query_rows = judged.query_rows[:N_QUERIES]
    if "dev" in collection.candidates:
        pools = collection.best_of_pools("dev", DEPTH, option="int8")
    else:
        pools = bm25_lists(collection, query_rows, DEPTH)
    lists = pools.of_queries(query_rows)
    judged = judged.of_queries(query_rows)
    for name, file in float_files.items():
        _write_int8(file, int8_files[name])
    return [
        _measure("float32", float_files, model, collection, lists, judged),
        _measure("int8", int8_files, model, collection, lists, judged),
    ]


def _write_int8(file: Path, target: Path) -> None:
    """Write a graph with int8 weights, a scale for each output; activations as they come."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    level = logging.root.level
    logging.root.setLevel(logging.ERROR)  # it recommends a preparation that changes nothing here
    try:
        # 7 bits: CPUs without VNNI add two products in 16 bits, which overflow with 8.
        quantize_dynamic(
            file, target, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True
        )
    finally:
        logging.root.setLevel(level)


def _measure(
    kind: str,
    files: dict[str, Path],
    model: PairRanker | DualEncoder,
    collection: Collection,
    lists: QueryLists,
    judged: QueryLists,
) -> GraphMeasurement:
    """Rank the lists by graphs, under the names that ``build_graphs`` gives them."""
    sessions = {name: Session(file) for name, file in files.items()}
    rows = (lists.query_of_doc, lists.doc_rows)
    if isinstance(model, PairRanker):
        scores, per_second = _score_pairs(sessions, model, collection, *rows)
    else:
        scores, per_second = _score_embedded(sessions, model, collection, *rows)
    ranked = lists._replace(values=scores).best_first()
    values = values_by_query(ranked, judged, [RankingMetric(METRIC)])
    n_bytes = sum(file.stat().st_size for file in files.values())
    return GraphMeasurement(kind, float(values.mean()), per_second, n_bytes / 1e6)


def _score_pairs(
    sessions: dict[str, Session],
    model: PairRanker,
    collection: Collection,
    query_rows: np.ndarray,
    doc_rows: np.ndarray,
) -> tuple[np.ndarray, float]:
    """The scores of pairs by a cross-encoder, and pairs per second."""
    pairs = []
    for query_row, doc_row in zip(query_rows.tolist(), doc_rows.tolist(), strict=True):
        query = collection.queries.texts[query_row]
        document = collection.corpus.texts[doc_row]
        pairs.append(
            tuple(model.reads.rendered(query, document, collection.queries.instruction(query_row)))
        )
    scores, seconds = _outputs(sessions["model"], model.tokenizer, pairs, model.reads.max_length)
    return scores, len(pairs) / seconds


class _Encoded(NamedTuple):
    """Embeddings ``[P, 1, H]`` by row, of texts that were read once each, in some seconds."""

    embeddings: torch.Tensor
    n_texts: int
    seconds: float


def _score_embedded(
    sessions: dict[str, Session],
    model: DualEncoder,
    collection: Collection,
    query_rows: np.ndarray,
    doc_rows: np.ndarray,
) -> tuple[np.ndarray, float]:
    """The scores of pairs by a dual encoder, and texts per second."""
    shared = sessions.get("model")  # of queries and documents, where there is one tower
    queries = _encode(
        shared or sessions["query"],
        model.query_tower,
        model.reads.queries,
        collection.queries,
        query_rows,
    )
    docs = _encode(
        shared or sessions["document"],
        model.doc_tower,
        model.reads.docs,
        collection.corpus,
        doc_rows,
    )
    with torch.inference_mode():
        scores = model.score(queries.embeddings, docs.embeddings).flatten().numpy()
    return scores, (queries.n_texts + docs.n_texts) / (queries.seconds + docs.seconds)


def _encode(
    session: Session, tower: Tower, side_reads: SingleTexts, table: TextTable, rows: np.ndarray
) -> _Encoded:
    distinct, place_of_row = np.unique(rows, return_inverse=True)
    # Tuples of one text, since _outputs takes pairs as well.
    inputs = [
        (side_reads.rendering(table.texts[row], table.instruction(row)),)
        for row in distinct.tolist()
    ]
    outputs, seconds = _outputs(session, tower.tokenizer, inputs, side_reads.max_length)
    embeddings = torch.from_numpy(outputs[place_of_row]).unsqueeze(1)
    return _Encoded(embeddings, len(inputs), seconds)


def _outputs(
    session: Session, tokenizer: Any, inputs: Sequence[tuple[str, ...]], max_length: int
) -> tuple[np.ndarray, float]:
    """The outputs for texts or pairs, in their order; and the seconds of the session alone."""
    options: dict[str, Any] = {"max_length": max_length, "padding": True, "return_tensors": "np"}
    is_pairs = len(inputs[0]) > 1
    options["truncation"] = "only_second" if is_pairs else True
    # Texts of like length share a batch, so that little is padded.
    by_length = sorted(range(len(inputs)), key=lambda place: sum(map(len, inputs[place])))
    parts = []
    seconds = 0.0
    for begin in range(0, len(by_length), BATCH):
        batch = [inputs[place] for place in by_length[begin : begin + BATCH]]
        columns = [list(column) for column in zip(*batch, strict=True)]
        # columns: the queries and the documents, or the texts alone
        padded = tokenizer(*columns, **options)
        started = perf_counter()
        parts.append(session.output(padded))
        seconds += perf_counter() - started
    outputs = np.empty((len(inputs), *parts[0].shape[1:]), np.float32)
    outputs[by_length] = np.concatenate(parts)
    return outputs, seconds
