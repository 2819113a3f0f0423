"""Cross-encoder: query and document are read together, as one text, which gets one score."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ltr.batch import RankingBatch, Texts
from ltr.data.files import write_new_model_folder
from ltr.data.formats import JoinedPairs
from ltr.data.tokens import tokenizer_key
from ltr.dropout import use_keyed_dropout
from ltr.errors import InputError
from ltr.models.encoder.loading.cross_modules import (
    save_cross_encoder,
    save_for_transformers,
    saved_head,
)
from ltr.models.encoder.loading.pretrained import (
    check_vocabulary,
    load_encoder,
    load_tokenizer,
    token_limit,
)
from ltr.models.encoder.lora import USUAL_LR
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.ranker import Ranker, in_lists

# What a tokenizer of transformers returns for padded pairs: tensors [S, L] by their names.
Inputs = Mapping[str, Tensor]


class PairWiseBertRanker(Ranker):
    r"""A cross-encoder: scores each document by itself, by an encoder, a pooling and a linear head.

    In the name, ``Pair`` is a query and a document, not two documents, and ``Bert`` is any encoder.

    .. math:: s(q, d) = w^\top \mathrm{pool}(\mathrm{enc}(q, d)) + b

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
        if encoder.lora is not None:
            self.usual_lr = USUAL_LR
        self.tokenizer = load_tokenizer(backbone)
        pretrained = load_encoder(backbone, encoder.dropout, encoder.new_weights)
        model = pretrained.model
        # A classifier's own head is part of its model, and hides the embeddings in front of it.
        self.has_own_head = pretrained.has_own_head
        self.gives_embeddings = not pretrained.has_own_head
        self._left_out_dropout = pretrained.left_out_dropout
        check_vocabulary(self.tokenizer, model, backbone)
        max_length = token_limit(max_length, self.tokenizer.model_max_length, model, backbone)
        self.reads = JoinedPairs(self.tokenizer, max_length)

        # Three cases: a classifier has its head inside the model (has_own_head); a CrossEncoder of
        # sentence-transformers has a linear layer, which becomes self.head (trained_head); a plain
        # encoder has no head, and self.head is new.
        trained_head = saved_head(backbone)
        if trained_head is not None and encoder.pooling is None:
            encoder = replace(encoder, pooling=trained_head.pooling)
        self.encoder = TextEncoder(model, self.tokenizer.pad_token_id, encoder)
        self.dropout: nn.Module
        self.head: nn.Module
        if self.has_own_head:
            self.dropout = nn.Identity()
            self.head = nn.Identity()
        else:
            self.dropout = nn.Dropout(dropout)
            self.head = nn.Linear(model.config.hidden_size, 1)
        self._draws = use_keyed_dropout(self.dropout)
        if not self.has_own_head and trained_head is None:
            self.new_parts = ("head",)
        if trained_head is not None:
            self.head.load_state_dict({"weight": trained_head.weight, "bias": trained_head.bias})
        # from_pretrained leaves modules in eval mode, and Lightning keeps that: there would be no
        # dropout.
        self.train()

    @property
    def key(self) -> list[object]:
        """See :attr:`ltr.models.Ranker.key`."""
        tokenizer = tokenizer_key(self.tokenizer)
        return [*super().key, self.encoder.pooling, tokenizer, self.reads.max_length]

    @overload
    def forward(self, batch: RankingBatch, /) -> Tensor: ...
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
            positive_inputs: a :class:`RankingBatch` of lists; or the positive pairs as the
                tokenizer returns them, or None. These are ``input_ids``, and optionally
                ``attention_mask`` (if absent, nothing is padding) and ``token_type_ids`` (if
                absent, 0), each ``[S, L]``.
            negative_inputs: the same for the negative pairs (S and L may differ), or None.

        Returns:
            Scores ``[B, N]`` float32 for a batch, 0 at the padding. For pairs two tensors of logits
            ``[S]``, None for a side that is None.

        Raises:
            InputError: for a pair without a token.
        """
        if isinstance(positive_inputs, RankingBatch):
            return in_lists(self.score(_pairs(positive_inputs)), positive_inputs.mask)
        if positive_inputs is None:
            if negative_inputs is None:
                return None, None
            return None, self.score(_without_padding([negative_inputs]))
        if negative_inputs is None:
            return self.score(_without_padding([positive_inputs])), None
        logits = self.score(_without_padding([positive_inputs, negative_inputs]))
        sizes = [len(positive_inputs["input_ids"]), len(negative_inputs["input_ids"])]
        positive, negative = logits.split(sizes)
        return positive, negative

    def score(self, texts: Texts) -> Tensor:
        """Logits ``[S]`` float32 of joined pairs."""
        if self.has_own_head:
            return self.encoder.logits(texts)
        return self._scores_of(self.encoder(texts), texts)

    def represent(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        """Scores ``[B, N]``, and the pooled representations that the head reads ``[B, N, H]``, of
        one encoder pass.

        Both are float32, and 0 at the padding. Only where ``gives_embeddings``: a ready
        cross-encoder's own head hides them.
        """
        pairs = _pairs(batch)
        pooled = self.encoder(pairs)
        return in_lists(self._scores_of(pooled, pairs), batch.mask), in_lists(pooled, batch.mask)

    def save(self, folder: str | Path) -> None:
        """Write a folder that ``CrossEncoder(folder)`` of sentence-transformers and this class
        load. A failure leaves no folder.

        There ``predict`` gives the scores of this model.

        Raises:
            InputError: if the folder exists.
        """

        def write(partial: Path) -> None:
            save_cross_encoder(
                partial,
                self.encoder.model,
                self.tokenizer,
                self.reads.max_length,
                self.head,
                self.encoder.pooling,
            )

        self._write_folder(folder, write)

    def save_plain(self, folder: str | Path) -> None:
        """Write a folder of transformers: a sequence classifier with one score. A failure leaves no
        folder.

        Raises:
            InputError: if the ranker has no head of its own, or the folder exists.
        """
        model = self.encoder.model
        if not self.has_own_head:
            classifier = type(model).__name__.removesuffix("Model") + "ForSequenceClassification"
            raise InputError(
                "transformers has no head for this ranker, a linear layer behind the "
                f"{self.encoder.pooling} of the tokens: {classifier} has others; "
                "export it to sentence-transformers"
            )

        def write(partial: Path) -> None:
            save_for_transformers(partial, model, self.tokenizer, self.reads.max_length)

        self._write_folder(folder, write)

    def _write_folder(self, folder: str | Path, write: Callable[[Path], None]) -> None:
        """Write a new folder, of weights that adapters are part of. Its config gets back the dropout
        probabilities that loading has set to 0.
        """
        config = self.encoder.model.config
        config.update(self._left_out_dropout)
        try:
            with self.encoder.merged():
                write_new_model_folder(Path(folder), write)
        finally:
            config.update(dict.fromkeys(self._left_out_dropout, 0.0))

    def padding_share(self, batch: RankingBatch) -> float:
        return self.encoder.padding_share(_pairs(batch))

    def _scores_of(self, pooled: Tensor, texts: Texts) -> Tensor:
        """Scores ``[S]`` float32 of the pooled representations ``[S, H]`` of texts."""
        with self._draws.of(texts.keys):
            pooled = self.dropout(pooled)
        # Neither under autocast nor in the weights' own precision: scores rounded to bfloat16 would
        # tie, and document ids would then decide the order.
        with torch.autocast(pooled.device.type, enabled=False):
            head = cast(nn.Linear, self.head)
            return F.linear(pooled, head.weight.float(), head.bias.float()).squeeze(1)


def _pairs(batch: RankingBatch) -> Texts:
    """The joined queries and documents of a batch."""
    assert batch.pairs is not None, "the data lays out what the ranker reads"
    return batch.pairs


def _without_padding(sides: list[Inputs]) -> Texts:
    """Padded inputs, one side after the other, without their padding."""
    all_ids = []
    all_types = []
    all_lengths = []
    for side in sides:
        ids = side["input_ids"]
        is_token = side.get("attention_mask", torch.ones_like(ids)).bool()
        types = side.get("token_type_ids", torch.zeros_like(ids))
        all_ids.append(ids[is_token])
        all_types.append(types[is_token])
        all_lengths.append(is_token.sum(dim=1))
    lengths = torch.cat(all_lengths)
    if not lengths.all():
        n_empty = int((lengths == 0).sum())
        raise InputError(
            f"every pair must have a token, but {n_empty} of {len(lengths)} are padding alone; "
            "leave them out"
        )
    has_types = any("token_type_ids" in side for side in sides)
    return Texts(torch.cat(all_ids), lengths, torch.cat(all_types) if has_types else None)
