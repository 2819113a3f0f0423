"""Cross-encoder: query and document are read together, and one score comes out."""

from collections.abc import Mapping
from typing import Literal, overload

import torch
from torch import Tensor, nn

from ltr.batch import RankingBatch, Texts
from ltr.models.backbone import Dropouts, load_encoder, load_tokenizer, max_positions
from ltr.models.text_encoder import TextEncoder

Inputs = Mapping[str, Tensor]


class PairWiseBertRanker(nn.Module):
    r"""An encoder, a pooling and a linear head: :math:`s(q, d) = w^\top \mathrm{pool}(\mathrm{enc}(q, d)) + b`.

    A ready cross-encoder (a sequence classifier with one label) is loaded with its own head; pooling and dropout in front of it
    are then its own.

    Args:
        backbone: hub id, folder, or ``package:NAME`` (weights inside an installed package).
        pooling: ``mean`` over the real tokens, or ``cls``: the first one.
        dropout: probability in front of the head.
        encoder_dropout: ``hidden``: the encoder's own but for that of the attention weights, which trains 1.5 times faster on a
            CPU; ``own``: all of it; ``none``.
        max_tokens, keep_tokens, compile: see :class:`ltr.models.text_encoder.TextEncoder`.

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
        encoder_dropout: Dropouts = "hidden",
        max_tokens: int | None = None,
        keep_tokens: int | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__()
        self.tokenizer = load_tokenizer(backbone)
        model, self.has_own_head = load_encoder(backbone, encoder_dropout)
        if model.config.pad_token_id is None:
            model.config.pad_token_id = self.tokenizer.pad_token_id
        self.encoder = TextEncoder(model, self.tokenizer.pad_token_id or 0, pooling, max_tokens, keep_tokens, compile)
        self.gives_embeddings = not self.has_own_head
        self.dropout = nn.Identity() if self.has_own_head else nn.Dropout(dropout)
        self.head = nn.Identity() if self.has_own_head else nn.Linear(model.config.hidden_size, 1)
        self.max_positions = max_positions(model)
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
        logits = self.score(_ragged(sides))
        n_positive = 0 if positive_inputs is None else len(positive_inputs["input_ids"])
        return (
            None if positive_inputs is None else logits[:n_positive],
            None if negative_inputs is None else logits[n_positive:],
        )

    def score(self, texts: Texts) -> Tensor:
        """Logits ``[S]`` float32 of joined pairs."""
        return self.encoder.logits(texts) if self.has_own_head else self._head(self.encoder(texts))

    def represent(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        """Scores ``[B, N]`` as ``forward`` gives them, and what the head reads: pooled representations ``[B, N, H]`` float32.

        One encoder pass; both are 0 at the padding. Only where ``gives_embeddings``: a ready cross-encoder's own head hides them.
        """
        pooled = self.encoder(batch.pairs)
        logits = self._head(pooled)
        scores = logits.new_zeros(batch.mask.shape).masked_scatter(batch.mask, logits)
        embeddings = pooled.new_zeros(*batch.mask.shape, pooled.shape[1]).masked_scatter(batch.mask.unsqueeze(2), pooled)
        return scores, embeddings

    def _head(self, pooled: Tensor) -> Tensor:
        # Not under autocast: scores rounded to bfloat16 would tie, and ties are broken by the documents' ids.
        with torch.autocast(pooled.device.type, enabled=False):
            return self.head(self.dropout(pooled)).squeeze(1)


def _ragged(sides: list[Inputs]) -> Texts:
    """Padded inputs, one side after the other, without their padding."""
    real = [side["attention_mask"].bool() for side in sides]

    def tokens(name: str) -> Tensor:
        return torch.cat([side[name][at] for side, at in zip(sides, real, strict=True)])

    return Texts(
        ids=tokens("input_ids"),
        lengths=torch.cat([at.sum(dim=1) for at in real]),
        type_ids=tokens("token_type_ids") if "token_type_ids" in sides[0] else None,
    )
