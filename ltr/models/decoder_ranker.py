"""Decoder ranker: a language model reads query and document in a template, and the last token says
how relevant the document is.
"""

import copy
import logging
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ltr.data.template import Template
from ltr.data.templated_pairs import TemplatedPairs
from ltr.errors import InputError
from ltr.models.encoder.loading.decoder_template import judge_template, template_of_roles
from ltr.models.encoder.loading.model_folder import Backbone, open_folder
from ltr.models.encoder.loading.modules import (
    save_cross_encoder,
    save_for_transformers,
    saved_head,
)
from ltr.models.encoder.loading.pretrained import (
    check_vocabulary,
    load_encoder,
    load_language_model,
    load_tokenizer,
    quiet,
    token_limit,
    warn_of_left_out_head,
)
from ltr.models.encoder.loading.saved_settings import save_settings, saved_template
from ltr.models.encoder.lora import USUAL_LR
from ltr.models.encoder.packed import in_eval_mode
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.pair_ranker import PairRanker, check_dropout

log = logging.getLogger(__name__)

Words = tuple[str, str]
# Relative: of the difference of two words' scores by the model and by its head over all words alone.
SAME = 1e-3


class DecoderRanker(PairRanker):
    r"""A decoder that scores each document by itself: a linear map of the last token's hidden state.

    .. math:: s(q, d) = (W_\text{yes} - W_\text{no})^\top \, h_T, \qquad
        h = \mathrm{dec}(\mathrm{template}(q, d)), \quad \sigma(s) = \mathrm{softmax}_\text{yes}

    W is the model's head over all words, of which two rows are read when the model is loaded, and
    none is computed. Their difference is trained as a linear layer of its own, also where the model
    shares W with its embeddings. A sequence classifier of transformers with one score keeps its own
    linear layer.

    Args:
        backbone: Pretrained decoder: hub id, folder, or ``package:NAME`` (weights inside an
            installed package).
        template: What is read of a query and a document, see :class:`ltr.data.template.Template`.
            None: that of the model's folder where this class has written it, or else that of
            Qwen3-Reranker, in the tokenizer's chat template where it has one.
        words: The two words by which the model would answer that a document is relevant, or not;
            each must be one token. None: the linear layer begins with random numbers.
        max_length: Tokens of the whole text; the document is cut. None: as in the model.
        dropout: Dropout probability in front of the linear layer, at least 0 and below 1.
        encoder: How the decoder reads and trains. Its ``pooling`` is ``last``.
        temperature: Divides the scores; above 0. Its inverse is the steepness σ of a logistic loss.
        learn_temperature: Train the logarithm of the temperature, which then stays at or above
            0.01, with a peak rate of at least 1e-3. A saved folder has it in its last layer.

    Raises:
        InputError: if the backbone cannot be loaded, is no decoder, or has no positions for
            ``max_length`` tokens; if a word is not one token, or an option is out of bounds.

    References:
        Nogueira et al. (2020), Document ranking with a pretrained sequence-to-sequence model (the
        words). Zhang et al. (2025), Qwen3 Embedding (the template).
    """

    reads: TemplatedPairs

    def __init__(
        self,
        backbone: Backbone,
        template: Template | None = None,
        words: Words | None = ("yes", "no"),
        max_length: int | None = 512,
        dropout: float = 0.0,
        encoder: TextEncoder.Options = TextEncoder.Options(),
        temperature: float = 1.0,
        learn_temperature: bool = False,
    ) -> None:
        check_dropout(dropout)
        folder = open_folder(backbone)
        tokenizer = load_tokenizer(folder)
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        # Four cases: a decoder ranker of ours, one of sentence-transformers that compares two words,
        # a model whose head over all words is asked for two of them, and one without such a head.
        own_template = None
        trained = None
        word_ids = None
        if folder.is_saved_decoder:
            own_template = saved_template(folder, "DecoderRanker")
            trained = saved_head(folder, reads_messages=True)
        elif folder.is_decoder_ranker:
            word_ids = folder.answer_ids
            own_template = template_of_roles(tokenizer, folder.query_prompt)
        elif words is not None and not folder.is_pair_classifier:
            word_ids = _ids_of_words(words, tokenizer)
        load = load_encoder if word_ids is None else load_language_model
        whole, left_out_dropout = load(folder, encoder.dropout, encoder.new_weights)
        model = whole.base_model
        check_vocabulary(tokenizer, model, folder)
        max_length = token_limit(max_length, tokenizer.model_max_length, model, folder.name)
        template = template or own_template or judge_template(tokenizer, words)
        reads = TemplatedPairs(tokenizer, max_length, template)
        # Before the encoder, which may cast the weights that some models share with their words.
        if trained is not None:
            _, linear = trained
            head = _head_of(linear.weight, linear.bias)
        else:
            head = _new_head(whole, word_ids)
        is_plain = not folder.is_decoder_ranker and not _has_score(whole)
        options = replace(encoder, pooling=encoder.pooling or "last")
        text_encoder = TextEncoder(model, tokenizer.pad_token_id, options)
        if not text_encoder.causal:
            raise InputError(
                f"{type(model).__name__} is no decoder: its tokens see those behind them; take PairWiseBertRanker",
                option="backbone",
            )
        super().__init__(
            text_encoder,
            reads,
            head,
            dropout,
            left_out_dropout,
            temperature,
            learn_temperature,
        )
        if is_plain:
            warn_of_left_out_head(folder)
        if is_plain and word_ids is None:
            self.new_parts = ("head",)
        if encoder.lora is not None:
            self.usual_lr = USUAL_LR

    def save(self, folder: str | Path) -> None:
        """See ``ltr.models.pair_ranker.PairRanker.save``. There a chat template makes the text:
        the same, but that a query or a document has no budget of its own.
        """

        def write(partial: Path) -> None:
            tokenizer = self.saved_tokenizer()
            save_cross_encoder(
                partial,
                self.encoder.model,
                tokenizer,
                self.reads.max_length,
                self.head,
                "last",
                reads_messages=True,
            )
            save_settings(partial, "DecoderRanker", self.template)

        self._write_folder(folder, write)

    def save_plain(self, folder: str | Path) -> None:
        """See ``ltr.models.pair_ranker.PairRanker.save_plain``. Its tokenizer's chat template
        makes the text of a message of the role ``query`` and one of the role ``document``.
        """
        model = self.encoder.model
        head = cast(nn.Linear, self.head)
        if head.bias is not None:
            raise InputError(
                "a sequence classifier of a decoder has no bias, and the head of this ranker has one; export it to sentence-transformers"
            )

        def write(partial: Path) -> None:
            config = copy.deepcopy(model.config)
            config.num_labels = 1
            with torch.device("meta"), quiet():  # no weights of its own
                classifier = AutoModelForSequenceClassification.from_config(config)
            setattr(classifier, classifier.base_model_prefix, model)
            classifier.score = head
            tokenizer = self.saved_tokenizer()
            save_for_transformers(partial, classifier, tokenizer, self.reads.max_length)
            save_settings(partial, "DecoderRanker", self.template)

        self._write_folder(folder, write)


def _ids_of_words(words: Words, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token of each word; an InputError if a word is not one token, or both are the same."""
    ids = []
    for word in words:
        tokens = tokenizer(word, add_special_tokens=False)["input_ids"]
        if len(tokens) != 1:
            pieces = tokenizer.convert_ids_to_tokens(tokens)
            raise InputError(
                f"each of the words must be one token, got {word!r} with {len(tokens)}, {pieces}; take other words, or words: null",
                option="words",
            )
        ids += tokens
    if ids[0] == ids[1]:
        raise InputError(f"the words must be two, got {words[0]!r} twice", option="words")
    return ids


def _new_head(model: PreTrainedModel, word_ids: list[int] | None) -> nn.Linear:
    """The first linear layer: a classifier's own, the difference of two words, or a new one."""
    if _has_score(model):
        return _head_of(model.score.weight, model.score.bias)
    if word_ids is None:
        return nn.Linear(model.config.hidden_size, 1, bias=False)
    over_words = model.get_output_embeddings()
    yes, no = word_ids
    bias: Tensor | None = over_words.bias
    if bias is not None:
        bias = bias[yes : yes + 1] - bias[no : no + 1]
    head = _head_of(over_words.weight[yes : yes + 1] - over_words.weight[no : no + 1], bias)
    _warn_if_not_linear(model, head, word_ids)
    return head


def _has_score(model: PreTrainedModel) -> bool:
    """Whether a model is a sequence classifier, with a linear layer of its own."""
    return isinstance(getattr(model, "score", None), nn.Linear)


def _head_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer of these weights, ``[1, H]`` and ``[1]``."""
    head = nn.Linear(weight.shape[1], 1, bias=bias is not None)
    with torch.no_grad():
        head.weight.copy_(weight)
        if bias is not None:
            head.bias.copy_(bias)
    return head


@torch.no_grad()
def _warn_if_not_linear(model: PreTrainedModel, head: nn.Linear, word_ids: list[int]) -> None:
    """Say where a model makes more of its hidden state than a linear map: Gemma 2 caps its logits."""
    ids = torch.tensor([word_ids])
    with in_eval_mode(model):
        yes, no = model(ids).logits[0, -1, word_ids]
        linear = head(model.base_model(ids).last_hidden_state[0, -1])[0]
    if not abs(yes - no - linear) <= SAME * abs(yes).clamp(min=1):
        log.info(
            "%s caps or scales the scores of its words; the ranker begins without that, at the difference of their linear parts",
            type(model).__name__,
        )
