"""A ranker as an ONNX graph: padded token ids in, scores of pairs or embeddings of texts out.

Letters of shapes: S texts or pairs, L tokens of the longest, H the size of an embedding.
"""

import copy
import logging
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.kernels import use_plain
from ltr.models.encoder.loading.pooling import Pooling
from ltr.models.encoder.loading.pretrained import quiet

# onnx, onnxscript and onnxruntime are optional: they are imported inside functions.

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
CLOSE = 1e-4  # of scores and embeddings, to those of torch


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
        self.encoder: Any = copy.deepcopy(encoder).eval()
        self.encoder.set_attn_implementation("eager")
        use_plain(self.encoder)
        self.pooling = pooling
        self.head = nn.ModuleList(head)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Scores ``[S]`` or embeddings ``[S, H]`` of ``[S, L]``."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        inputs |= {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        output = self.encoder(**inputs)
        if self.pooling is None:
            scores: Tensor = output.logits[:, 0]
            return scores
        pooled = _pooled(output.last_hidden_state, attention_mask.unsqueeze(2), self.pooling)
        if len(self.head) == 1 and isinstance(self.head[0], nn.Linear):
            found: Tensor = self.head[0](pooled).squeeze(1)
            return found
        features = {"sentence_embedding": pooled}
        for module in self.head:  # of sentence-transformers
            features = module(features)
        return features["sentence_embedding"]


def _pooled(hidden: Tensor, real: Tensor, pooling: Pooling) -> Tensor:
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "max":
        return hidden.masked_fill(real == 0, float("-inf")).amax(dim=1)
    weights = real.to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


def graphs(model: PairWiseBertRanker | DualEncoder) -> dict[str, tuple[Graph, Any, int]]:
    """By the names of their files, without the ending: the graphs of a ranker, their tokenizers,
    and their longest texts.
    """
    if isinstance(model, PairWiseBertRanker):
        pooling = None if model.has_own_head else model.encoder.pooling
        head = [] if model.has_own_head else [model.head]
        return {
            "model": (
                Graph(model.encoder.model, pooling, head),
                model.tokenizer,
                model.reads.max_length,
            )
        }
    towers = (
        {"query": model.query_tower, "document": model.doc_tower}
        if len(model.towers) == 2
        else {"model": model.doc_tower}
    )
    forms = {"query": model.reads.queries, "document": model.reads.docs}
    forms["model"] = max(forms.values(), key=lambda form: form.max_length)
    return {
        name: (
            Graph(tower.encoder.model, tower.encoder.pooling, list(tower.head)),
            tower.tokenizer,
            forms[name].max_length,
        )
        for name, tower in towers.items()
    }


def write_graph(file: Path, graph: Graph, tokenizer: Any) -> None:
    """Write a graph; an InputError if a package is missing, or onnxruntime makes other numbers of
    some texts than torch does.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"ONNX needs the package {error.name}: pip install onnx onnxscript onnxruntime"
        ) from None
    texts = _padded(tokenizer, [("a first text", "and a longer second one"), ("a", "b")])
    names = [name for name in INPUTS if name in texts]
    rows = torch.export.Dim("rows")
    columns = torch.export.Dim("columns", max=512)
    shapes = {name: {0: rows, 1: columns} for name in names}
    levels = {
        name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "onnx_ir")
    }
    with warnings.catch_warnings(), torch.no_grad(), quiet():
        warnings.simplefilter("ignore")
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            torch.onnx.export(
                graph,
                kwargs={name: torch.from_numpy(texts[name]) for name in names},
                f=str(file),
                input_names=names,
                output_names=["output"],
                dynamic_shapes=shapes,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
        other = _padded(
            tokenizer,
            [("one", "two three four"), ("five six seven", "eight"), ("nine", "ten " * 20)],
        )
        expected = graph(**{name: torch.from_numpy(other[name]) for name in names}).numpy()
    difference = float(np.abs(Session(file).output(other) - expected).max())
    if not difference <= CLOSE:  # nor NaN
        hint = "export it to sentence-transformers"
        raise InputError(
            f"onnxruntime gives other numbers than torch for this model (by {difference:.1g}); {hint}"
        )


class Session:
    """A graph in onnxruntime, on the CPU."""

    def __init__(self, file: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        self._names = [one.name for one in self._session.get_inputs()]

    def output(self, texts: dict[str, np.ndarray]) -> np.ndarray:
        """Scores ``[S]`` or embeddings ``[S, H]`` of padded texts."""
        found: np.ndarray = self._session.run(
            None, {name: texts[name].astype(np.int64) for name in self._names}
        )[0]
        return found


def _padded(tokenizer: Any, pairs: Iterable[tuple[str, str]]) -> dict[str, np.ndarray]:
    return dict(tokenizer(*zip(*pairs, strict=True), padding=True, return_tensors="np"))
