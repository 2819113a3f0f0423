"""A few bits of each text, which show at once that most pairs of texts can't be near."""

import numpy as np

from ltr.check.word_sets import WordSets, murmur_finalised
from ltr.spans import spans

FEWEST_BITS = 64
MOST_BITS = 4096
BITS_PER_ELEMENT = 4  # of a text of average size; fewer would coincide too often
WORDS_AT_ONCE = 1 << 17  # each is one to three elements, by its weight
BYTES_OF_PAIRS = 1 << 20  # of bits that are compared together: they fit into the cache


class Parity:
    r"""Of each text B bits: bit b says whether the number of its elements that fall on b is odd.

    Where the bits of two sets differ at h places, at least h elements are in one of them alone. So

    .. math:: \frac{|A \cap B|}{|A \cup B|} \ge t
        \quad\Rightarrow\quad h \le |A \triangle B| \le \frac{1 - t}{1 + t}\,\bigl(|A| + |B|\bigr)

    and a pair whose bits differ at more places is not near, whatever its words are.

    Args:
        sets: N texts, see :meth:`ltr.check.word_sets.WordSets.elements`.

    References:
        Sandes, Teodoro & Melo (2020), Bitmap filter: speeding up exact set similarity joins with
        bitwise operations.
    """

    def __init__(self, sets: WordSets) -> None:
        self._sizes = sets.sizes
        wanted = BITS_PER_ELEMENT * max(1.0, float(sets.sizes.mean())) if len(sets) else 1.0
        # A power of two, so that the upper bits of a hash are a number of a bit.
        n_bits = 1 << int(np.ceil(np.log2(np.clip(wanted, FEWEST_BITS, MOST_BITS))))
        shift = np.uint32(32 - n_bits.bit_length() + 1)
        self._bits = np.empty((len(sets), n_bits // 64), np.uint64)
        for span in sets.text_spans(WORDS_AT_ONCE):
            hashes, starts = sets.elements(span)
            text_of_hash = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(hashes)))
            places = text_of_hash * n_bits + (murmur_finalised(hashes) >> shift)
            counts = np.bincount(places, minlength=len(starts) * n_bits)
            packed = np.packbits((counts & 1).astype(bool))
            self._bits[span] = packed.view(np.uint64).reshape(len(starts), -1)

    def bits_allow(self, first: np.ndarray, second: np.ndarray, threshold: float) -> np.ndarray:
        """``[P]`` bool: whether the bits of two texts allow that they are near; texts that are near
        always pass.
        """
        # Rounding must not lose a pair that is at the threshold.
        share = (1 - threshold) / (1 + threshold) * (1 + 1e-9)
        most = (self._sizes[first] + self._sizes[second]) * share
        is_possible = np.empty(len(first), bool)
        for pairs in spans(len(first), max(1, BYTES_OF_PAIRS // (8 * self._bits.shape[1]))):
            differ = self._bits[first[pairs]]
            differ ^= self._bits[second[pairs]]
            n_differ = np.bitwise_count(differ).sum(axis=1, dtype=np.int64)
            is_possible[pairs] = n_differ <= most[pairs]
        return is_possible
