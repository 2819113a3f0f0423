"""Near texts beside sets of Python: similarities, what the bits of texts allow, the nearest ones."""

from collections import Counter

import numpy as np
import pytest

from ltr.check import near, word_sets
from ltr.check.near import nearest
from ltr.check.parity import Parity
from ltr.check.word_sets import WordSets
from ltr.data.strings import Strings


def texts_of(rng, n, vocabulary, n_words):
    """Random texts, half of them changed copies of one before."""
    texts = []
    for number in range(n):
        drawn = [f"w{word}" for word in rng.zipf(1.5, rng.integers(1, n_words)) % vocabulary]
        if number % 2:
            drawn = texts[rng.integers(number)].split()
            for place in rng.integers(len(drawn), size=rng.integers(1, 3)):
                drawn[place] = f"w{rng.integers(vocabulary)}"
        texts.append(" ".join(drawn))
    return texts


def sets_of(folder, texts):
    folder.mkdir(exist_ok=True)
    Strings.write(folder, "texts", [text.encode() for text in texts])
    return WordSets.from_tables([(Strings(folder, "texts"), np.arange(len(texts)))])


def similarities_of(texts):
    """``[N, N]``: the weight of what is shared over that of all, word by word."""
    sets = [set(text.split()) for text in texts]
    n_with = Counter(word for words in sets for word in words)
    n = len(texts)
    weight = {word: 1 + (c**3 <= n**2) + (c**3 <= n) for word, c in n_with.items()}
    return np.array(
        [[sum(map(weight.get, a & b)) / sum(map(weight.get, a | b)) for b in sets] for a in sets]
    )


@pytest.fixture(params=[0, 1])
def case(request, tmp_path, monkeypatch):
    """Texts with their sets and similarities; short ones, and long ones. Blocks are small, so that
    all texts and pairs go through several.
    """
    monkeypatch.setattr(word_sets, "WORDS_AT_ONCE", 50)
    monkeypatch.setattr(word_sets, "WORDS_OF_PAIRS", 500)
    monkeypatch.setattr(near, "WORDS_AT_ONCE", 50)
    monkeypatch.setattr("ltr.check.parity.WORDS_AT_ONCE", 150)
    monkeypatch.setattr("ltr.check.parity.BYTES_OF_PAIRS", 1 << 12)
    rng = np.random.default_rng(request.param)
    texts = texts_of(rng, 120, *((300, 12), (3000, 400))[request.param])
    return texts, sets_of(tmp_path / "texts", texts), similarities_of(texts)


def all_pairs(n):
    return tuple(array.ravel() for array in np.divmod(np.arange(n * n), n))


def test_similarities_are_those_of_sets(case):
    texts, sets, expected = case
    first, second = all_pairs(len(texts))
    found = sets.similarities(first, second).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    assert len(sets.similarities(first[:0], second[:0])) == 0


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.6, 0.75, 1.0])
def test_bits_let_every_near_pair_pass(case, threshold):
    """And turn most others away: of pairs that share nothing, nine of ten."""
    texts, sets, expected = case
    first, second = all_pairs(len(texts))
    passes = Parity(sets).bits_allow(first, second, threshold).reshape(expected.shape)
    is_near = expected >= threshold
    assert is_near.any() and passes[is_near].all()
    if threshold >= 0.6:
        shares_nothing = expected == 0
        assert passes[shares_nothing].mean() < 0.1


def test_texts_that_are_taken_are_weighed_anew(case, tmp_path):
    """As sets of these texts alone: a word that fewer of them have weighs more."""
    texts, sets, _ = case
    chosen = np.arange(0, len(texts), 3)
    taken = sets.take(chosen)
    alone = sets_of(tmp_path / "alone", [texts[row] for row in chosen])
    np.testing.assert_array_equal(taken.sizes, alone.sizes)
    np.testing.assert_array_equal(taken.keys, alone.keys)
    for ours, theirs in zip(taken.elements(slice(3, 9)), alone.elements(slice(3, 9)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_nearest_texts_are_those_of_all_pairs(case):
    """Texts of two groups. A pair at 0.9 is missed less often than once in 10^9 by the arithmetic of
    the bands at a threshold of 0.7, so here all that are as near must be found, and none that is
    not at 0.7; a nearest text is the nearest of all.
    """
    texts, sets, expected = case
    _, firsts = np.unique(sets.keys, return_index=True)
    firsts.sort()
    distinct = sets.take(firsts)
    expected = similarities_of([texts[row] for row in firsts])
    np.fill_diagonal(expected, 0)
    group = np.arange(len(firsts)) % 2
    groups = np.stack([group == 0, group == 1], axis=1)
    best = nearest(distinct, groups, 0.7, across=False)
    assert best.n_cut == 0
    for column in (0, 1):
        best_of_all = np.where(groups[:, column], expected, 0).max(axis=1)
        is_found = best.nearest[:, column] >= 0
        assert is_found[best_of_all >= 0.9].all() and (best_of_all >= 0.9).any()
        assert not is_found[best_of_all < 0.7].any()
        rows = np.flatnonzero(is_found)
        partners = best.nearest[rows, column]
        assert groups[partners, column].all()
        np.testing.assert_allclose(
            best.similarities[rows, column], expected[rows, partners], rtol=1e-6
        )
    across = nearest(distinct, groups, 0.7, across=True)
    own = np.arange(len(firsts)), group
    assert (across.nearest[own] == -1).all()
    np.testing.assert_array_equal(
        across.nearest[np.arange(len(firsts)), 1 - group],
        best.nearest[np.arange(len(firsts)), 1 - group],
    )


def test_a_large_bucket_is_cut_and_said(tmp_path):
    """300 texts of the same 20 words and one of their own: each is compared with 128 that follow."""
    common = " ".join(f"common{number}" for number in range(20))
    sets = sets_of(tmp_path / "alike", [f"{common} own{number}" for number in range(300)])
    best = nearest(sets, np.ones((300, 1), bool), 0.6, across=False)
    assert best.n_cut > 0
    assert (best.nearest >= 0).all()
    # 20 words of weight 1 that both have, and 3 of each one's own word.
    assert np.unique(best.similarities).tolist() == [np.float32(20 / 26)]
    assert best.nearest[0] == 1 and best.nearest[299] < 299


def test_a_pair_that_a_cut_bucket_left_out_is_found_in_another_bucket(tmp_path, monkeypatch):
    """In the first band the eight texts share a bucket, in which 0 and 7 stand too far apart; in the
    second band they have one of their own.
    """
    monkeypatch.setattr(near, "NEIGHBOURS", 2)
    bands = np.array([[0] * 8, [1, 2, 3, 4, 5, 6, 7, 1]], np.uint32)
    monkeypatch.setattr(near, "band_keys", lambda sets, threshold: bands)
    others = [f"x{number} y{number} z{number}" for number in range(6)]
    sets = sets_of(tmp_path / "texts", ["a b c d e f g h", *others, "a b c d e f g i"])
    best = nearest(sets, np.ones((8, 1), bool), 0.5, across=False)
    assert best.n_cut == 1
    assert best.nearest[:, 0].tolist() == [7, *[-1] * 6, 0]
