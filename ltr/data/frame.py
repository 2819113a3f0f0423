"""Where a tokenizer puts its special tokens, and texts of token ids put in between them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ltr.batch import Texts
from ltr.errors import InputError


class TokenColumn(NamedTuple):
    """Token ids for each of S texts: S buffers, and how many tokens each holds, ``[S]`` int64."""

    views: Sequence[memoryview | bytes]
    lengths: np.ndarray


class FramePart(NamedTuple):
    """A stretch of what a tokenizer makes of a text or of a pair: special tokens of one type, or the
    slot in which a text stands.
    """

    slot: int | None  # 0 for the first text, 1 for the second one of a pair, None: special tokens
    type: int  # the token type of all its tokens
    ids: list[int]  # used for special tokens only


class Frame:
    """Which special tokens stand where, and which part has which type. It is read off what the
    tokenizer makes of an example: one text, or two for a pair.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *example: str) -> None:
        encoding = tokenizer(*example, truncation=False)
        slots = encoding.sequence_ids()
        ids = encoding["input_ids"]
        types = encoding.get("token_type_ids", [0] * len(ids))
        self.has_types = "token_type_ids" in tokenizer.model_input_names
        self.n_special = slots.count(None)
        for slot in range(len(example)):
            if slot not in slots:
                raise InputError(
                    f"the tokenizer must know {example[0]!r}, to find its special tokens, got no token for it"
                )
        self._parts: list[FramePart] = []
        for slot, type_, token_id in zip(slots, types, ids, strict=True):
            if self._parts and self._parts[-1][:2] == (slot, type_):
                self._parts[-1].ids.append(token_id)
            else:
                self._parts.append(FramePart(slot, type_, [token_id]))

    def fill(self, *slots: TokenColumn, dtype: np.dtype) -> Texts:
        """Put token ids in the place of the example's texts, and lay all S texts end to end.

        Args:
            slots: for each text of the example the column that takes its place.
            dtype: of the token ids.
        """
        n_texts = len(slots[0].lengths)
        columns: list[TokenColumn] = []  # from the left to the right of each text
        for part in self._parts:
            if part.slot is None:
                special = np.asarray(part.ids, dtype=dtype).tobytes()
                columns.append(TokenColumn([special] * n_texts, np.full(n_texts, len(part.ids))))
            else:
                columns.append(slots[part.slot])
        types = [part.type for part in self._parts]
        # All spans of the first text, then all of the second: buffers[t * n_columns + n] is the
        # span that column n has for text t.
        n_columns = len(columns)
        buffers: list[memoryview | bytes] = [b""] * (n_texts * n_columns)
        for n, column in enumerate(columns):
            buffers[n::n_columns] = column.views
        # Joining buffers takes half the time of copying slices between arrays; an index for every
        # token takes longer still.
        ids = np.frombuffer(b"".join(buffers), dtype=dtype).astype(np.int64)
        lengths = np.stack([column.lengths for column in columns], axis=1)
        type_ids = None
        if self.has_types:
            type_ids = torch.from_numpy(np.repeat(np.tile(types, n_texts), lengths.ravel()))
        lengths_of_texts = lengths.sum(axis=1)
        return Texts(
            ids=torch.from_numpy(ids),
            lengths=torch.from_numpy(lengths_of_texts),
            type_ids=type_ids,
            host_lengths=lengths_of_texts,
        )
