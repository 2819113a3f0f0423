"""A pretrained encoder over the texts of a batch, in one pass, whatever their lengths."""

import ctypes
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from ltr.batch import Texts
from ltr.dropout import new_keys, use_keyed_dropout
from ltr.errors import InputError, at_least, one_of
from ltr.models.encoder.attention import PACKED_ATTENTION, Kernels
from ltr.models.encoder.chunks import Chunk, packed_chunks, padded_chunks, share_of_padding
from ltr.models.encoder.kernels import use_fast, use_plain
from ltr.models.encoder.kernels.gelu import gelu_keeps_output
from ltr.models.encoder.loading.architecture import (
    EncoderDropout,
    keep_layers,
    layers_of,
    padding_index,
)
from ltr.models.encoder.loading.pooling import Pooling
from ltr.models.encoder.lora import (
    BaseDtype,
    FrozenBase,
    Lora,
    add_adapters,
    cast_base,
    leave_base_out_of_checkpoints,
    merged_adapters,
)
from ltr.models.encoder.packed import (
    enable_packing,
    is_causal,
    longest_packed,
    read_logits,
    read_pooled,
)
from ltr.models.encoder.self_check import PathCheck, compare_packed

log = logging.getLogger(__name__)

# Tokens per chunk, padding counted. On 2 CPU cores larger chunks gain nothing, and the temporaries
# of these fit the cache. A GPU wants few, large kernels.
CHUNK_TOKENS = {"cpu": 2048, "cuda": 65536}
# Tokens per chunk with keep_tokens: fewer on a GPU, as one chunk at a time must fit when it is
# computed again.
RECOMPUTED_CHUNK_TOKENS = {"cpu": 2048, "cuda": 8192}
# Types of devices on which an encoder checks its packed reading before it trusts it. On a CPU the
# tests have checked the same.
CHECKS_ITSELF = ("cuda",)

# Hands freed memory back to the system. glibc keeps it, and its heap grows with the number of
# chunks, whose buffers have many sizes. Other platforms lack this call.
_malloc_trim = None
if sys.platform == "linux":
    _malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


class TextEncoder(nn.Module):
    """A pretrained encoder that reads texts end to end, without padding, where it can.

    Where it can't, it reads padded chunks. Texts are sorted by length and cut into chunks of at
    most ``max_tokens`` tokens. Outputs come in the order of the texts.

    Args:
        model: an encoder of transformers, or a ready cross-encoder (with a head of its own).
        pad_id: token id that fills padded chunks; None: 0.
        options: how the encoder reads and trains. The options ``new_weights`` and ``dropout`` are
            for loading the model.

    Attributes:
        reads_packed: whether the encoder reads texts without padding.
        frozen_base: the weights beside adapters, which checkpoints leave out; None where all
            weights are trained.
        longest_packed: tokens of the longest text that is read so; None: no bound.
        causal: whether it is a decoder, whose tokens do not see those behind them.

    Raises:
        InputError: for a model that cannot read texts in batches, or a decoder without a head of
            its own under another pooling than ``last``.
    """

    @dataclass(frozen=True)
    class Options:
        """How an encoder reads its texts and trains.

        Args:
            max_tokens: Tokens that go through the encoder at once, padding counted. None: 2,048 on
                a CPU, 65,536 on a GPU, or 8,192 there with ``keep_tokens``.
            keep_tokens: Number of tokens whose activations are kept for the backward pass; those of
                the others are computed again there. Memory then grows with ``keep_tokens`` and
                ``max_tokens``, not with the batch; training takes up to a third more time.
                Gradients stay the same, dropout included. None: keep all.
            dropout: ``hidden``: the model's own dropout, but none on the attention weights, which
                trains 1.5 times faster on a CPU; ``own``: all of it; ``none``.
            kernels: ``auto``: fast forms of what the model computes, see
                ``ltr.models.encoder.kernels``: linear layers, GELU, attention in blocks, and
                first tokens alone in the last layer. ``plain``: none of them. Every module is then
                transformers' or torch's own, attention is torch's, and no gradient is written by
                hand; but for dropout, whose gradient on a GPU is ours, and for a pooler that a dual
                encoder does not read, which computes nothing. Outputs and gradients agree but for
                rounding. Packing, chunks, ``keep_tokens`` and dropout stay the same.
            compile: Run the encoder's layers through ``torch.compile``. The first steps then take
                minutes.
            pooling: How the tokens of a text become one vector; ``cls`` takes the first token,
                ``last`` the last one, the only one that has seen all others in a decoder. None: the
                model's own pooling, or ``mean`` for a plain encoder.
            layers: Keep this many layers of the encoder, evenly spaced from its first one, for a
                smaller ranker; None: all.
            new_weights: Begin with random numbers where the backbone's weights do not fit its
                configuration. Otherwise it is refused.
            lora: Train adapters of low rank beside the encoder's weights, which stay as they are:
                ``{r: 16, alpha: 32, dropout: 0.0, targets: null}``. Checkpoints then hold adapters
                and heads alone. None: train all weights.
            dtype: Precision of the weights that stay as they are, with ``lora``: ``float32`` or
                ``bfloat16``; adapters and heads are float32. None: ``float32``.

        Raises:
            InputError: for a value out of bounds.
        """

        max_tokens: int | None = None
        keep_tokens: int | None = None
        dropout: EncoderDropout = "hidden"
        kernels: Kernels = "auto"
        compile: bool = False
        pooling: Pooling | None = None
        layers: int | None = None
        new_weights: bool = False
        lora: Lora | None = None
        dtype: BaseDtype | None = None

        def __post_init__(self) -> None:
            at_least(1, max_tokens=self.max_tokens)
            at_least(0, keep_tokens=self.keep_tokens)
            at_least(1, layers=self.layers)
            one_of(get_args(EncoderDropout), dropout=self.dropout)
            one_of(get_args(Kernels), kernels=self.kernels)
            one_of((*get_args(Pooling), None), pooling=self.pooling)
            one_of((*get_args(BaseDtype), None), dtype=self.dtype)
            if self.dtype == "bfloat16" and self.lora is None:
                raise InputError(
                    "dtype is that of weights that stay as they are, got bfloat16 without lora: weights that are trained are float32; set lora, or leave dtype out",
                    option="dtype",
                )

    def __init__(
        self, model: PreTrainedModel, pad_id: int | None = None, options: Options = Options()
    ) -> None:
        super().__init__()
        # Trials of packing leave this token out of their texts, and the classifier of a decoder's
        # architecture looks for the last token by it.
        if model.config.pad_token_id is None:
            model.config.pad_token_id = pad_id
        self.model = model
        self.pad_id = pad_id or 0
        self.options = options
        self.pooling = options.pooling or "mean"
        if options.layers is not None:
            keep_layers(model, options.layers)
        if options.lora is not None:
            # Before what follows: their linear layers and their dropout get the same classes.
            add_adapters(model, options.lora)
        if options.kernels == "plain":
            use_plain(model)
        else:
            use_fast(model, is_compiled=options.compile)
        self.draws = use_keyed_dropout(model)
        # The model's own attention, which reads padded texts; enable_packing may replace it.
        self._padded_attention = model.config._attn_implementation
        # Where packed reading was checked: type of device, type of autocast, and whether with
        # gradients. Grows with use, see _check_once.
        self._checked: set[tuple[str, torch.dtype | None, bool]] = set()
        self.causal = is_causal(model.base_model)
        self.reads_packed = enable_packing(model, options.kernels, self.causal)
        self.longest_packed = longest_packed(model.config)
        has_own_head = model.base_model is not model
        if not has_own_head and self.causal and self.pooling != "last":
            raise InputError(
                f"{type(model).__name__} is a decoder, whose tokens do not see those behind them, so their {self.pooling} says little of a text; set pooling to last, or take an encoder",
                option="pooling",
            )
        self.padding_index = padding_index(model)
        self.frozen_base: FrozenBase | None = None
        if options.lora is not None:
            if options.dtype == "bfloat16":
                cast_base(model, torch.bfloat16)  # now, as trials are exact in float32 only
            self.frozen_base = FrozenBase.from_model(model)
            leave_base_out_of_checkpoints(self)
        if options.compile:
            # Layers are alike, so torch.compile reuses the code of the first for all. A copy by
            # copy.deepcopy runs eagerly.
            for layer in layers_of(model):
                layer.compile(dynamic=True)

    def forward(self, texts: Texts) -> Tensor:
        """Pooled representations ``[S, H]`` float32."""
        read_chunk = partial(read_pooled, self.model, pooling=self.pooling)
        return self._read(texts, read_chunk, self.model.config.hidden_size)

    def logits(self, texts: Texts) -> Tensor:
        """Scores ``[S]`` float32 of a ready cross-encoder's own head."""
        read_chunk = partial(read_logits, self.model)
        return self._read(texts, read_chunk)

    def check_packed(self, dtype: torch.dtype | None) -> PathCheck:
        """Compare packed with padded reading on this device.

        Args:
            dtype: of autocast; None: without.

        An encoder does so by itself before it first reads on a GPU, in each precision, with and
        without gradients; see ``ltr.models.encoder.self_check``.
        """
        packed_attention = PACKED_ATTENTION[self.options.kernels]
        # Compiling takes minutes, and a check is done once.
        eager = torch.compiler.set_stance("force_eager") if self.options.compile else nullcontext()
        with eager:
            return compare_packed(
                self.model, self._padded_attention, dtype, packed_attention, self.causal
            )

    @contextmanager
    def merged(self) -> Iterator[None]:
        """Inside the block the adapters, if there are any, are part of the model's weights, and the
        state dict has all of these.
        """
        base = self.frozen_base
        if base is None:
            yield
            return
        with merged_adapters(self.model):
            self.frozen_base = None
            try:
                yield
            finally:
                self.frozen_base = base

    def padding_share(self, texts: Texts) -> float | None:
        """See :meth:`ltr.models.Ranker.padding_share`. None where there never is any; 0 where only
        longer texts than these would be padded.
        """
        is_packed = self._packs(texts)
        if is_packed and texts.ids.device.type != "cpu":
            return None if self.longest_packed is None else 0.0
        lengths = texts.lengths_on_host().tolist()
        return share_of_padding(lengths, self._chunk_tokens(texts), is_packed)

    def _read(self, texts: Texts, read_chunk: Callable[[Chunk], Tensor], *size: int) -> Tensor:
        """Read the texts chunk by chunk: ``[S, *size]`` in their order, of the ``[C, *size]`` that
        each chunk gives. ``size`` is H for a vector, and nothing for a score.
        """
        n_texts = len(texts.lengths)
        if n_texts == 0:
            return self._empty_output(*size)
        if self.training and texts.keys is None:
            texts = texts._replace(keys=new_keys(n_texts, texts.ids.device))
        read_chunk = partial(self._read_chunk, read_chunk)
        if self.reads_packed and texts.ids.device.type in CHECKS_ITSELF:
            self._check_once(texts.ids.device.type)
        chunks = self._chunks(texts)
        n_recomputed = self._count_recomputed(chunks)
        outputs = []
        for chunk in chunks[:n_recomputed]:
            # It keeps the state of random draws, which no key stands for where an architecture calls
            # torch's dropout by itself, as XLM's does. No launch and no wait follows from it.
            output = checkpoint(_read_recomputed, read_chunk, chunk, use_reentrant=False)
            outputs.append(output)
        for chunk in chunks[n_recomputed:]:
            outputs.append(read_chunk(chunk))
        # Chunks hold texts in order of their lengths.
        rows = _joined([chunk.rows for chunk in chunks])
        sorted_outputs = _joined(outputs)
        return torch.empty_like(sorted_outputs).index_copy_(0, rows, sorted_outputs)

    def _read_chunk(self, read_chunk: Callable[[Chunk], Tensor], chunk: Chunk) -> Tensor:
        """Read a chunk with the masks of its texts, where it is read with dropout."""
        if chunk.keys is None:
            return read_chunk(chunk)
        token_keys = chunk.token_keys()
        layout = chunk.inputs.get("packed_layout")
        if layout is not None:
            layout = replace(layout, draw=partial(self.draws.draw_for, chunk.keys, token_keys))
            chunk = chunk._replace(inputs=chunk.inputs | {"packed_layout": layout})
        with self.draws.drawing_for(chunk.keys, token_keys):
            return read_chunk(chunk)

    def _empty_output(self, *size: int) -> Tensor:
        """``[0, *size]``, by which every weight gets a gradient of 0. Other processes wait for one
        from this process, whatever it has to read.
        """
        nothing = torch.zeros(0, *size, device=self.model.device)
        for weight in self.model.parameters():
            nothing = nothing + weight.flatten()[:0].sum()
        return nothing

    def _check_once(self, device: str) -> None:
        """Read padded texts from here on if packed ones are wrong in the caller's precision."""
        # Under DDP each process decides for itself, without a collective call. They need not agree:
        # both ways compute the same function of the same parameters, and neither communicates.
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        situation = (device, dtype, torch.is_grad_enabled())
        if situation in self._checked:
            return
        self._checked.add(situation)
        fault = self.check_packed(dtype).fault
        if fault:
            self.reads_packed = False
            self.model.set_attn_implementation(self._padded_attention)
            log.warning(
                "%s on %s in %s: packed texts %s; from here on texts are padded",
                type(self.model).__name__,
                device,
                str(dtype or torch.float32).removeprefix("torch."),
                fault,
            )

    def _count_recomputed(self, chunks: Sequence[Chunk]) -> int:
        """How many chunks, from the first one on, are computed again in the backward pass.

        The last chunks are kept, as many as have ``keep_tokens`` tokens together: the backward pass
        begins with these. The very last one is always kept.
        """
        keep_tokens = self.options.keep_tokens
        if keep_tokens is None or not torch.is_grad_enabled():
            return 0
        n_kept = 0
        kept_tokens = 0
        for chunk in reversed(chunks):
            kept_tokens += chunk.inputs["input_ids"].numel()
            if n_kept > 0 and kept_tokens > keep_tokens:
                break
            n_kept += 1
        return len(chunks) - n_kept

    def _chunks(self, texts: Texts) -> list[Chunk]:
        max_tokens = self._chunk_tokens(texts)
        if self._packs(texts):
            return list(packed_chunks(texts, max_tokens, self.padding_index, self.causal))
        return list(padded_chunks(texts, max_tokens, self.pad_id))

    def _packs(self, texts: Texts) -> bool:
        """Whether these texts are read without padding."""
        if not self.reads_packed or self.longest_packed is None:
            return self.reads_packed
        return bool((texts.lengths_on_host() <= self.longest_packed).all())

    def _chunk_tokens(self, texts: Texts) -> int:
        if self.options.max_tokens is not None:
            return self.options.max_tokens
        tokens_by_device = CHUNK_TOKENS
        if self.options.keep_tokens is not None:
            tokens_by_device = RECOMPUTED_CHUNK_TOKENS
        return tokens_by_device.get(texts.ids.device.type, tokens_by_device["cuda"])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """All rows; those of a single part without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _read_recomputed(read_chunk: Callable[[Chunk], Tensor], chunk: Chunk) -> Tensor:
    """Read a chunk without keeping its activations.

    It runs in the forward pass, which keeps nothing, and again in the backward pass, one chunk after
    the other: the activations of one are freed before the next is read.
    """
    # Autocast keeps one half-precision copy of each weight, in which the gradients of all chunks
    # would add up. A copy for each chunk, freed with its activations, lets them add up in float32.
    torch.clear_autocast_cache()
    if _malloc_trim is not None and chunk.rows.device.type == "cpu":
        _malloc_trim(0)
    with gelu_keeps_output():
        return read_chunk(chunk)


def encoders_of(ranker: nn.Module) -> list[TextEncoder]:
    """All encoders inside, those of the queries first."""
    return [module for module in ranker.modules() if isinstance(module, TextEncoder)]


@contextmanager
def merged(ranker: nn.Module) -> Iterator[None]:
    """Inside the block no encoder inside has adapters, see :meth:`TextEncoder.merged`."""
    with ExitStack() as stack:
        for encoder in encoders_of(ranker):
            stack.enter_context(encoder.merged())
        yield
