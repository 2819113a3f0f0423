"""Cross-encoder: query and document are read together, and one score comes out."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.utils import ModelOutput

from ltr.batch import RankingBatch, Texts
from ltr.errors import InputError
from ltr.models.backbone import load_encoder, load_tokenizer, max_positions
from ltr.models.dropout import use_fast_dropout
from ltr.models.packed import Packed, enable_packing, first_position, hidden_states, logits, pool, read_packed
from ltr.models.padding import CHUNK_TOKENS, padded_chunks, padding_share

Inputs = Mapping[str, Tensor]


class PairWiseBertRanker(nn.Module):
    r"""An encoder, a pooling and a linear head: :math:`s(q, d) = w^\top \mathrm{pool}(\mathrm{enc}(q, d)) + b`.

    A ready cross-encoder (a sequence classifier with one label) is loaded with its own head; pooling and dropout are then
    its own.

    Args:
        backbone: hub id, folder, or ``package:NAME`` (weights inside an installed package).
        pooling: ``mean`` over the real tokens, or ``cls``: the first one.
        dropout: probability in front of the head; the encoder keeps its own.
        attention_dropout: replaces the encoder's probability; None keeps it. 0 trains 1.4 times faster on a CPU.
        fast_dropout: draw the encoder's hidden dropout by :func:`ltr.models.dropout.dropout` on a CPU; False keeps torch's own.

    Attributes:
        reads_packed: texts go through the encoder end to end, without padding; where it can't read them so, in padded chunks of
            similar length.

    Raises:
        InputError: if the backbone can't be loaded.

    References:
        Nogueira & Cho (2019), Passage re-ranking with BERT.
    """

    def __init__(
        self,
        backbone: str,
        pooling: Literal["mean", "cls"] = "mean",
        dropout: float = 0.1,
        attention_dropout: float | None = None,
        fast_dropout: bool = True,
    ) -> None:
        super().__init__()
        if pooling not in ("mean", "cls"):
            raise InputError(f"pooling must be 'mean' or 'cls', got {pooling!r} (option model.init_args.pooling)")
        self.tokenizer = load_tokenizer(backbone)
        self.encoder, self.has_own_head = load_encoder(backbone, attention_dropout)
        self.gives_embeddings = not self.has_own_head
        self.pooling = pooling
        self.dropout = nn.Identity() if self.has_own_head else nn.Dropout(dropout)
        self.head = nn.Identity() if self.has_own_head else nn.Linear(self.encoder.config.hidden_size, 1)
        self.max_positions = max_positions(self.encoder)
        if fast_dropout:
            use_fast_dropout(self.encoder)
        self.reads_packed = enable_packing(self.encoder)
        self.first_position = first_position(self.encoder)
        self.train()  # from_pretrained leaves modules in eval mode, and Lightning keeps what it finds: no dropout, silently

    @overload
    def forward(self, positive_inputs: RankingBatch) -> Tensor: ...
    @overload
    def forward(self, positive_inputs: Inputs | None, negative_inputs: Inputs | None) -> tuple[Tensor | None, Tensor | None]: ...
    def forward(self, positive_inputs=None, negative_inputs=None):
        """Score lists, or positive and negative pairs as the papers write it; one encoder pass for both sides.

        Args:
            positive_inputs: a :class:`RankingBatch`; or what the tokenizer returns for pairs (``input_ids``, ``attention_mask``,
                perhaps ``token_type_ids``, each ``[S, L]``), or None.
            negative_inputs: the same for the negative pairs (another S and L may be), or None.

        Returns:
            ``[B, N]`` float32 for a batch, 0 at the padding; else two tensors of logits ``[S]``, None for a side that was None.
        """
        if isinstance(positive_inputs, RankingBatch):
            batch = positive_inputs
            logits = self.score(batch.pairs)
            return logits.new_zeros(batch.mask.shape).masked_scatter(batch.mask, logits)
        sides = [side for side in (positive_inputs, negative_inputs) if side is not None]
        if not sides:
            return None, None
        logits = self._logits(**_join(sides, self.tokenizer.pad_token_id))
        n_positive = 0 if positive_inputs is None else len(positive_inputs["input_ids"])
        return (
            None if positive_inputs is None else logits[:n_positive],
            None if negative_inputs is None else logits[n_positive:],
        )

    def score(self, texts: Texts) -> Tensor:
        """Logits ``[S]`` float32 of joined pairs, encoded in chunks of similar length."""
        if not len(texts.lengths):
            return torch.zeros(0, device=texts.ids.device)
        if self.has_own_head:
            return self._read(texts, packed=partial(logits, self.encoder), padded=self._logits)
        return self._head(self._read(texts, packed=self._pooled_packed, padded=self._pooled))

    def represent(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        """Scores ``[B, N]`` as ``forward`` gives them, and what the head reads: pooled representations ``[B, N, H]`` float32.

        One encoder pass; both are 0 at the padding. Only where ``gives_embeddings``: a ready cross-encoder's own head hides them.
        """
        pooled = self._read(batch.pairs, packed=self._pooled_packed, padded=self._pooled)
        logits = self._head(pooled)
        scores = logits.new_zeros(batch.mask.shape).masked_scatter(batch.mask, logits)
        embeddings = pooled.new_zeros(*batch.mask.shape, pooled.shape[1]).masked_scatter(batch.mask.unsqueeze(2), pooled)
        return scores, embeddings

    def _read(self, texts: Texts, packed: Callable[[Packed], Tensor], padded: Callable[..., Tensor]) -> Tensor:
        """``[S, …]``: what is made of chunks of the texts, packed where the encoder can read them so, in their order."""
        if self.reads_packed:
            return read_packed(packed, texts, self._chunk_tokens(texts), self.first_position)
        rows, outputs = [], []
        for chunk in padded_chunks(texts, self.tokenizer.pad_token_id or 0, self._chunk_tokens(texts)):
            rows.append(chunk.rows)
            outputs.append(padded(chunk.input_ids, chunk.attention_mask, chunk.token_type_ids))
        return torch.cat(outputs)[torch.cat(rows).argsort()]

    def padding_share(self, texts: Texts) -> float:
        """Share of padding among the tokens that the encoder sees of these texts."""
        return 0.0 if self.reads_packed else padding_share(texts.lengths.tolist(), self._chunk_tokens(texts))

    def _chunk_tokens(self, texts: Texts) -> int:
        return CHUNK_TOKENS.get(texts.ids.device.type, CHUNK_TOKENS["cuda"])

    def _logits(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        if self.has_own_head:
            return self._encode(input_ids, attention_mask, token_type_ids).logits[:, 0].float()
        return self._head(self._pooled(input_ids, attention_mask, token_type_ids))

    def _pooled(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        hidden = self._encode(input_ids, attention_mask, token_type_ids).last_hidden_state.float()
        if self.pooling == "cls":
            return hidden[:, 0]
        weights = attention_mask.unsqueeze(2).float()
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1)

    def _pooled_packed(self, chunk: Packed) -> Tensor:
        return pool(hidden_states(self.encoder, chunk), chunk.lengths, self.pooling)

    def _head(self, pooled: Tensor) -> Tensor:
        # Not under autocast: scores rounded to bfloat16 would tie, and ties are broken by the documents' ids.
        with torch.autocast(pooled.device.type, enabled=False):
            return self.head(self.dropout(pooled)).squeeze(1)

    def _encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None) -> ModelOutput:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask, **types)


def _join(sides: list[Inputs], pad_id: int) -> dict[str, Tensor]:
    """Padded inputs one below the other, at the width of the widest."""
    width = max(side["input_ids"].shape[1] for side in sides)
    fill = {"input_ids": pad_id, "attention_mask": 0, "token_type_ids": 0}
    names = [name for name in fill if name in sides[0]]
    return {
        name: torch.cat([F.pad(side[name], (0, width - side[name].shape[1]), value=fill[name]) for side in sides])
        for name in names
    }
