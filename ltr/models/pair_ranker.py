"""The base of rankers that read a query and a document together, as one text, which gets one score."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from ltr.batch import RankingBatch, Texts
from ltr.data.layouts import JoinedPairs
from ltr.data.template import PLAIN_TEMPLATE, Template
from ltr.data.templated_pairs import TemplatedPairs
from ltr.data.tokens import tokenizer_key
from ltr.data.whole_files import write_new_model_folder
from ltr.data.windows import best_windows, texts_at
from ltr.dropout import use_keyed_dropout
from ltr.errors import InputError
from ltr.models.encoder.loading.decoder_template import chat_template_of
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.ranker import Ranker


class PairRanker(Ranker):
    """Scores each document by itself, by an encoder, a pooling and a linear head; or by a model that
    has a head of its own. A subclass loads these.

    Args:
        encoder: reads the joined pairs.
        reads: how they are joined.
        head: a linear layer to one score; None: the encoder's model has a head of its own.
        dropout: probability in front of the linear layer, at least 0 and below 1.
        left_out_dropout: probabilities of the model's configuration that loading has set to 0.
        temperature: divides the scores; above 0.
        learn_temperature: train the logarithm of the temperature, which stays at or above 0.01.

    Attributes:
        has_own_head: whether the head is part of the encoder's model, where it hides the embeddings
            in front of it.
    """

    reads: JoinedPairs

    def __init__(
        self,
        encoder: TextEncoder,
        reads: JoinedPairs,
        head: nn.Linear | None,
        dropout: float,
        left_out_dropout: dict[str, float],
        temperature: float = 1.0,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        self.set_temperature(temperature, learn_temperature)
        self.encoder = encoder
        self.reads = reads
        self.has_own_head = head is None
        self.gives_embeddings = head is not None
        self._left_out_dropout = left_out_dropout
        self.dropout: nn.Module = nn.Identity() if head is None else nn.Dropout(dropout)
        self.head: nn.Module = nn.Identity() if head is None else head
        if learn_temperature or temperature != 1.0:
            self._last_linear()  # now, not when the ranker is saved
        self._draws = use_keyed_dropout(self.dropout)
        # from_pretrained leaves modules in eval mode, and Lightning keeps that: there would be no
        # dropout.
        self.train()

    @property
    def key(self) -> list[object]:
        """See :attr:`ltr.models.Ranker.key`."""
        tokenizer = tokenizer_key(self.tokenizer)
        key = [*super().key, self.encoder.pooling, tokenizer, self.reads.max_length]
        if self.template != PLAIN_TEMPLATE:
            key.append(asdict(self.template))
        if self.reads.windows is not None:
            key.append(asdict(self.reads.windows))
        return key

    @property
    def template(self) -> Template:
        """What is read of a query and a document."""
        return self.reads.template

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Of transformers."""
        return self.reads.tokenizer

    def saved_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer as a folder of this ranker holds it: with a chat template where query and
        document are one text, by which other libraries make that text.
        """
        if not isinstance(self.reads, TemplatedPairs):
            return self.tokenizer
        tokenizer = copy.deepcopy(self.tokenizer)
        before, after = self.reads.special_texts()
        tokenizer.chat_template = chat_template_of(self.template, before, after)
        return tokenizer

    def read_up_to(self, max_length: int) -> None:
        """Read this many tokens of a pair from now on."""
        self.reads = type(self.reads)(self.tokenizer, max_length, self.template, self.reads.windows)

    def forward(self, batch: RankingBatch) -> Tensor:
        """See :meth:`ltr.models.Ranker.forward`."""
        return batch.in_lists(self.score(pairs_of(batch)))

    def score(self, texts: Texts) -> Tensor:
        """Logits ``[S]`` float32 of joined pairs; of pairs in windows one for each document, ``[D]``."""
        texts = self._with_best_windows(texts)
        scores = self._scores_of_texts(texts)
        return self._document_values(scores, texts, scores)

    def represent(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        """Scores ``[B, N]``, and the pooled representations that the head reads ``[B, N, H]``, of
        one encoder pass.

        Both are float32, and 0 at the padding. Only where ``gives_embeddings``: a model's own
        head hides them.
        """
        pairs = self._with_best_windows(pairs_of(batch))
        pooled = self.encoder(pairs)
        scores = self._scores_of(pooled, pairs)
        pooled = self._document_values(pooled, pairs, scores)
        scores = self._document_values(scores, pairs, scores)
        return batch.in_lists(scores), batch.in_lists(pooled)

    def _with_best_windows(self, texts: Texts) -> Texts:
        """In training the best window of each document alone, chosen without a gradient: it would be
        0 for all others. So memory grows with the documents, not with their windows, and so do two
        thirds of the work. In all other cases the texts as they are.
        """
        if texts.windows is None or len(texts.windows) == len(texts.lengths):
            return texts
        if not self.reads.has_many_embeddings or not torch.is_grad_enabled():
            return texts
        with torch.no_grad():
            scores = self._scores_of_texts(texts)
        torch.clear_autocast_cache()  # older versions of torch keep casts without their gradient
        return texts_at(texts, best_windows(scores, texts.windows))

    def _document_values(self, values: Tensor, texts: Texts, scores: Tensor) -> Tensor:
        """Values of documents from those of their texts: of the best window, or the mean."""
        if texts.windows is None:
            return values
        assert self.reads.windows is not None, "what is read lays out its own windows"
        return self.reads.windows.document_values(values, texts.windows, scores)

    def padding_share(self, batch: RankingBatch) -> float | None:
        return self.encoder.padding_share(pairs_of(batch))

    def save(self, folder: str | Path) -> None:
        """Write a folder that ``CrossEncoder(folder)`` of sentence-transformers and this class
        load. A failure leaves no folder.

        There ``predict`` gives the scores of this ranker.

        Raises:
            InputError: if the folder exists.
        """
        raise NotImplementedError

    def save_plain(self, folder: str | Path) -> None:
        """Write a folder of transformers: a sequence classifier with one score. A failure leaves no
        folder.

        Raises:
            InputError: if transformers has no such head, or the folder exists.
        """
        raise NotImplementedError

    def _write_folder(self, folder: str | Path, write: Callable[[Path], None]) -> None:
        """Write a new folder, of weights that adapters and the temperature are part of. Its config gets back the dropout
        probabilities that loading has set to 0.
        """
        config = self.encoder.model.config
        config.update(self._left_out_dropout)
        try:
            with self.encoder.merged(), self.temperature_in_head():
                write_new_model_folder(Path(folder), write)
        finally:
            config.update(dict.fromkeys(self._left_out_dropout, 0.0))

    @contextmanager
    def temperature_in_head(self) -> Iterator[None]:
        """Inside the block the last linear layer is divided by the temperature, for libraries that
        know none: the scores stay what they are.
        """
        temperature = self.temperature_value
        learnt = self.log_temperature
        fixed = self._temperature
        if learnt is None and temperature == 1.0:
            yield
            return
        own = {weight: weight.data for weight in self._last_linear().parameters()}
        try:
            for weight, values in own.items():
                weight.data = values / temperature
            self.log_temperature = None
            self._temperature = 1.0
            yield
        finally:
            for weight, values in own.items():
                weight.data = values
            self.log_temperature = learnt
            self._temperature = fixed

    def _last_linear(self) -> nn.Linear:
        """The linear layer whose output is the score: the head, or the last layer of the model's own."""
        if isinstance(self.head, nn.Linear):
            return self.head
        model = self.encoder.model
        base = set(model.base_model.modules())
        linear = [
            part
            for part in model.modules()
            if isinstance(part, nn.Linear) and part.out_features == 1 and part not in base
        ]
        if len(linear) != 1:
            raise InputError(
                f"a temperature is saved as part of the last linear layer, and {type(model).__name__} has {len(linear)} to one score; leave out the temperature",
                option="temperature",
            )
        return linear[0]

    def _scores_of_texts(self, texts: Texts) -> Tensor:
        """Scores ``[S]`` float32 of texts, each by itself."""
        if self.has_own_head:
            return self.over_temperature(self.encoder.logits(texts))
        return self._scores_of(self.encoder(texts), texts)

    def _scores_of(self, pooled: Tensor, texts: Texts) -> Tensor:
        """Scores ``[S]`` float32 of the pooled representations ``[S, H]`` of texts."""
        with self._draws.drawing_for(texts.keys):
            pooled = self.dropout(pooled)
        # Neither under autocast nor in the weights' own precision: scores rounded to bfloat16 would
        # tie, and document ids would then decide the order.
        with torch.autocast(pooled.device.type, enabled=False):
            head = cast(nn.Linear, self.head)
            bias: Tensor | None = head.bias
            if bias is not None:
                bias = bias.float()
            return self.over_temperature(F.linear(pooled, head.weight.float(), bias).squeeze(1))


def pairs_of(batch: RankingBatch) -> Texts:
    """The joined queries and documents of a batch."""
    assert batch.pairs is not None, "the data lays out what the ranker reads"
    return batch.pairs


def check_dropout(dropout: float) -> None:
    """An InputError for a dropout in front of a head that is no share."""
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must be at least 0 and below 1, got {dropout}", option="dropout")
