"""A ranker as an ONNX graph: padded token ids in, scores of pairs or embeddings of texts out.

Letters of shapes: S texts or pairs, L tokens of the longest, H the size of an embedding.
"""

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.models.encoder.kernels import use_plain
from ltr.models.encoder.loading.architecture import max_positions
from ltr.models.encoder.loading.pooling import Pooling
from ltr.models.encoder.loading.pretrained import quiet
from ltr.models.encoder.tower import Tower
from ltr.models.pair_ranker import PairRanker

# onnx, onnxscript and onnxruntime are optional: they are imported inside functions.

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOLERANCE = 1e-4  # by which scores and embeddings may differ from those of torch


class Graph(nn.Module):
    """What an encoder, its pooling and its head make of padded texts.

    Args:
        encoder: of transformers; a copy is taken.
        pooling: None for a ready cross-encoder, which has a head of its own.
        head: modules behind the pooling: one linear layer to a score, or those of a tower.
    """

    def __init__(
        self, encoder: PreTrainedModel, pooling: Pooling | None, head: Sequence[nn.Module]
    ) -> None:
        super().__init__()
        # Weights that stay as they are beside adapters may be bfloat16.
        self.encoder: Any = copy.deepcopy(encoder).eval().float()
        self.encoder.set_attn_implementation("eager")
        use_plain(self.encoder)
        self.pooling = pooling
        self.head = nn.ModuleList(head)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Scores ``[S]`` or embeddings ``[S, H]`` of ``[S, L]``."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        output = self.encoder(**inputs)
        if self.pooling is None:
            logits: Tensor = output.logits[:, 0]
            return logits
        pooled = _pooled(output.last_hidden_state, attention_mask.unsqueeze(2), self.pooling)
        # The head of a cross-encoder is a layer of torch, the modules of a tower are those of
        # sentence-transformers, which hand on a dictionary.
        if len(self.head) == 1 and isinstance(self.head[0], nn.Linear):
            scores: Tensor = self.head[0](pooled).squeeze(1)
            return scores
        features = {"sentence_embedding": pooled}
        for module in self.head:
            features = module(features)
        return features["sentence_embedding"]


def _pooled(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """``[S, H]`` of ``[S, L, H]``, where the mask ``[S, L, 1]`` is 0 for padding."""
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "last":
        place = (mask.sum(dim=1, keepdim=True) - 1).expand(-1, -1, hidden.shape[2])
        return hidden.gather(1, place).squeeze(1)
    if pooling == "max":
        return hidden.masked_fill(mask == 0, float("-inf")).amax(dim=1)
    weights = mask.to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


class GraphWithTokenizer(NamedTuple):
    """A graph of a ranker, with what it takes to make its inputs.

    Attributes:
        graph: to be exported.
        tokenizer: of transformers.
        max_length: tokens of the longest text.
    """

    graph: Graph
    tokenizer: Any
    max_length: int


def build_graphs(model: PairRanker | DualEncoder) -> dict[str, GraphWithTokenizer]:
    """The graphs of a ranker, by the names of their files without the ending: ``model``, or
    ``query`` and ``document`` for two towers.
    """
    if isinstance(model, PairRanker):
        if model.has_own_head:
            graph = Graph(model.encoder.model, None, [])
        else:
            graph = Graph(model.encoder.model, model.encoder.pooling, [model.head])
        return {"model": GraphWithTokenizer(graph, model.saved_tokenizer(), model.reads.max_length)}
    queries = model.reads.queries
    docs = model.reads.docs
    if len(model.towers) == 1:
        longest = max(queries.max_length, docs.max_length)
        return {"model": _tower_graph(model.doc_tower, longest)}
    return {
        "query": _tower_graph(model.query_tower, queries.max_length),
        "document": _tower_graph(model.doc_tower, docs.max_length),
    }


def _tower_graph(tower: Tower, max_length: int) -> GraphWithTokenizer:
    graph = Graph(tower.encoder.model, tower.encoder.pooling, list(tower.head))
    return GraphWithTokenizer(graph, tower.tokenizer, max_length)


def write_graph(file: Path, graph: Graph, tokenizer: Any) -> None:
    """Write a graph; an InputError if a package is missing, or onnxruntime makes other numbers of
    some texts than torch does.
    """
    _check_packages()
    positions = max_positions(graph.encoder)
    pairs = [("a first text", "and a longer second one"), ("a", "b")]
    example = _padded(tokenizer, pairs, positions)
    names = [name for name in INPUTS if name in example]
    rows = torch.export.Dim("rows")
    columns = torch.export.Dim("columns", max=512)
    with _quiet_exporter(), torch.no_grad():
        torch.onnx.export(
            graph,
            kwargs={name: torch.from_numpy(example[name]) for name in names},
            f=str(file),
            input_names=names,
            output_names=["output"],
            dynamic_shapes={name: {0: rows, 1: columns} for name in names},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        # Other numbers of rows and columns than those of the example.
        pairs = [("one", "two three four"), ("five six seven", "eight"), ("nine", "ten " * 20)]
        texts = _padded(tokenizer, pairs, positions)
        expected = graph(**{name: torch.from_numpy(texts[name]) for name in names}).numpy()
    difference = float(np.abs(Session(file).output(texts) - expected).max())
    is_close = difference <= TOLERANCE  # NaN is not
    if not is_close:
        raise InputError(
            f"onnxruntime gives other numbers than torch for this model (by {difference:.1g}); export it to sentence-transformers"
        )


def _check_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"ONNX needs the package {error.name}: pip install 'ltr-lab[onnx]'"
        ) from None


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Inside the block the exporter and transformers say errors alone."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


class Session:
    """A graph in onnxruntime, on the CPU."""

    def __init__(self, file: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        self._session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        self._names = [model_input.name for model_input in self._session.get_inputs()]

    def output(self, texts: dict[str, np.ndarray]) -> np.ndarray:
        """Scores ``[S]`` or embeddings ``[S, H]`` of padded texts."""
        inputs = {name: texts[name].astype(np.int64) for name in self._names}
        output: np.ndarray = self._session.run(None, inputs)[0]
        return output


def _padded(
    tokenizer: Any, pairs: Sequence[tuple[str, str]], max_length: int | None
) -> dict[str, np.ndarray]:
    """The inputs of a graph for pairs of texts, cut at so many tokens; None: at none."""
    firsts = [first for first, _ in pairs]
    seconds = [second for _, second in pairs]
    cut = {"truncation": max_length is not None, "max_length": max_length}
    return dict(tokenizer(firsts, seconds, padding=True, return_tensors="np", **cut))
