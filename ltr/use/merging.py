"""Adapters become part of a ranker's weights, and the scores before and after are compared."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from ltr.data.layouts import ApartTexts
from ltr.models import Ranker
from ltr.models.encoder.text_encoder import encoders_of, merged
from ltr.use.rankers import TextRanker

# What is scored: lists of texts of words that are drawn from the vocabulary.
N_LISTS = 16
N_DOCUMENTS = 16
WORDS_OF_QUERY = 4  # few, so that it leaves room for a document
MOST_WORDS = 96  # of a document


class MergedScores(NamedTuple):
    """How the scores of merged adapters compare with those of adapters beside the weights.

    Attributes:
        difference: the largest one of two scores of a pair.
        n_scores: how many pairs were compared.
        n_lists: how many lists they are in.
        n_reordered: lists that have another order.
        dtype: what the merged weights were cast to; None: they stay float32.
    """

    difference: float
    n_scores: int
    n_lists: int
    n_reordered: int
    dtype: str | None = None

    def __str__(self) -> str:
        order = f"the order of all {self.n_lists} lists stays"
        if self.n_reordered:
            order = f"{self.n_reordered} of {self.n_lists} lists have another order"
        done = "merged" if self.dtype is None else f"merged and cast to {self.dtype}"
        return f"adapters are {done}: of {self.n_scores} pairs the scores differ by {self.difference:.1e} at most, {order}"


def base_dtype(ranker: Ranker) -> str | None:
    """The type of the weights beside the adapters of a ranker; None: float32."""
    dtypes = {encoder.options.dtype for encoder in encoders_of(ranker)}
    return "bfloat16" if "bfloat16" in dtypes else None


def store_in_bfloat16(folder: Path) -> None:
    """Let the files of weights in a folder hold each tensor as bfloat16 that this does not change:
    those of a base in bfloat16, into which adapters were merged.

    ``config.json`` still says float32: whoever loads the folder computes as before.
    """
    for file in sorted(folder.rglob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata()
        tensors = load_file(file)
        for name, tensor in tensors.items():
            rounded = tensor.to(torch.bfloat16)
            if tensor.dtype == torch.float32 and torch.equal(rounded.float(), tensor):
                tensors[name] = rounded
        # The tensors that are read lie in the file itself.
        temporary = file.with_suffix(".rounded")
        save_file(tensors, temporary, metadata)
        os.replace(temporary, file)


def has_adapters(ranker: Ranker) -> bool:
    """Whether an encoder of a ranker has adapters."""
    return any(encoder.frozen_base is not None for encoder in encoders_of(ranker))


@contextmanager
def merged_and_compared(ranker: TextRanker) -> Iterator[MergedScores]:
    """Inside the block the adapters of a ranker are part of its weights. Gives how the scores differ
    from those of before.
    """
    reads = ranker.reads
    lists = _lists((reads.queries if isinstance(reads, ApartTexts) else reads).tokenizer)
    before = _scores(ranker, lists)
    with merged(ranker.model):
        after = _scores(ranker, lists)
        reordered = np.argsort(-before, kind="stable") != np.argsort(-after, kind="stable")
        yield MergedScores(
            float(np.abs(after - before).max()),
            before.size,
            len(before),
            int(reordered.any(axis=1).sum()),
            base_dtype(ranker.model),
        )


def _lists(tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, list[str]]]:
    """Queries, each with its documents."""
    generator = torch.Generator().manual_seed(0)
    special = set(tokenizer.all_special_ids)
    ids = [number for number in sorted(tokenizer.get_vocab().values()) if number not in special]

    def text(n_words: int) -> str:
        places = torch.randint(len(ids), (n_words,), generator=generator).tolist()
        # A token of a byte-level vocabulary may be a control character, which no text may hold.
        return tokenizer.decode([ids[place] for place in places]).replace("\0", " ")

    lists = []
    for _ in range(N_LISTS):
        lengths = torch.randint(1, MOST_WORDS + 1, (N_DOCUMENTS,), generator=generator).tolist()
        lists.append((text(WORDS_OF_QUERY), [text(length) for length in lengths]))
    return lists


@torch.no_grad()
def _scores(ranker: TextRanker, lists: list[tuple[str, list[str]]]) -> np.ndarray:
    """``[lists, documents]``."""
    pairs = [(query, document) for query, documents in lists for document in documents]
    return ranker.score(pairs).reshape(len(lists), -1)
