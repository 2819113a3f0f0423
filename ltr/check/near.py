"""Texts that share most of their words: candidates by MinHash, which the words themselves confirm."""

import functools
from collections.abc import Iterator

import numpy as np

from ltr.check.parity import Parity
from ltr.check.word_sets import WordSets, murmur_finalised
from ltr.errors import InputError
from ltr.spans import spans

# The largest threshold that datasketch makes bands for; pairs are compared exactly afterwards.
MOST_THRESHOLD = 0.99
# Of the signature of a text. At a threshold of 0.6, datasketch makes 42 bands of 6 of them: a pair at
# 0.6 is missed with a probability of 0.13, one at 0.7 of 0.005.
PERMUTATIONS = 256
# What a missed pair costs the bands, beside one that is looked at for nothing.
LSH_WEIGHTS = (0.1, 0.9)
WORDS_AT_ONCE = 1 << 9  # hashed under all permutations: what comes of them fits into the cache
PAIRS_AT_ONCE = 1 << 20
NEIGHBOURS = 128  # that a text is compared with in a bucket, whatever its size


class NearestTexts:
    """Of each of N texts the nearest one of each of L groups.

    Args:
        groups: ``[N, L]`` bool, the groups that each text is in.

    Attributes:
        similarities: ``[N, L]`` float32, 0 where none is near enough.
        nearest: ``[N, L]`` int64, the nearest text, -1 where none is near enough.
        n_cut: buckets in which not all pairs were compared.
    """

    def __init__(self, groups: np.ndarray) -> None:
        self._groups = groups
        self.similarities = np.zeros(groups.shape, np.float32)
        self.nearest = np.full(groups.shape, -1)
        self.n_cut = 0

    def keep_better(
        self, texts: np.ndarray, partners: np.ndarray, similarities: np.ndarray
    ) -> None:
        """Note the partner of each text ``[P]``, in the groups of the partner, where it is nearer than
        the one before; of equally near ones the first.
        """
        for group in range(self._groups.shape[1]):
            chosen = np.flatnonzero(self._groups[partners, group])
            # Of each text the best pair comes first.
            chosen = chosen[np.lexsort((partners[chosen], -similarities[chosen], texts[chosen]))]
            own_texts, first_places = np.unique(texts[chosen], return_index=True)
            pairs = chosen[first_places]
            similarities_now = similarities[pairs].astype(np.float32)
            similarities_before = self.similarities[own_texts, group]
            is_earlier = partners[pairs] < self.nearest[own_texts, group]
            is_better = similarities_now > similarities_before
            is_better |= (similarities_now == similarities_before) & is_earlier
            self.similarities[own_texts[is_better], group] = similarities_now[is_better]
            self.nearest[own_texts[is_better], group] = partners[pairs[is_better]]


def nearest(sets: WordSets, groups: np.ndarray, threshold: float, *, across: bool) -> NearestTexts:
    """Find for each text the nearest one of each group, at a similarity of the threshold or above.

    Pairs are candidates that MinHash puts into one bucket of a band; the exact similarity of their
    words then decides. Each text of a bucket is compared with the 128 that follow it there.

    Args:
        sets: N texts, no two of them equal.
        groups: ``[N, L]`` bool, the groups that each text is in.
        threshold: of the similarity, see :meth:`WordSets.similarities`.
        across: only pairs of texts of different groups are looked at.
    """
    best = NearestTexts(groups)
    n_texts = len(groups)
    if n_texts < 2:
        return best
    bands = band_keys(sets, threshold)
    parity = Parity(sets)
    bands_before: list[_Band] = []
    for keys in bands:
        order = np.argsort(keys, kind="stable")
        ends = np.searchsorted(keys[order], keys[order], side="right")
        n_from_here = ends - np.arange(
            n_texts
        )  # of each place, the texts of its bucket from there on
        cut_buckets = np.unique(ends[n_from_here > NEIGHBOURS + 1])
        best.n_cut += len(cut_buckets)
        for first, second in _pairs(order, ends):
            # Each test leaves fewer pairs to the next one, which takes longer.
            seems_near = _sizes_allow(sets, first, second, threshold)
            if across:
                seems_near &= _are_across(groups[first], groups[second])
            first, second = first[seems_near], second[seems_near]
            seems_near = parity.bits_allow(first, second, threshold)
            first, second = first[seems_near], second[seems_near]
            for band in bands_before:
                is_new = ~band.has_compared(first, second)
                first, second = first[is_new], second[is_new]
            similarities = sets.similarities(first, second)
            is_near = similarities >= threshold
            first, second, similarities = first[is_near], second[is_near], similarities[is_near]
            best.keep_better(first, second, similarities)
            best.keep_better(second, first, similarities)
        bands_before.append(_Band(keys, order if len(cut_buckets) else None))
    return best


class _Band:
    """A band whose buckets were looked through.

    Args:
        keys: of each text its bucket.
        order: of the texts by bucket; None where no bucket was cut.
    """

    def __init__(self, keys: np.ndarray, order: np.ndarray | None) -> None:
        self._keys = keys
        self._places: np.ndarray | None = None  # of the texts in the order
        if order is not None:
            self._places = np.empty(len(order), np.int32)
            self._places[order] = np.arange(len(order))

    def has_compared(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """``[P]`` bool: whether two texts were compared here."""
        is_compared = self._keys[first] == self._keys[second]
        if self._places is not None:
            is_compared &= np.abs(self._places[first] - self._places[second]) <= NEIGHBOURS
        return is_compared


def band_keys(sets: WordSets, threshold: float) -> np.ndarray:
    """``[B, N]`` uint32: in each band the bucket of each text. Texts that are near are likely in one
    bucket of some band.
    """
    n_bands, n_rows = band_sizes(min(threshold, MOST_THRESHOLD))
    keys = np.empty((n_bands, len(sets)), np.uint32)
    a, b = _datasketch().MinHash(num_perm=n_bands * n_rows).permutations
    # The n_rows numbers of a band become one: a sum in which each has an odd multiplier of its own.
    multipliers = np.random.default_rng(0).integers(1 << 31, size=n_rows) * 2 + 1
    multipliers = multipliers.astype(np.uint32)
    for span in sets.text_spans(WORDS_AT_ONCE):
        values = signatures(sets, span, a, b).reshape(n_bands, n_rows, -1)
        sums = (values * multipliers[:, None]).sum(axis=1, dtype=np.uint32)
        keys[:, span] = murmur_finalised(sums)
    return keys


@functools.cache
def band_sizes(threshold: float) -> tuple[int, int]:
    """How many bands there are, and of how many numbers of a signature one is made. To find them,
    datasketch computes thousands of integrals.
    """
    lsh = _datasketch().MinHashLSH(threshold, num_perm=PERMUTATIONS, weights=LSH_WEIGHTS)
    return lsh.b, lsh.r


def signatures(sets: WordSets, span: slice, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``[P, n]`` uint32: the MinHash of a span of texts, as that of datasketch has it.

    Args:
        sets: of all texts.
        span: the texts.
        a: ``[P]`` uint32, with ``b`` the permutations.
        b: ``[P]`` uint32.
    """
    hashes, starts = sets.elements(span)
    permuted = a[:, None] * murmur_finalised(hashes)
    permuted += b[:, None]
    return np.minimum.reduceat(permuted, starts, axis=1)


def _datasketch():  # type: ignore[no-untyped-def]
    try:
        import datasketch
    except ImportError:
        raise InputError("near texts need the package datasketch: pip install datasketch") from None
    return datasketch


def _pairs(order: np.ndarray, ends: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of texts, by bucket, at most :data:`NEIGHBOURS` places apart in one; ``ends`` says of
    each place where its bucket ends.
    """
    places = np.arange(len(order))
    waiting = []
    n_waiting = 0
    for distance in range(1, NEIGHBOURS + 1):
        places = places[places + distance < ends[places]]
        if len(places) == 0:
            break
        for span in spans(len(places), PAIRS_AT_ONCE):
            waiting.append((order[places[span]], order[places[span] + distance]))
            n_waiting += len(waiting[-1][0])
            if n_waiting >= PAIRS_AT_ONCE:
                yield _joined(waiting)
                waiting = []
                n_waiting = 0
    if waiting:
        yield _joined(waiting)


def _joined(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    firsts, seconds = zip(*pairs, strict=True)
    return np.concatenate(firsts), np.concatenate(seconds)


def _sizes_allow(
    sets: WordSets, first: np.ndarray, second: np.ndarray, threshold: float
) -> np.ndarray:
    """``[P]`` bool: whether two texts may be near: the smaller holds all that both share."""
    sizes = sets.sizes[first]
    other_sizes = sets.sizes[second]
    return np.minimum(sizes, other_sizes) >= threshold * np.maximum(sizes, other_sizes)


def _are_across(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """``[P]`` bool, by the groups of two texts ``[P, L]``: False if both are in one group alone."""
    is_same = (first == second).all(axis=1) & (first.sum(axis=1) == 1)
    return ~is_same
