"""Adapters become part of a ranker's weights, and the scores before and after are compared."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ltr.data.formats import ApartTexts
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
    """

    difference: float
    n_scores: int
    n_lists: int
    n_reordered: int

    def __str__(self) -> str:
        order = f"the order of all {self.n_lists} lists stays"
        if self.n_reordered:
            order = f"{self.n_reordered} of {self.n_lists} lists have another order"
        return f"adapters are merged: of {self.n_scores} pairs the scores differ by {self.difference:.1e} at most, {order}"


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
        )


def _lists(tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, list[str]]]:
    """Queries, each with its documents."""
    generator = torch.Generator().manual_seed(0)
    special = set(tokenizer.all_special_ids)
    ids = [number for number in sorted(tokenizer.get_vocab().values()) if number not in special]

    def text(n_words: int) -> str:
        places = torch.randint(len(ids), (n_words,), generator=generator).tolist()
        return tokenizer.decode([ids[place] for place in places])

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
