"""Texts of random words that follow Zipf's law, and the files of a data folder."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

VOCABULARY = 200_000
FLATTENING = 2.7  # Mandelbrot's: word r has a probability of 1 / (r + 2.7)
BLOCK = 10_000  # texts made at once
SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvwxyz" for vowel in "aeiou"]


def word(rank: int) -> str:
    """A word for each rank, the frequent ones short: ba, be … zu, baba, babe …"""
    syllable = SYLLABLES[rank % len(SYLLABLES)]
    return syllable if rank < len(SYLLABLES) else word(rank // len(SYLLABLES) - 1) + syllable


def texts(n: int, n_words: int, seed: int) -> Iterator[str]:
    """Texts of random words."""
    words = [word(rank) for rank in range(VOCABULARY)]
    shares = np.cumsum(1 / (np.arange(1, VOCABULARY + 1) + FLATTENING))
    random = np.random.default_rng(seed)
    for first in range(0, n, BLOCK):
        drawn = random.random((min(BLOCK, n - first), n_words)) * shares[-1]
        for ranks in np.searchsorted(shares, drawn).tolist():
            yield " ".join([words[rank] for rank in ranks])


def write_json_lines(file: Path, records: Iterable[tuple[str, str]]) -> None:
    """Ids and texts as a data folder has them."""
    with open(file, "w", encoding="utf-8") as opened:
        for id_, text in records:
            opened.write(json.dumps({"_id": id_, "text": text}) + "\n")
