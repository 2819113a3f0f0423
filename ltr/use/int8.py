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

from ltr.data.bm25 import bm25_lists
from ltr.data.collection import Collection
from ltr.data.query_lists import LabelledList
from ltr.metrics import RankingMetric
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.use.onnx_graph import Session

METRIC = "nDCG@10"
N_QUERIES = 200
DEPTH = 20
BATCH = 32


class Measured(NamedTuple):
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


def int8_beside(
    folder: Path, model: PairWiseBertRanker | DualEncoder, collection: Collection
) -> list[Measured]:
    """Write an int8 graph beside each graph of a folder, and measure both kinds in onnxruntime, on
    all cores.

    Args:
        folder: holds the graphs of the ranker.
        model: the ranker: its tokenizers, lengths and similarity.
        collection: the first 200 of its dev queries are asked; for each the best 20 of its pool are
            ranked, of BM25 where the collection has no pools.

    Raises:
        InputError: if there is no dev split, or a dev query has no relevant document.
    """
    graphs = sorted(folder.glob("*.onnx"))
    judged = collection.learnable("dev")
    asked = judged.query_rows[:N_QUERIES]
    pools = collection.candidates.get("dev") or bm25_lists(collection, asked, DEPTH)
    lists = [judged.labelled(row, pools.of(row)[0][:DEPTH]) for row in asked.tolist()]
    for file in graphs:
        _write(file)
    return [
        _measured(
            kind,
            {file.stem: _named(file) if kind == "int8" else file for file in graphs},
            model,
            collection,
            lists,
        )
        for kind in ("float32", "int8")
    ]


def _write(file: Path) -> None:
    """Beside a graph, write one whose weights are int8, with a scale for each output; activations
    are quantised as they come.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    level = logging.root.level
    logging.root.setLevel(logging.ERROR)  # it recommends a preparation that changes nothing here
    try:
        # 7 bits: CPUs without VNNI add two products in 16 bits, which overflow with 8.
        quantize_dynamic(
            file, _named(file), weight_type=QuantType.QInt8, per_channel=True, reduce_range=True
        )
    finally:
        logging.root.setLevel(level)


def _named(file: Path) -> Path:
    """The int8 graph beside a graph."""
    return file.with_name(f"{file.stem}_int8.onnx")


def _measured(
    kind: str,
    files: dict[str, Path],
    model: PairWiseBertRanker | DualEncoder,
    collection: Collection,
    lists: list[LabelledList],
) -> Measured:
    sessions = {name: Session(file) for name, file in files.items()}
    score = _pairs if isinstance(model, PairWiseBertRanker) else _compared
    sizes = [len(one.doc_rows) for one in lists]
    rows = (
        np.repeat([one.query_row for one in lists], sizes),
        np.concatenate([one.doc_rows for one in lists]),
    )
    scores, speed = score(sessions, model, collection, *rows)
    values = []
    metric = RankingMetric(METRIC)
    for own, one in zip(np.split(scores, np.cumsum(sizes)[:-1]), lists, strict=True):
        assert one.ideal is not None, "labelled sets it"
        parts = own, one.labels, np.ones(len(own), dtype=bool), one.doc_rows, one.ideal
        values.append(
            float(metric.per_query(*(torch.from_numpy(part.copy())[None] for part in parts)))
        )
    return Measured(
        kind,
        float(np.mean(values)),
        speed,
        sum(file.stat().st_size for file in files.values()) / 1e6,
    )


def _pairs(
    sessions: dict[str, Session],
    model: Any,
    collection: Collection,
    query_rows: np.ndarray,
    doc_rows: np.ndarray,
) -> tuple[np.ndarray, float]:
    """The scores of pairs by a cross-encoder, and pairs per second."""
    rows = zip(query_rows.tolist(), doc_rows.tolist(), strict=True)
    texts = [(collection.queries.texts[query], collection.corpus.texts[doc]) for query, doc in rows]
    scores, seconds = _outputs(sessions["model"], model.tokenizer, texts, model.reads.max_length)
    return scores, len(texts) / seconds


def _compared(
    sessions: dict[str, Session],
    model: Any,
    collection: Collection,
    query_rows: np.ndarray,
    doc_rows: np.ndarray,
) -> tuple[np.ndarray, float]:
    """The scores of pairs by a dual encoder, and texts per second: each text is read once."""
    embedded = []
    seconds = 0.0
    n_texts = 0
    reads = model.reads
    for name, tower, form, table, rows in (
        ("query", model.query_tower, reads.queries, collection.queries, query_rows),
        ("document", model.doc_tower, reads.docs, collection.corpus, doc_rows),
    ):
        distinct, at = np.unique(rows, return_inverse=True)
        session = sessions[name] if name in sessions else sessions["model"]
        texts = [(form.prompt + table.texts[row],) for row in distinct.tolist()]
        found, took = _outputs(session, tower.tokenizer, texts, form.max_length)
        embedded.append(torch.from_numpy(found[at]).unsqueeze(1))
        seconds = seconds + took
        n_texts = n_texts + len(texts)
    with torch.inference_mode():
        return model.score(*embedded).flatten().numpy(), n_texts / seconds


def _outputs(
    session: Session, tokenizer: Any, texts: Sequence[tuple[str, ...]], longest: int
) -> tuple[np.ndarray, float]:
    """The outputs for texts or pairs, in their order; and the seconds of the session alone."""
    order = sorted(
        range(len(texts)), key=lambda at: sum(map(len, texts[at]))
    )  # of like length, so little is padded
    parts = []
    seconds = 0.0
    for begin in range(0, len(order), BATCH):
        columns = zip(*(texts[at] for at in order[begin : begin + BATCH]), strict=True)
        options = {
            "truncation": "only_second" if len(texts[0]) > 1 else True,
            "max_length": longest,
            "padding": True,
        }
        padded = tokenizer(*map(list, columns), **options, return_tensors="np")
        started = perf_counter()
        parts.append(session.output(padded))
        seconds += perf_counter() - started
    outputs = np.empty((len(texts), *parts[0].shape[1:]), np.float32)
    outputs[order] = np.concatenate(parts)
    return outputs, seconds
