"""The words of texts as numbers: which texts are equal but for case, punctuation and white space, and
how many of their words two texts share.
"""

import hashlib
import unicodedata
from array import array
from collections.abc import Iterable, Iterator

import numpy as np

from ltr.data.bm25 import terms
from ltr.data.strings import Strings

BYTES_AT_ONCE = 1 << 24  # of the texts that are in memory as strings
KNOWN_WORDS = 1 << 20  # whose numbers are kept while texts are read
ELEMENTS_AT_ONCE = 1 << 22  # of the words of pairs that are compared


def normalised(text: str) -> list[str]:
    """The words of a text after NFKC, without case and punctuation; Chinese and Japanese as single
    characters and pairs of neighbours. A text of no word is one word itself.

    >>> normalised("What is  ＤＮＡ?"), normalised("?!")
    (['what', 'is', 'dna'], ['?!'])
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return terms(text.casefold()) or ["".join(text.split())]


class WordSets:
    """The sets of words of N texts, which weigh more the fewer texts have them.

    Words weigh 1, 2 or 3: a word that at most N^(2/3) texts have weighs 2, at most N^(1/3) weighs 3.
    So two questions of one pattern about different things are not near to each other, though they
    share most of their words.

    Attributes:
        keys: ``[N]`` uint64, equal for texts with the same words in the same order.
        offsets: ``[N + 1]`` int64; the words of text i stand from offsets[i] to offsets[i + 1].
        words: ``[W]`` uint32, hashes of the distinct words of each text, ascending.
        weights: ``[W]`` uint8, of the words.
        sizes: ``[N]`` int64, the sum of the weights of each text.
    """

    def __init__(self, keys: np.ndarray, offsets: np.ndarray, words: np.ndarray) -> None:
        self.keys = keys
        self.offsets = offsets
        self.words = words
        n_texts = len(keys)
        self._vocabulary, numbers, n_with = np.unique(
            words, return_inverse=True, return_counts=True
        )
        cubes = n_with.astype(np.float64) ** 3
        self._weight_of = np.ones(len(n_with), np.uint8)
        self._weight_of += cubes <= float(n_texts) ** 2
        self._weight_of += cubes <= n_texts
        self.weights = self._weight_of[numbers]
        self.sizes = np.zeros(n_texts, np.int64)
        if n_texts:
            self.sizes = np.add.reduceat(self.weights, offsets[:-1], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, parts: Iterable[tuple[Strings, np.ndarray]]) -> "WordSets":
        """Of the texts of tables, one table after the other.

        Args:
            parts: of each table its texts, and which of them: ``[n]`` int64, ascending.
        """
        keys = array("Q")
        counts = array("q", [0])
        words = array("I")
        number_of = _Numbers()
        for strings, rows in parts:
            for text in _texts(strings, rows):
                of_text = normalised(text)
                whole = hashlib.blake2b(" ".join(of_text).encode(), digest_size=8).digest()
                keys.append(int.from_bytes(whole, "little"))
                distinct = sorted({number_of[word] for word in of_text})
                counts.append(len(distinct))
                words.extend(distinct)
                if len(number_of) > KNOWN_WORDS:
                    number_of.clear()
        return cls(
            np.frombuffer(keys, np.uint64),
            np.cumsum(np.frombuffer(counts, np.int64)),
            np.frombuffer(words, np.uint32),
        )

    def take(self, texts: np.ndarray) -> "WordSets":
        """The sets of some texts ``[n]``; words weigh by how many of these have them."""
        places, offsets = self._places(texts)
        return WordSets(self.keys[texts], offsets, self.words[places])

    def elements(self, texts: slice) -> tuple[np.ndarray, np.ndarray]:
        """The sets of a span of texts with each word as often as it weighs: ``[E]`` uint32 hashes,
        all different within a text, and where each text begins among them.
        """
        begin, end = self.offsets[texts.start], self.offsets[texts.stop]
        weights = self.weights[begin:end]
        starts = np.cumsum(weights, dtype=np.int64) - weights
        copies = np.arange(int(weights.sum())) - np.repeat(starts, weights)
        hashes = np.repeat(self.words[begin:end], weights) + copies.astype(np.uint32) * np.uint32(
            0x9E3779B9
        )
        return hashes, starts[self.offsets[texts] - begin]

    def similarities(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """``[P]`` float64: of each pair of texts, the weight of the words that both have over that
        of the words that either has, from 0 to 1 (the Jaccard index of :meth:`elements`).
        """
        n_words = np.diff(self.offsets)
        similarities = np.empty(len(first))
        ends = np.cumsum(n_words[first] + n_words[second])
        span_of_pair = ends // ELEMENTS_AT_ONCE
        cuts = np.flatnonzero(np.diff(span_of_pair)) + 1
        for pairs in np.split(np.arange(len(first)), cuts):
            similarities[pairs] = self._similarities(first[pairs], second[pairs])
        return similarities

    def _similarities(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        tagged = []
        for texts in (first, second):
            places, offsets = self._places(texts)
            pairs = np.repeat(np.arange(len(texts), dtype=np.uint64), np.diff(offsets))
            tagged.append((pairs << np.uint64(32)) | self.words[places])
        both = np.sort(np.concatenate(tagged))
        shared = both[1:][both[1:] == both[:-1]]  # a text has each of its words once
        weights = self._weight_of[np.searchsorted(self._vocabulary, shared.astype(np.uint32))]
        pair_of_shared = (shared >> np.uint64(32)).astype(np.int64)
        common = np.bincount(pair_of_shared, weights, minlength=len(first))
        return common / (self.sizes[first] + self.sizes[second] - common)

    def _places(self, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the words of some texts stand, end to end, and the offsets of the texts there."""
        counts = np.diff(self.offsets)[texts]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        shifts = self.offsets[texts] - offsets[:-1]
        return np.arange(offsets[-1]) + np.repeat(shifts, counts), offsets


class _Numbers(dict[str, int]):
    """The hash of each word, 32 bits."""

    def __missing__(self, word: str) -> int:
        digest = hashlib.blake2b(word.encode(), digest_size=4).digest()
        number = int.from_bytes(digest, "little")
        self[word] = number
        return number


def _texts(strings: Strings, rows: np.ndarray) -> Iterator[str]:
    """The texts of some rows, ascending; whole spans of the file are read at once."""
    for span in strings.spans(BYTES_AT_ONCE):
        first, last = np.searchsorted(rows, [span.start, span.stop])
        if first == last:
            continue
        of_span = strings.between(span.start, span.stop)
        for row in (rows[first:last] - span.start).tolist():
            yield of_span[row]
