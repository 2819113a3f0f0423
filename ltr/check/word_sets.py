"""The words of texts as numbers: which texts are equal but for case, punctuation and white space, and
how many of their words two texts share.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
from scipy import sparse

from ltr.data.strings import Strings
from ltr.data.terms import folded, terms
from ltr.spans import spans

BYTES_AT_ONCE = 1 << 24  # of a file that is read
KNOWN_WORDS = 1 << 20  # whose hashes are kept while texts are read
WORDS_OF_TEXTS = 1 << 16  # that are turned into numbers together
WORDS_AT_ONCE = 1 << 22  # that are looked up together
WORDS_OF_PAIRS = 1 << 19  # that are compared together: they fit into the cache


def words_of(text: str) -> list[str]:
    """The words of a text as BM25 has them (:func:`ltr.data.terms.terms`). A text of no word is one
    word itself.

    >>> words_of("What is  ＤＮＡ?"), words_of("?!")
    (['what', 'is', 'dna'], ['?!'])
    """
    return terms(text) or ["".join(folded(text).split())]


class WordSets:
    """The sets of words of N texts, which weigh more the fewer texts have them.

    Words weigh 1, 2 or 3: a word that at most N^(2/3) texts have weighs 2, at most N^(1/3) weighs 3.
    So two questions of one pattern about different things are not near to each other, though they
    share most of their words.

    Attributes:
        keys: ``[N]`` uint64, equal for texts with the same words in the same order.
        offsets: ``[N + 1]`` int64; the words of text i stand from offsets[i] to offsets[i + 1].
        words: ``[W]`` int32, the distinct words of each text, ascending: numbers in the vocabulary.
        vocabulary: ``[V]`` uint32, hashes of the words, ascending.
        weights: ``[V]`` uint8, of the words of the vocabulary.
        sizes: ``[N]`` int64, the sum of the weights of each text.
    """

    def __init__(
        self, keys: np.ndarray, offsets: np.ndarray, words: np.ndarray, vocabulary: np.ndarray
    ) -> None:
        self.keys = keys
        self.offsets = offsets
        self.words = words
        self.vocabulary = vocabulary
        n_texts = len(keys)
        n_with = np.zeros(len(vocabulary), np.int64)
        for span in spans(len(words), WORDS_AT_ONCE):
            n_with += np.bincount(words[span], minlength=len(vocabulary))
        # n is at most N^(2/3) where n^3 is at most N^2, and at most N^(1/3) where n^3 is at most N.
        cubes = n_with.astype(np.float64) ** 3
        self.weights = np.ones(len(vocabulary), np.uint8)
        self.weights += cubes <= float(n_texts) ** 2
        self.weights += cubes <= n_texts
        self.sizes = np.zeros(n_texts, np.int64)
        for span in self.text_spans(WORDS_AT_ONCE):
            begin = self.offsets[span.start]
            weights = self.weights[self.words[begin : self.offsets[span.stop]]]
            starts = self.offsets[span] - begin
            self.sizes[span] = np.add.reduceat(weights, starts, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def from_tables(cls, tables: Iterable[tuple[Strings, np.ndarray]]) -> "WordSets":
        """Of the texts of tables, one table after the other.

        Args:
            tables: of each its texts, and which of them: ``[n]`` int64, ascending.
        """
        keys = array("Q")
        counts = array("q")
        hashes = array("I")
        hash_of = _Hashes()
        forgotten = [np.empty(0, np.uint32)]  # hashes of words that hash_of does not have any more
        for word_lists in _word_list_blocks(tables):
            keys.extend(map(_key, word_lists))
            n_words = [len(words) for words in word_lists]
            hash_of_each_word = map(hash_of.__getitem__, chain.from_iterable(word_lists))
            # The number of the text in the upper 32 bits, the hash of the word in the lower ones.
            numbers = np.fromiter(hash_of_each_word, np.uint64, sum(n_words))
            text_numbers = np.arange(len(word_lists), dtype=np.uint64)
            numbers |= np.repeat(text_numbers << np.uint64(32), n_words)
            # By text, then by hash; of equal ones the first is kept.
            numbers.sort()
            distinct = numbers[np.append(True, numbers[1:] != numbers[:-1])]
            n_distinct = np.bincount((distinct >> np.uint64(32)).astype(np.int64))
            counts.frombytes(n_distinct.astype(np.int64).tobytes())
            hashes.frombytes(distinct.astype(np.uint32).tobytes())  # without the number of the text
            if len(hash_of) > KNOWN_WORDS:
                forgotten.append(np.fromiter(hash_of.values(), np.uint32))
                hash_of.clear()
        vocabulary = np.fromiter(hash_of.values(), np.uint32)
        vocabulary = np.unique(np.concatenate([*forgotten, vocabulary]))
        words = np.frombuffer(hashes, np.uint32)
        # Places in the vocabulary are written over the hashes: a large corpus has many words.
        places = words.view(np.int32)
        for span in spans(len(words), WORDS_AT_ONCE):
            places[span] = np.searchsorted(vocabulary, words[span])
        offsets = np.concatenate([[0], np.cumsum(np.frombuffer(counts, np.int64))])
        return cls(np.frombuffer(keys, np.uint64), offsets, places, vocabulary)

    def take(self, texts: np.ndarray) -> "WordSets":
        """The sets of some texts ``[n]``; words weigh by how many of these have them."""
        counts = np.diff(self.offsets)[texts]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        shifts = self.offsets[texts] - offsets[:-1]
        words = np.empty(offsets[-1], np.int32)
        for span in _spans_of_size(offsets, WORDS_AT_ONCE):
            begin, end = offsets[span.start], offsets[span.stop]
            places = np.arange(begin, end) + np.repeat(shifts[span], counts[span])
            words[begin:end] = self.words[places]
        return WordSets(self.keys[texts], offsets, words, self.vocabulary)

    def text_spans(self, n_words: int) -> Iterator[slice]:
        """Spans of texts that have about so many words together, a text at least."""
        return _spans_of_size(self.offsets, n_words)

    def elements(self, span: slice) -> tuple[np.ndarray, np.ndarray]:
        """The sets of a span of texts with each word as often as it weighs: ``[E]`` uint32 hashes,
        all different within a text, and where each text begins among them.
        """
        begin = self.offsets[span.start]
        words = self.words[begin : self.offsets[span.stop]]
        weights = self.weights[words]
        starts = np.cumsum(weights, dtype=np.int64) - weights
        copies = np.arange(int(weights.sum())) - np.repeat(starts, weights)
        hashes = np.repeat(self.vocabulary[words], weights)
        # Copies of a word become other hashes: multiples of the golden ratio lie far apart.
        hashes += copies.astype(np.uint32) * np.uint32(0x9E3779B9)
        return hashes, starts[self.offsets[span] - begin]

    def similarities(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """``[P]`` float64: of each pair of texts, the weight of the words that both have over that
        of the words that either has, from 0 to 1 (the Jaccard index of :meth:`elements`).
        """
        n_words = np.diff(self.offsets)
        ends = np.cumsum(n_words[first] + n_words[second])
        common = np.empty(len(first), np.int64)
        for pairs in _spans_of_size(np.concatenate([[0], ends]), WORDS_OF_PAIRS):
            # A word that one of them does not have weighs 0 there.
            both = self._weighed[first[pairs]].minimum(self._weighed[second[pairs]])
            n_before = np.concatenate([[0], np.cumsum(both.data, dtype=np.int64)])
            common[pairs] = n_before[both.indptr[1:]] - n_before[both.indptr[:-1]]
        return common / (self.sizes[first] + self.sizes[second] - common)

    @cached_property
    def _weighed(self) -> sparse.csr_array:
        """``[N, V]``: the weight of each word in each text that has it."""
        weights = np.empty(len(self.words), np.uint8)
        for span in spans(len(self.words), WORDS_AT_ONCE):
            weights[span] = self.weights[self.words[span]]
        shape = (len(self), len(self.vocabulary))
        return sparse.csr_array((weights, self.words, self.offsets), shape=shape)


def _spans_of_size(offsets: np.ndarray, size: int) -> Iterator[slice]:
    """Spans of what stands between offsets ``[N + 1]``, of about this size each, one at least."""
    n = len(offsets) - 1
    begins = np.searchsorted(offsets, np.arange(0, int(offsets[-1]), size))
    for begin, end in pairwise(np.unique(np.append(begins, n)).tolist()):
        yield slice(begin, end)


def murmur_finalised(numbers: np.ndarray) -> np.ndarray:
    """The finaliser of MurmurHash3, 32 bits: what datasketch does to a hash before it permutes it."""
    numbers = numbers ^ (numbers >> np.uint32(16))
    numbers = numbers * np.uint32(0x85EBCA6B)
    numbers = numbers ^ (numbers >> np.uint32(13))
    numbers = numbers * np.uint32(0xC2B2AE35)
    return numbers ^ (numbers >> np.uint32(16))


class _Hashes(dict[str, int]):
    """The hash of each word, 32 bits."""

    def __missing__(self, word: str) -> int:
        digest = hashlib.blake2b(word.encode(), digest_size=4).digest()
        number = int.from_bytes(digest, "little")
        self[word] = number
        return number


def _key(words: list[str]) -> int:
    """64 bits that are equal for the same words in the same order."""
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _word_list_blocks(
    tables: Iterable[tuple[Strings, np.ndarray]],
) -> Iterator[list[list[str]]]:
    """The words of the texts of some rows of each table, ascending, for some texts at once."""
    word_lists: list[list[str]] = []
    n_words = 0
    for strings, rows in tables:
        for span in strings.spans_of_bytes(BYTES_AT_ONCE):
            first, last = np.searchsorted(rows, [span.start, span.stop])
            if first == last:
                continue
            span_texts = strings.between(span.start, span.stop)
            for row in (rows[first:last] - span.start).tolist():
                word_lists.append(words_of(span_texts[row]))
                n_words += len(word_lists[-1])
                if n_words >= WORDS_OF_TEXTS:
                    yield word_lists
                    word_lists = []
                    n_words = 0
    if word_lists:
        yield word_lists
