"""Cross-encoder: query and document are read together, and one score comes out."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ltr.batch import RankingBatch, Texts
from ltr.data.files import write_new_folder
from ltr.data.formats import JoinedPairs
from ltr.errors import InputError
from ltr.models.encoder.loading.cross_modules import save_cross_encoder, save_plain, saved_head
from ltr.models.encoder.loading.pretrained import (
    check_vocabulary,
    load_encoder,
    load_tokenizer,
    longest_text,
)
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.ranker import Ranker, in_lists

Inputs = Mapping[str, Tensor]


class PairWiseBertRanker(Ranker):
    r"""An encoder, a pooling and a linear head: :math:`s(q, d) = w^\top
    \mathrm{pool}(\mathrm{enc}(q, d)) + b`.

    A ready cross-encoder (a sequence classifier with one label) keeps its own head, and the pooling
    and dropout in front of it. A CrossEncoder of sentence-transformers with a pooling and a linear
    layer keeps these; its sigmoid is left out.

    Args:
        backbone: Pretrained encoder: hub id, folder, or ``package:NAME`` (weights inside an
            installed package).
        max_length: Tokens of a joined query and document, special ones counted; the document is
            cut. None: as in the model.
        dropout: Dropout probability in front of the head, at least 0 and below 1.
        encoder: How the encoder reads and trains.

    Raises:
        InputError: if the backbone cannot be loaded or has no positions for ``max_length`` tokens,
            or an option is out of bounds.

    References:
        Nogueira & Cho (2019), Passage re-ranking with BERT.
    """

    reads: JoinedPairs

    def __init__(
        self,
        backbone: str,
        max_length: int | None = 256,
        dropout: float = 0.1,
        encoder: TextEncoder.Options = TextEncoder.Options(),
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise InputError(
                f"dropout must be at least 0 and below 1, got {dropout}", option="dropout"
            )
        self.tokenizer = load_tokenizer(backbone)
        model, self.has_own_head, self._left_out = load_encoder(
            backbone, encoder.dropout, encoder.new_weights
        )
        check_vocabulary(self.tokenizer, model, backbone)
        max_length = longest_text(max_length, self.tokenizer.model_max_length, model, backbone)
        saved = saved_head(backbone)
        if saved is not None and encoder.pooling is None:
            encoder = replace(encoder, pooling=saved.pooling)
        self.reads = JoinedPairs(self.tokenizer, max_length)
        self.encoder = TextEncoder(model, self.tokenizer.pad_token_id, encoder)
        self.gives_embeddings = not self.has_own_head
        self.dropout = nn.Identity() if self.has_own_head else nn.Dropout(dropout)
        self.head = nn.Identity() if self.has_own_head else nn.Linear(model.config.hidden_size, 1)
        if saved is not None:
            self.head.load_state_dict({"weight": saved.weight, "bias": saved.bias})
        # from_pretrained leaves modules in eval mode, and Lightning keeps that: there would be no
        # dropout
        self.train()

    @overload
    def forward(self, positive_inputs: RankingBatch) -> Tensor: ...
    @overload
    def forward(
        self, positive_inputs: Inputs | None, negative_inputs: Inputs | None
    ) -> tuple[Tensor | None, Tensor | None]: ...
    def forward(
        self,
        positive_inputs: RankingBatch | Inputs | None = None,
        negative_inputs: Inputs | None = None,
    ) -> Tensor | tuple[Tensor | None, Tensor | None]:
        """Score lists, or positive and negative pairs as the papers write it, with one encoder pass
        for both sides.

        Args:
            positive_inputs: a :class:`RankingBatch`; or what the tokenizer returns for pairs
                (``input_ids``, perhaps ``attention_mask``, without which there is no padding, and
                ``token_type_ids``, 0 where left out, each ``[S, L]``), or None.
            negative_inputs: the same for the negative pairs (S and L may differ), or None.

        Returns:
            Scores ``[B, N]`` float32 for a batch, 0 at the padding. For pairs two tensors of logits
            ``[S]``, None for a side that is None.

        Raises:
            InputError: for a pair without a token.
        """
        if isinstance(positive_inputs, RankingBatch):
            return in_lists(self.score(_pairs(positive_inputs)), positive_inputs.mask)
        sides = [side for side in (positive_inputs, negative_inputs) if side is not None]
        if not sides:
            return None, None
        logits = iter(self.score(_ragged(sides)).split([len(side["input_ids"]) for side in sides]))
        positive = None if positive_inputs is None else next(logits)
        return positive, None if negative_inputs is None else next(logits)

    def score(self, texts: Texts) -> Tensor:
        """Logits ``[S]`` float32 of joined pairs."""
        return self.encoder.logits(texts) if self.has_own_head else self._head(self.encoder(texts))

    def represent(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        """Scores ``[B, N]``, and the pooled representations that the head reads ``[B, N, H]``, of
        one encoder pass.

        Both are float32, and 0 at the padding. Only where ``gives_embeddings``: a ready
        cross-encoder's own head hides them.
        """
        pooled = self.encoder(_pairs(batch))
        return in_lists(self._head(pooled), batch.mask), in_lists(pooled, batch.mask)

    def save(self, folder: str | Path) -> None:
        """Write a folder that ``CrossEncoder(folder)`` of sentence-transformers and this class
        load. A failure leaves no folder.

        There ``predict`` gives the scores of this model.

        Raises:
            InputError: if the folder exists.
        """
        how = self.reads.max_length, self.head, self.encoder.pooling
        self._write(
            folder, lambda part: save_cross_encoder(part, self.encoder.model, self.tokenizer, *how)
        )

    def save_plain(self, folder: str | Path) -> None:
        """Write a folder of transformers: a sequence classifier with one score. A failure leaves no
        folder.

        Raises:
            InputError: if the ranker has no head of its own, or the folder exists.
        """
        if not self.has_own_head:
            kind = type(self.encoder.model).__name__.removesuffix("Model")
            head = f"a linear layer behind the {self.encoder.pooling} of the tokens"
            hint = f"{kind}ForSequenceClassification has others; export it to sentence-transformers"
            raise InputError(f"transformers has no head for this ranker, {head}: {hint}")
        self._write(
            folder,
            lambda part: save_plain(
                part, self.encoder.model, self.tokenizer, self.reads.max_length
            ),
        )

    def _write(self, folder: str | Path, write: Callable[[Path], None]) -> None:
        config = self.encoder.model.config
        config.update(self._left_out)  # the encoder's own dropout
        try:
            write_new_folder(Path(folder), write)
        finally:
            config.update(dict.fromkeys(self._left_out, 0.0))

    def padding_share(self, batch: RankingBatch) -> float:
        return self.encoder.padding_share(_pairs(batch))

    def _head(self, pooled: Tensor) -> Tensor:
        # Neither under autocast nor in the weights' own precision: scores rounded to bfloat16 would
        # tie, and document ids would then decide the order.
        with torch.autocast(pooled.device.type, enabled=False):
            weight, bias = (parameter.float() for parameter in self.head.parameters())
            return F.linear(self.dropout(pooled), weight, bias).squeeze(1)


def _pairs(batch: RankingBatch) -> Texts:
    assert batch.pairs is not None, "the data lays out what the ranker reads"
    return batch.pairs


def _ragged(sides: list[Inputs]) -> Texts:
    """Padded inputs, one side after the other, without their padding."""
    real = [side.get("attention_mask", torch.ones_like(side["input_ids"])).bool() for side in sides]

    def tokens(name: str) -> Tensor:
        found = [side.get(name, torch.zeros_like(side["input_ids"])) for side in sides]
        return torch.cat([ids[at] for ids, at in zip(found, real, strict=True)])

    lengths = torch.cat([at.sum(dim=1) for at in real])
    if not lengths.all():
        empty = int((lengths == 0).sum())
        raise InputError(
            f"every pair must have a token, but {empty} of {len(lengths)} are padding alone; leave them out"
        )
    has_types = any("token_type_ids" in side for side in sides)
    return Texts(tokens("input_ids"), lengths, tokens("token_type_ids") if has_types else None)
