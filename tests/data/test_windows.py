"""Windows of long documents: which tokens they hold, and what a document's score is."""

import itertools

import numpy as np
import pytest
import torch

from ltr.batch import Texts
from ltr.data.layouts import ApartTexts, JoinedPairs, SingleTexts
from ltr.data.template import Template
from ltr.data.templated_pairs import TemplatedPairs
from ltr.data.tokens import Tokens
from ltr.data.windows import Windows, best_windows, mean_of_windows
from tests.world.backbones import wordpiece_tokenizer
from tests.world.collections import WORDS
from tests.world.laid_out import ids_of
from tests.world.refusals import refused
from tests.world.tokenizers import KINDS, TEXTS, byte_level_bpe, tokenizer_of

COUNTED = [" ".join(itertools.islice(itertools.cycle(WORDS), n)) for n in (1, 3, 4, 5, 7, 8, 25)]


def tokens_of(*lengths):
    """Documents of 100, 101, … and 200, 201, …: the number says whose token it is, and which."""
    ids = [100 * (doc + 1) + place for doc, n in enumerate(lengths) for place in range(n)]
    return Tokens(np.array(ids, np.uint16), np.cumsum([0, *lengths]))


def test_windows_by_hand():
    """Of 8 tokens 4 at a time, one window every 3: 0 to 3, 3 to 6, and 6 and 7, which end the text.
    7 tokens end with the second window; 4 are one, and so is no token.
    """
    windows, counts = Windows(4, 3).cut(tokens_of(8, 7, 4, 0), np.array([0, 1, 2, 3]))
    assert counts.tolist() == [3, 2, 1, 1]
    first, second, third, last = np.split(np.arange(len(windows)), counts.cumsum()[:-1])
    assert [windows[row].tolist() for row in first] == [
        [100, 101, 102, 103],
        [103, 104, 105, 106],
        [106, 107],
    ]
    assert [windows[row].tolist() for row in second] == [[200, 201, 202, 203], [203, 204, 205, 206]]
    assert [windows[row].tolist() for row in third] == [[300, 301, 302, 303]]
    assert [windows[row].tolist() for row in last] == [[]]


def test_what_stands_in_front_is_read_with_each_window():
    windows, counts = Windows(3, 2).cut(tokens_of(7, 1), np.array([1, 0, 1]), n_front=2)
    assert counts.tolist() == [1, 2, 1]
    assert [windows[row].tolist() for row in range(len(windows))] == [
        [200],
        [100, 101, 102, 103, 104],
        [100, 101, 104, 105, 106],
        [200],
    ]


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("n_front", [0, 2])
def test_windows_hold_every_token_and_their_lengths_are_known(size, n_front):
    lengths = list(range(30))
    tokens = tokens_of(*lengths)
    rows = np.arange(len(tokens))
    for stride in range(1, size + 1):
        how = Windows(size, stride)
        windows, counts = how.cut(tokens, rows, n_front)
        assert (counts == how.counts(np.maximum(np.array(lengths) - n_front, 0))).all()
        expected = how.n_tokens_read(np.array(lengths), n_front, 5)
        for row, of_doc in enumerate(np.split(np.arange(len(windows)), counts.cumsum()[:-1])):
            held = [windows[window].tolist() for window in of_doc]
            assert sorted({*itertools.chain(*held)}) == tokens[row].tolist()
            assert sum(len(ids) + 5 for ids in held) == expected[row]
            assert all(held[:-1]) and all(len(ids) <= size + n_front for ids in held)


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"many words"}))
@pytest.mark.parametrize("stride", [2, 5])
def test_windows_of_pairs_are_those_of_the_tokenizer(kind, stride):
    """transformers cuts a pair into overflowing windows: its stride is what two windows share."""
    tokenizer = tokenizer_of(kind)
    query = "w1 w2"
    texts = [*TEXTS, *COUNTED]
    n_query = len(tokenizer(query, add_special_tokens=False)["input_ids"])
    form = JoinedPairs(tokenizer, 64, windows=Windows(5, stride))
    docs = form.tokens(texts, "document")
    rows = np.arange(len(texts))
    laid_out = form.lay_out(form.tokens([query], "query"), 0 * rows, docs, rows)
    options = {"max_length": 5 + n_query + form.n_special, "stride": 5 - stride}
    options |= {"truncation": "only_second", "return_overflowing_tokens": True}
    expected = [tokenizer(query, text, **options)["input_ids"] for text in texts]
    assert ids_of(laid_out) == sum(expected, [])
    assert laid_out.windows.tolist() == [len(windows) for windows in expected]
    lengths = form.lengths(np.full(len(texts), n_query), docs.lengths(rows))
    assert lengths.tolist() == [sum(map(len, windows)) for windows in expected]


@pytest.mark.parametrize("form", ["pair", "text"])
def test_a_document_of_one_window_is_laid_out_as_without_windows(form):
    tokenizer = wordpiece_tokenizer()
    texts = [text for text in COUNTED if len(text.split()) <= 8]
    rows = np.arange(len(texts))
    windows = Windows(8, 4)

    def laid_out(**options):
        if form == "text":
            reads = SingleTexts(tokenizer, 24, "w3 ", **options)
            return reads.lay_out(reads.tokens(texts), rows)
        reads = JoinedPairs(tokenizer, 24, **options)
        queries = reads.tokens(["w1 w2"], "query")
        return reads.lay_out(queries, rows * 0, reads.tokens(texts, "document"), rows)

    plain = laid_out()
    windowed = laid_out(windows=windows)
    assert windowed.windows.tolist() == [1] * len(texts) and plain.windows is None
    for ours, theirs in zip(windowed[:3], plain[:3], strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(windowed.hashes(), plain.hashes())


def test_a_prompt_stands_before_every_window_and_shares_no_token_with_the_text():
    """To this tokenizer a space belongs to the word behind it."""
    tokenizer = byte_level_bpe()
    form = SingleTexts(tokenizer, 32, "w9: ", windows=Windows(4, 4))
    whole = tokenizer(f"w9: {COUNTED[-1]}", add_special_tokens=False)["input_ids"]
    n_front = len(tokenizer("w9:", add_special_tokens=False)["input_ids"])
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    windows = ids_of(form.lay_out(form.tokens(COUNTED[-1:]), np.array([0])))
    assert len(windows) > 2
    assert windows == [
        [begin, *whole[:n_front], *whole[first : first + 4], end]
        for first in range(n_front, len(whole), 4)
    ]


def test_keys_of_dropout_are_those_of_the_document_and_of_text_tell_documents_apart():
    texts = Texts(torch.arange(6), torch.tensor([1, 2, 3]), windows=torch.tensor([2, 1]))
    assert texts.with_keys(torch.tensor([7, 8])).keys.tolist() == [7, 7, 8]
    assert Texts(*texts[:2]).with_keys(torch.tensor([7, 8, 9])).keys.tolist() == [7, 8, 9]
    swapped = texts._replace(ids=torch.tensor([1, 2, 0, 3, 4, 5]), lengths=torch.tensor([2, 1, 3]))
    keys = texts.hashes()
    assert keys[0] != swapped.hashes()[0], "the order of windows counts"
    assert keys[1] == swapped.hashes()[1] == Texts(*texts[:2]).hashes()[2]


def test_the_best_window_alone_gets_the_gradient_and_the_first_of_equal_ones():
    scores = torch.tensor([1.0, 3.0, 2.0, 5.0, 4.0, 4.0], requires_grad=True)
    counts = torch.tensor([3, 1, 2])
    documents = Windows(4, 2).document_values(scores, counts)
    assert documents.tolist() == [3, 5, 4]
    (gradient,) = torch.autograd.grad((documents * torch.tensor([1.0, 2.0, 3.0])).sum(), scores)
    assert gradient.tolist() == [0, 1, 0, 2, 3, 0]


def test_the_mean_spreads_the_gradient():
    values = torch.tensor([[1.0], [3.0], [5.0], [7.0]], requires_grad=True)
    counts = torch.tensor([3, 1])
    means = Windows(4, 2, "mean").document_values(values, counts)
    assert means.tolist() == [[3], [7]]
    (gradient,) = torch.autograd.grad((means * torch.tensor([[6.0], [1.0]])).sum(), values)
    torch.testing.assert_close(gradient.flatten(), torch.tensor([2.0, 2.0, 2.0, 1.0]))


def test_a_score_that_is_no_number_is_not_hidden():
    scores = torch.tensor([1.0, torch.nan, 2.0])
    counts = torch.tensor([2, 1])
    assert best_windows(scores, counts).tolist() == [1, 2]
    assert mean_of_windows(scores, counts).isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    "options, words",
    [
        ((0, 1), "windows.size must be at least 1, got 0"),
        ((4, 0), "windows.stride must be from 1 to windows.size 4, got 0"),
        ((4, 5), "windows.stride must be from 1 to windows.size 4, got 5"),
        ((4, 4, "max"), "windows.score must be best or mean, got 'max'"),
    ],
)
def test_windows_that_can_not_be_are_refused(options, words):
    with refused(words) as error:
        Windows(*options)
    assert error.value.option == "windows"


def test_a_window_without_room_is_refused():
    """[CLS], two [SEP], a token of the query: 20 leave 16. [CLS] and [SEP]: 20 leave 18."""
    tokenizer = wordpiece_tokenizer()
    JoinedPairs(tokenizer, 20, windows=Windows(16, 1))
    with refused("windows.size must be at most 16, .* got 17"):
        JoinedPairs(tokenizer, 20, windows=Windows(17, 1))
    SingleTexts(tokenizer, 20, windows=Windows(18, 1))
    SingleTexts(tokenizer, 20, "w1 w2 ", windows=Windows(16, 1))
    with refused("windows.size must be at most 16, .* got 17"):
        SingleTexts(tokenizer, 20, "w1 w2 ", windows=Windows(17, 1))


def test_a_query_keeps_what_a_window_leaves():
    """[CLS], two [SEP], a window of 14: 20 leave 3 tokens, of however many the query has."""
    tokenizer = wordpiece_tokenizer()
    form = JoinedPairs(tokenizer, 20, windows=Windows(14, 7))
    tokens = form.tokens(["w1 w2 w3", "w1 w2 w3 w4", "w5 " * 90], "query")
    expected = [[1, 2, 3], [1, 2, 3], [5, 5, 5]]
    assert [tokens[row].tolist() for row in range(3)] == [
        tokenizer.convert_tokens_to_ids([f"w{n}" for n in numbers]) for numbers in expected
    ]
    docs = form.tokens(["w6 " * 40], "document")
    laid_out = form.lay_out(tokens, np.array([2]), docs, np.array([0]))
    assert laid_out.lengths.max() == 20


def test_templates_in_which_a_window_is_no_part_are_refused():
    tokenizer = wordpiece_tokenizer()
    windows = Windows(4, 4)
    with refused("nothing stands behind"):
        SingleTexts(tokenizer, 20, template=Template(document="{document} w1"), windows=windows)
    with refused("leave out windows"):
        TemplatedPairs(tokenizer, 64, Template(pair="{query} {document}"), windows=windows)


def test_a_budget_of_the_template_bounds_the_windows():
    template = Template(document_tokens=6)
    form = SingleTexts(wordpiece_tokenizer(), 20, template=template, windows=Windows(4, 4))
    texts = form.lay_out(form.tokens([" ".join(WORDS[:20])]), np.array([0]))
    assert texts.windows.tolist() == [2] and texts.lengths.tolist() == [6, 4]


def test_a_form_without_windows_cuts_as_ever():
    tokenizer = wordpiece_tokenizer()
    texts = [" ".join(WORDS[:20])]
    single = SingleTexts(tokenizer, 12)
    forms = ApartTexts(single, SingleTexts(tokenizer, 12, windows=Windows(4, 2)))
    assert forms.windows == Windows(4, 2) and forms.queries.windows is None
    plain = forms.without_windows().docs
    assert plain.key == single.key != forms.docs.key
    tokens = plain.tokens(texts)
    row = np.array([0])
    assert ids_of(plain.lay_out(tokens, row)) == ids_of(single.lay_out(tokens, row))
