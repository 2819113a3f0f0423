"""Postings: which documents hold a term, and how often.

Letters of shapes: D documents, T terms that at least one of them holds, P pairs of a document and a
term that it holds.
"""

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path

import numpy as np

from ltr.data.files import map_array
from ltr.data.strings import Strings


class Postings:
    """The postings of some documents as memory maps: a search reads those of its terms alone.

    Args:
        folder: where :meth:`write` has written them.

    Attributes:
        starts: ``[T + 1]`` int64; the postings of term t stand from starts[t] to starts[t + 1].
        docs: ``[P]`` int32: documents by number, ascending within a term.
        counts: ``[P]`` unsigned: how often the document holds the term.
        lengths: ``[D]`` int32: terms of each document, with repetitions.
    """

    def __init__(self, folder: Path) -> None:
        self._terms = Strings(folder, "terms")  # sorted
        # Plain arrays over the maps: a slice of a memmap is a memmap, which costs microseconds.
        self._first_bytes = np.asarray(map_array(folder / "beginnings.npy"))  # [T]
        self.starts = np.asarray(map_array(folder / "starts.npy"))
        self.docs = np.asarray(map_array(folder / "docs.npy"))
        self.counts = np.asarray(map_array(folder / "counts.npy"))
        self.lengths = np.asarray(map_array(folder / "lengths.npy"))

    def numbers_of(self, terms: Sequence[str]) -> np.ndarray:
        """``[len(terms)]`` int64: the number t of each term; −1 for one that no document holds."""
        # Most terms have first bytes of their own, so that few are read to find one.
        first_bytes = first_bytes_of([term.encode("utf-8") for term in terms])
        begins = np.searchsorted(self._first_bytes, first_bytes, side="left").tolist()
        ends = np.searchsorted(self._first_bytes, first_bytes, side="right").tolist()
        term_numbers = np.full(len(terms), -1)
        for place, (term, begin, end) in enumerate(zip(terms, begins, ends, strict=True)):
            number = bisect_left(self._terms, term, begin, end)
            if number < end and self._terms[number] == term:
                term_numbers[place] = number
        return term_numbers

    def n_docs_with(self, term_numbers: np.ndarray) -> np.ndarray:
        """How many documents hold each term, by number; 0 for the number −1."""
        n_docs = self.starts[term_numbers + 1] - self.starts[term_numbers]
        return np.where(term_numbers >= 0, n_docs, 0)

    @staticmethod
    def write(folder: Path, docs: Iterable[Sequence[str]]) -> None:
        """Write the postings of documents, each given by its terms.

        This takes about 50 bytes of memory a word, and 130 more for each different one: that bounds
        how many documents can be written at once.
        """
        # By term its place in the order of appearance; a new one gets the next.
        seen_at: defaultdict[str, int] = defaultdict(count().__next__)
        places = array("i")
        lengths = array("i")
        for terms in docs:
            places.extend(map(seen_at.__getitem__, terms))
            lengths.append(len(terms))
        terms_in_order = sorted(seen_at)
        rank_of_place = np.empty(len(terms_in_order), dtype=np.int64)
        for rank, term in enumerate(terms_in_order):
            rank_of_place[seen_at[term]] = rank
        del seen_at
        encoded_terms = [term.encode("utf-8") for term in terms_in_order]
        Strings.write(folder, "terms", encoded_terms)
        np.save(folder / "beginnings.npy", first_bytes_of(encoded_terms))

        # A word is (term, document) in one number, so that equal words are neighbours once sorted.
        words = rank_of_place[np.frombuffer(places, dtype=np.int32)] << 32
        del places
        words += np.repeat(np.arange(len(lengths)), lengths)
        words.sort()
        is_first = np.append(True, words[1:] != words[:-1])[: len(words)]
        firsts = np.flatnonzero(is_first)
        counts = np.diff(firsts, append=len(words))
        pairs = words[firsts]
        del words, is_first, firsts
        n_docs_with = np.bincount(pairs >> 32, minlength=len(terms_in_order))
        starts = np.concatenate([[0], np.cumsum(n_docs_with)])
        np.save(folder / "starts.npy", starts)
        np.save(folder / "docs.npy", (pairs & 0xFFFFFFFF).astype(np.int32))
        np.save(folder / "counts.npy", counts.astype(np.min_scalar_type(counts.max(initial=0))))
        np.save(folder / "lengths.npy", np.frombuffer(lengths, dtype=np.int32))


def first_bytes_of(terms: list[bytes]) -> np.ndarray:
    """The first 8 bytes of each term; a shorter one ends in zeros, which no term holds."""
    return np.array(terms, dtype="S8")
