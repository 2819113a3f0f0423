"""An encoder over ragged texts, as every ranker of texts uses it: all texts of a batch in one pass."""

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ltr.batch import Texts
from ltr.errors import InputError
from ltr.models.packed import Packed, enable_packing, first_position, hidden_states, logits, packed_chunks, pool
from ltr.models.padding import PaddedChunk, padded_chunks, padding_share

# Tokens per chunk, padding counted. Measured on 2 CPU cores: larger ones gain nothing, and temporaries of these fit the cache;
# a GPU wants few, large kernels.
CHUNK_TOKENS = {"cpu": 2048, "cuda": 65536}
RECOMPUTED_TOKENS = {"cpu": 2048, "cuda": 8192}  # where chunks are there to save memory

# glibc keeps what was freed, and as chunks have buffers of many sizes its heap grows with their number. Others have no such call.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


class TextEncoder(nn.Module):
    """A pretrained encoder that reads texts end to end, without padding, where it can; else in padded chunks.

    The texts are sorted by length and cut into chunks of at most ``max_tokens`` tokens; outputs come in the order of the texts.

    Args:
        model: an encoder of transformers, or a ready cross-encoder (with a head of its own).
        pad_id: what a padded chunk is filled with.
        pooling: ``mean`` over the tokens of a text, ``cls``: the first one, or ``max`` over them in each dimension.
        max_tokens: of a chunk; None: 2,048 on a CPU, 65,536 on a GPU, or 8,192 there with ``keep_tokens``.
        keep_tokens: activations of so many tokens are kept, but always those of the last chunk, and those of the other chunks
            computed again in the backward pass; None: of all. The activations' memory then grows with ``keep_tokens`` and
            ``max_tokens``, not with the batch, for up to a third more time. Gradients stay the same, dropout included.
        compile: run the encoder's layers through ``torch.compile``; the first steps then take minutes. A copy is not compiled.

    Attributes:
        reads_packed: whether the encoder reads texts end to end.

    Raises:
        InputError: for another pooling, a max_tokens below 1, a keep_tokens below 0, or a model that can't read texts in batches.
    """

    def __init__(
        self,
        model: nn.Module,
        pad_id: int = 0,
        pooling: Literal["mean", "cls", "max"] = "mean",
        max_tokens: int | None = None,
        keep_tokens: int | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__()
        if pooling not in ("mean", "cls", "max"):
            raise InputError(f"pooling must be 'mean', 'cls' or 'max', got {pooling!r} (option model.init_args.pooling)")
        if max_tokens is not None and max_tokens < 1:
            raise InputError(f"max_tokens must be at least 1, got {max_tokens} (option model.init_args.max_tokens)")
        if keep_tokens is not None and keep_tokens < 0:
            raise InputError(f"keep_tokens must be at least 0, got {keep_tokens} (option model.init_args.keep_tokens)")
        self.model, self.pad_id, self.pooling = model, pad_id, pooling
        self.max_tokens, self.keep_tokens = max_tokens, keep_tokens
        self.reads_packed = enable_packing(model)
        self.first_position = first_position(model)
        if compile:
            for layer in _layers(model):
                layer.compile(dynamic=True)

    def forward(self, texts: Texts) -> Tensor:
        """Pooled representations ``[S, H]`` float32."""
        return self._read(texts, pooled=True)

    def logits(self, texts: Texts) -> Tensor:
        """Scores ``[S]`` float32 of a ready cross-encoder's own head."""
        return self._read(texts, pooled=False)

    def padding_share(self, texts: Texts) -> float:
        """Share of padding among the tokens that the encoder sees of these texts."""
        return 0.0 if self.reads_packed else padding_share(texts.lengths.tolist(), self._chunk_tokens(texts))

    def _read(self, texts: Texts, pooled: bool) -> Tensor:
        if not len(texts.lengths):
            return torch.zeros((0, self.model.config.hidden_size) if pooled else 0, device=texts.ids.device)
        chunks = list(self._chunks(texts))
        read = partial(self._read_packed if self.reads_packed else self._read_padded, pooled=pooled)
        outputs = []
        recomputed = self._recomputed(chunks)
        for chunk in chunks[:recomputed]:
            outputs.append(checkpoint(partial(_read_alone, read), chunk, use_reentrant=False))
        outputs += [read(chunk) for chunk in chunks[recomputed:]]
        return torch.cat(outputs)[torch.cat([chunk.rows for chunk in chunks]).argsort()]

    def _recomputed(self, chunks: Sequence[Packed | PaddedChunk]) -> int:
        """How many chunks are computed again. The backward pass begins with the last ones, so these are kept: of the very last
        one it would save nothing to drop the activations.
        """
        if self.keep_tokens is None or not torch.is_grad_enabled():
            return 0
        kept = accumulate(chunk.input_ids.numel() for chunk in reversed(chunks))
        return len(chunks) - max(1, sum(tokens <= self.keep_tokens for tokens in kept))

    def _chunks(self, texts: Texts) -> Iterator[Packed] | Iterator[PaddedChunk]:
        if self.reads_packed:
            return packed_chunks(texts, self._chunk_tokens(texts), self.first_position)
        return padded_chunks(texts, self.pad_id, self._chunk_tokens(texts))

    def _chunk_tokens(self, texts: Texts) -> int:
        by_device = CHUNK_TOKENS if self.keep_tokens is None else RECOMPUTED_TOKENS
        return self.max_tokens or by_device.get(texts.ids.device.type, by_device["cuda"])

    def _read_packed(self, chunk: Packed, pooled: bool) -> Tensor:
        if pooled:
            return pool(hidden_states(self.model, chunk), chunk.lengths, self.pooling)
        return logits(self.model, chunk)

    def _read_padded(self, chunk: PaddedChunk, pooled: bool) -> Tensor:
        types = {} if chunk.token_type_ids is None else {"token_type_ids": chunk.token_type_ids}
        output = self.model(input_ids=chunk.input_ids, attention_mask=chunk.attention_mask, **types)
        if not pooled:
            return output.logits[:, 0].float()
        real = chunk.attention_mask.bool()  # padding lies at the right: what is real lies as in a packed chunk
        return pool(output.last_hidden_state[real], chunk.attention_mask.sum(dim=1), self.pooling)


def _read_alone(read: Callable[[Packed | PaddedChunk], Tensor], chunk: Packed | PaddedChunk) -> Tensor:
    """Read a chunk, in the backward pass again, when the activations of the one before are gone."""
    # Autocast keeps one half-precision copy of each weight, and the gradients of all chunks would add up in it: with a copy for
    # each chunk, which is given up with its activations, they add up in float32.
    torch.clear_autocast_cache()
    if _trim is not None and chunk.rows.device.type == "cpu":
        _trim(0)
    return read(chunk)


def _layers(model: nn.Module) -> nn.ModuleList:
    """The encoder's layers: compiled one by one they are compiled once, since all are alike."""
    return max((m for m in model.modules() if isinstance(m, nn.ModuleList)), key=len)
