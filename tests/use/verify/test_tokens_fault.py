"""Where token ids depart, by hand: 1 is [CLS], 2 is [SEP], the words are from 10 on."""

import pytest

from ltr.use.proof.network import TokenRow
from ltr.use.proof.reading import SpecialTokens, Text
from ltr.use.verify.compared_layers import tokens_fault

PAIR = SpecialTokens([1], [2], [2])
ONE = SpecialTokens([1], [], [2])
TWO_TEXTS = [Text(["a", "b"], ["a", "b"])] * 2
BEFORE_TEMPLATE = [[1, 10, 50, 2], [1, 12, 13, 50, 2]]
PAIRS = [[1, 10, 11, 2, 30, 31, 32, 2], [1, 12, 13, 2, 33, 34, 35, 2]]
OTHER_WORDS = "tokens: other tokens for the same text"
OTHER_TEMPLATE = "template: another template"
OTHER_PLACE = "truncation: texts are cut at another place, or on the other side"
CASES = {
    "nothing": (ONE, [[1, 10, 2], [1, 11, 2]], [[1, 10, 2], [1, 11, 2]], None),
    "no first": (ONE, [[1, 10, 2], [1, 11, 2]], [[10, 2], [11, 2]], "special tokens: no first"),
    "other words": (
        ONE,
        [[1, 10, 11, 2], [1, 12, 13, 2]],
        [[1, 20, 11, 2], [1, 12, 21, 2]],
        OTHER_WORDS,
    ),
    "another word of the template": (
        ONE,
        BEFORE_TEMPLATE,
        [[1, 10, 60, 61, 2], [1, 12, 13, 60, 61, 2]],
        OTHER_TEMPLATE,
    ),
    "no template behind": (ONE, BEFORE_TEMPLATE, [[1, 10, 2], [1, 12, 13, 2]], OTHER_TEMPLATE),
    "cut before a template": (
        ONE,
        [[1, 10, 11, 12, 50, 2], [1, 13, 14, 15, 16, 50, 2]],
        [[1, 10, 50, 2], [1, 13, 50, 2]],
        "truncation: texts are cut at 4 tokens, not at 8",
    ),
    "cut behind": (
        ONE,
        [[1, 10, 11, 12, 2], [1, 13, 14, 15, 16, 2]],
        [[1, 10, 2], [1, 13, 2]],
        "truncation: texts are cut at 3 tokens, not at 8",
    ),
    "other words of a pair that is cut": (
        PAIR,
        PAIRS,
        [[1, 20, 11, 2, 40, 31, 32, 2], [1, 12, 21, 2, 33, 34, 35, 2]],
        OTHER_WORDS,
    ),
    "a pair cut on the other side": (
        PAIR,
        PAIRS,
        [[1, 10, 11, 2, 36, 37, 38, 2], [1, 12, 13, 2, 39, 40, 41, 2]],
        OTHER_PLACE,
    ),
    "a query that is cut": (
        PAIR,
        PAIRS,
        [[1, 10, 2, 30, 31, 32, 33, 2], [1, 12, 2, 33, 34, 35, 36, 2]],
        OTHER_PLACE,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_by_hand(case):
    special, expected, given, said = CASES[case]
    texts = TWO_TEXTS if special is PAIR else [Text(["a"], ["a"])] * 2
    right = [TokenRow(ids, None) for ids in expected]
    finding = tokens_fault(texts, right, [TokenRow(ids, None) for ids in given], special, 8)
    if said is None:
        assert finding is None
    else:
        assert finding is not None and f"{finding.layer}: {finding.fault}".startswith(said)
