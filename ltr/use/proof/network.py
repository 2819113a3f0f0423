"""A ranker's network as servers run it: padded token ids in, pooled states and outputs out.

A server may depart from the ranker here, too: pad on the left, pool other tokens, round its weights.
:class:`ForwardOptions` says how.

Letters of shapes: S texts or pairs, L tokens of the longest, H the hidden size.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ltr.data.layouts import ApartTexts, JoinedPairs, SingleTexts
from ltr.models.dual_encoder import DualEncoder
from ltr.models.encoder.packed import in_eval_mode
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.encoder.tower import Tower
from ltr.models.ranker import Ranker

# What is read: a query joined with a document, or a text of one side alone.
Kind = Literal["pair", "query", "document"]
Padding = Literal["right", "left", "unmasked"]
ROWS = 16  # read at once, where nobody asks for what stands beside what


class TokenRow(NamedTuple):
    """The token ids of a text or a pair, and their types; None where the model takes none."""

    ids: list[int]
    types: list[int] | None


@dataclass(frozen=True)
class ForwardOptions:
    """How a network is run; the defaults are as the ranker does.

    Args:
        padding: ``right``; ``left``, with positions that count the padding; ``unmasked``: on the
            right, and read as if it were text.
        to_length: pad every row to so many tokens; None: to the longest of its batch.
        pooling: None: the ranker's own; ``last slot`` takes the last place, padding or not, and
            ``counted`` the place of the last token as it were without padding on the left.
        rounded: the weights of the model are rounded to this type, the numbers are float32.
        rounds_head: those of the head, too.
    """

    padding: Padding = "right"
    to_length: int | None = None
    pooling: str | None = None
    rounded: torch.dtype | None = None
    rounds_head: bool = True


class Output(NamedTuple):
    """What a network makes of S rows: what its head reads ``[S, H]``, and scores ``[S]`` or
    embeddings ``[S, dim]``, float32.
    """

    pooled: np.ndarray
    final: np.ndarray


class _ScoresPairs(Protocol):
    """A ranker that reads joined pairs: an encoder, and a head behind its pooling."""

    encoder: TextEncoder
    head: nn.Module


class Network:
    """An encoder with its pooling and head.

    Args:
        model: of transformers, with a head of its own or not.
        pooling: None where the head is the model's own.
        head: from pooled states ``[S, H]`` to scores or embeddings; None: the model's own.
        modules: those of the head, whose weights decide it.
        pad_id: the token that fills padded rows.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        pooling: str | None,
        head: Callable[[Tensor], Tensor] | None,
        modules: Sequence[nn.Module],
        pad_id: int,
    ) -> None:
        self.model = model
        self.pooling = pooling
        self.head = head
        self.modules = list(modules)
        self.pad_id = pad_id

    @property
    def last_linear(self) -> nn.Linear | None:
        """The last linear layer of the head; None where there is none."""
        linear = None
        for module in self.modules:
            for part in module.modules():
                if isinstance(part, nn.Linear):
                    linear = part
        return linear

    @property
    def place(self) -> str:
        """Which tokens the head reads."""
        pooling = self.pooling
        if pooling is None:
            pooling = self.model.config.to_dict().get("classifier_pooling", "cls")
        words = {"cls": "first token", "last": "last token"}
        return words.get(pooling, f"all tokens, their {pooling}")

    @torch.inference_mode()
    def __call__(
        self,
        rows: Sequence[TokenRow],
        run: ForwardOptions = ForwardOptions(),
        batches: Sequence[Sequence[int]] | None = None,
    ) -> Output:
        """Run rows of token ids.

        Args:
            rows: S of them.
            run: how.
            batches: which rows stand beside each other; None: those of equal length do.
        """
        if batches is None:
            order = sorted(range(len(rows)), key=lambda row: len(rows[row].ids))
            batches = [order[first : first + ROWS] for first in range(0, len(order), ROWS)]
        pooled: list[np.ndarray] = [np.empty(0)] * len(rows)
        final: list[np.ndarray] = [np.empty(0)] * len(rows)
        with in_eval_mode(self.model), self._rounded(run):
            for batch in batches:
                states, outputs = self._read([rows[row] for row in batch], run)
                for place, row in enumerate(batch):
                    pooled[row] = states[place].float().cpu().numpy()
                    final[row] = outputs[place].float().cpu().numpy()
        return Output(np.stack(pooled), np.stack(final))

    def _read(self, rows: Sequence[TokenRow], run: ForwardOptions) -> tuple[Tensor, Tensor]:
        model = self.model
        inputs = padded(rows, self.pad_id, run)
        mask = inputs["attention_mask"]
        device = next(model.parameters()).device
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        if self.head is None:
            assert self.last_linear is not None, "a classifier ends with a linear layer"
            with inputs_of(self.last_linear) as seen:
                logits = model(**inputs).logits[:, 0]
            return seen[0].reshape(len(rows), -1), logits
        hidden = model(**inputs).last_hidden_state.float()
        states = pool_padded(hidden, mask.to(device), run.pooling or self.pooling or "mean")
        return states, self.head(states)

    @contextmanager
    def _rounded(self, run: ForwardOptions) -> Iterator[None]:
        """Inside the block the weights are rounded."""
        modules: list[nn.Module] = [self.model]
        if run.rounds_head:
            modules += self.modules
        own = {weight: weight.data for module in modules for weight in module.parameters()}
        try:
            if run.rounded is not None:
                for weight, values in own.items():
                    weight.data = values.to(run.rounded).to(values.dtype)
            yield
        finally:
            for weight, values in own.items():
                weight.data = values


def networks_of(ranker: Ranker) -> dict[Kind, Network]:
    """The networks of a ranker of texts, by what they read."""
    reads = ranker.reads
    if isinstance(reads, ApartTexts):
        dual = cast(DualEncoder, ranker)
        return {
            "query": _tower_network(dual.query_tower),
            "document": _tower_network(dual.doc_tower),
        }
    pairs = cast(_ScoresPairs, ranker)
    encoder = pairs.encoder
    model: PreTrainedModel = encoder.model
    has_own_head = model.base_model is not model
    if has_own_head:
        base = {id(module) for module in model.base_model.modules()}
        own = [
            module for module in model.modules() if id(module) not in base and module is not model
        ]
        pooler = [part for name, part in model.base_model.named_children() if name == "pooler"]
        return {"pair": Network(model, None, None, [*pooler, *own], encoder.pad_id)}

    def head(states: Tensor) -> Tensor:
        linear = cast(nn.Linear, pairs.head)
        bias: Tensor | None = linear.bias
        if bias is not None:
            bias = bias.float()
        return nn.functional.linear(states, linear.weight.float(), bias).squeeze(1)

    return {"pair": Network(model, encoder.pooling, head, [pairs.head], encoder.pad_id)}


def _tower_network(tower: Tower) -> Network:
    def head(states: Tensor) -> Tensor:
        features = {"sentence_embedding": states}
        for module in tower.head:
            features = module(features)
        return features["sentence_embedding"]

    encoder = tower.encoder
    return Network(encoder.model, encoder.pooling, head, list(tower.head), encoder.pad_id)


def forms_of(ranker: Ranker) -> dict[Kind, JoinedPairs | SingleTexts]:
    """How the texts of each kind are laid out."""
    reads = ranker.reads
    if isinstance(reads, ApartTexts):
        return {"query": reads.queries, "document": reads.docs}
    assert isinstance(reads, JoinedPairs), "a ranker of texts reads pairs, or texts apart"
    return {"pair": reads}


def padded(
    rows: Sequence[TokenRow], pad_id: int, run: ForwardOptions = ForwardOptions()
) -> dict[str, Tensor]:
    """Padded ids, mask and types ``[S, L]``."""
    longest = max(len(row.ids) for row in rows)
    if run.to_length is not None:
        longest = max(longest, run.to_length)
    ids = torch.full((len(rows), longest), pad_id)
    mask = torch.zeros(len(rows), longest, dtype=torch.int64)
    types = torch.zeros(len(rows), longest, dtype=torch.int64)
    for place, row in enumerate(rows):
        n_tokens = len(row.ids)
        first = longest - n_tokens if run.padding == "left" else 0
        ids[place, first : first + n_tokens] = torch.tensor(row.ids)
        mask[place, first : first + n_tokens] = 1
        if row.types is not None:
            types[place, first : first + n_tokens] = torch.tensor(row.types)
    if run.padding == "unmasked":
        mask = torch.ones_like(mask)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if rows[0].types is not None:
        inputs["token_type_ids"] = types
    return inputs


def pool_padded(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """``[S, H]`` of ``[S, L, H]``. First and last token are those of the slots of a row, as servers
    take them: of a row that is padded on the left the first slot is padding.
    """
    mask = mask.bool()
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "last slot":
        return hidden[:, -1]
    if pooling == "counted":
        return hidden[torch.arange(len(hidden), device=mask.device), mask.sum(dim=1) - 1]
    if pooling == "last":
        places = torch.arange(mask.shape[1], device=mask.device)
        return hidden[torch.arange(len(hidden), device=mask.device), (mask * places).argmax(dim=1)]
    if pooling == "max":
        return hidden.masked_fill(~mask.unsqueeze(2), float("-inf")).amax(dim=1)
    weights = mask.unsqueeze(2).to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


@contextmanager
def inputs_of(module: nn.Module) -> Iterator[list[Any]]:
    """What a module reads inside the block, in order of its calls."""
    seen: list[Any] = []
    handle = module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        handle.remove()
