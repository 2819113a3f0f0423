"""Token ids laid out for an encoder are those that its tokenizer makes of the texts."""

import gzip
import itertools
import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from ltr.data.formats import JoinedPairs, SingleTexts
from ltr.data.tokens import TokenStore
from ltr.errors import InputError
from tests.conftest import WORDS, wordpiece_tokenizer
from tests.data.tokenizers import KINDS, TEXTS, byte_level_bpe, sentencepiece_like, table_of

# Every number of words around the cut; a zero-width space is a text without a token for some
# tokenizers.
COUNTED = ["\u200b", *(" ".join(WORDS[:n]) for n in range(1, 26))]
SIDES = ["right", "left"]


def tokenizer_of(kind, side):
    tokenizer = KINDS[kind]()
    tokenizer.truncation_side = side
    return tokenizer


def one_by_one(texts):
    """Ids and types of each text, as lists."""
    lengths = texts.lengths.tolist()
    types = (
        [None] * len(lengths)
        if texts.type_ids is None
        else [t.tolist() for t in texts.type_ids.split(lengths)]
    )
    return [
        (ids.tolist(), type_ids)
        for ids, type_ids in zip(texts.ids.split(lengths), types, strict=True)
    ]


def as_the_tokenizer_says(encoding):
    return encoding["input_ids"], encoding.get("token_type_ids")


def medquad(file, n):
    with gzip.open(f"examples/medquad/{file}.jsonl.gz", "rt") as lines:
        return [json.loads(line)["text"] for line in itertools.islice(lines, n)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("max_length", [48, 20, 15])
def test_joined_pairs_equal_the_tokenizer_own(kind, side, max_length, tmp_path):
    tokenizer = tokenizer_of(kind, side)
    texts = TEXTS + COUNTED
    store = TokenStore.open(table_of(texts), tokenizer)
    join = JoinedPairs(tokenizer, max_length)
    rows = np.arange(len(texts))
    fitting = rows[store.lengths(rows) + join.n_special < max_length]
    query_rows = np.repeat(fitting, len(rows))
    doc_rows = np.tile(rows, len(fitting))
    joined = join.lay_out(store, query_rows, store, doc_rows)
    encodings = [
        tokenizer(texts[q], texts[d], truncation="only_second", max_length=max_length)
        for q, d in zip(query_rows, doc_rows, strict=True)
    ]
    assert one_by_one(joined) == list(map(as_the_tokenizer_says, encodings))
    lengths = join.lengths(store.lengths(query_rows), store.lengths(doc_rows))
    assert (
        joined.lengths.tolist() == lengths.tolist()
        and lengths.max() <= max_length
        and len(fitting) >= 6
    )
    assert {t.dtype for t in joined if t is not None} == {torch.int64}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("max_length", [48, 9, 3])
def test_single_texts_equal_the_tokenizer_own(kind, side, max_length, tmp_path):
    tokenizer = tokenizer_of(kind, side)
    texts = TEXTS + COUNTED
    store = TokenStore.open(table_of(texts), tokenizer)
    form = SingleTexts(tokenizer, max_length)
    rows = np.arange(len(texts))
    single = form.lay_out(store, rows)
    encodings = [tokenizer(text, truncation=True, max_length=max_length) for text in texts]
    assert one_by_one(single) == list(map(as_the_tokenizer_says, encodings))
    assert single.lengths.tolist() == form.lengths(store.lengths(rows)).tolist()
    assert {t.dtype for t in single if t is not None} == {torch.int64}


# A prompt as it is given, and the one that the tokenizer has to be given together with the text.
SEAMS = [
    ("MiniLM", "query: ", "query: "),
    ("MiniLM", "Search for:", "Search for:"),
    ("wordpiece", "w7 w8, ", "w7 w8, "),
    ("many words", "w7 w8 ", "w7 w8 "),
    ("byte-level BPE", "w7 w8:", "w7 w8:"),
    ("sentencepiece", "w7 w8", "w7 w8 "),
]


@pytest.mark.parametrize("kind, prompt, together", SEAMS)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("above_least", [0, 1, 5, 40])
def test_a_prompt_stands_in_front_as_if_tokenised_with_the_text(
    kind, prompt, together, side, above_least, tmp_path
):
    tokenizer = tokenizer_of(kind, side)
    texts = TEXTS + COUNTED[1:]
    store = TokenStore.open(table_of(texts), tokenizer)
    max_length = len(tokenizer(prompt)["input_ids"]) + 1 + above_least
    form = SingleTexts(tokenizer, max_length, prompt)
    encodings = [
        tokenizer(together + text, truncation=True, max_length=max_length) for text in texts
    ]
    rows = np.arange(len(texts))
    assert one_by_one(form.lay_out(store, rows)) == list(map(as_the_tokenizer_says, encodings))
    assert form.lengths(store.lengths(rows)).tolist() == [
        len(encoding["input_ids"]) for encoding in encodings
    ]
    with pytest.raises(
        InputError,
        match=f"a token of the text beside .* of the prompt .*, got {max_length - above_least - 1} ",
    ):
        SingleTexts(tokenizer, max_length - above_least - 1, prompt)


def test_a_space_at_the_end_of_a_prompt_is_a_token_of_a_byte_level_bpe(tmp_path):
    """``Ġ w1`` apart, ``Ġw1`` together."""
    tokenizer = byte_level_bpe()
    store = TokenStore.open(table_of(["w1"]), tokenizer)
    space, word = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (" ", "w1"))
    assert SingleTexts(tokenizer, 48, " ").lay_out(store, np.array([0])).ids.tolist() == [
        0,
        *space,
        *word,
        2,
    ]
    assert tokenizer(" w1", add_special_tokens=False)["input_ids"] != space + word


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("max_length", [32, 256])
def test_real_texts_equal_the_tokenizer_own(side, max_length, tmp_path):
    tokenizer = tokenizer_of("MiniLM", side)
    queries = medquad("queries", 60)
    docs = medquad("corpus", 60)
    query_store, doc_store = (
        TokenStore.open(table_of(texts), tokenizer) for texts in (queries, docs)
    )
    rows = np.flatnonzero(query_store.lengths(np.arange(60)) < 28)
    pairs = JoinedPairs(tokenizer, max_length).lay_out(query_store, rows, doc_store, rows)
    assert len(rows) > 30
    assert one_by_one(pairs) == [
        as_the_tokenizer_says(
            tokenizer(queries[i], docs[i], truncation="only_second", max_length=max_length)
        )
        for i in rows
    ]
    single = SingleTexts(tokenizer, max_length, "passage: ").lay_out(doc_store, rows)
    assert one_by_one(single) == [
        as_the_tokenizer_says(
            tokenizer("passage: " + docs[i], truncation=True, max_length=max_length)
        )
        for i in rows
    ]


@pytest.mark.parametrize("kind", [wordpiece_tokenizer, byte_level_bpe, sentencepiece_like])
def test_a_batch_is_its_texts_one_after_the_other(kind, tmp_path):
    tokenizer = kind()
    store = TokenStore.open(table_of(TEXTS), tokenizer)
    join = JoinedPairs(tokenizer, 60)
    single = SingleTexts(tokenizer, 8, "w1")
    query_rows = np.array([0, 2, 0, 1, 0])
    doc_rows = np.array([3, 3, 5, 3, 3])

    def alone(i):
        return one_by_one(join.lay_out(store, query_rows[[i]], store, doc_rows[[i]]))[0]

    def text_alone(i):
        return one_by_one(single.lay_out(store, doc_rows[[i]]))[0]

    for order in ([0, 1, 2, 3, 4], [4, 0, 3, 2, 1], [], [2, 2]):
        assert one_by_one(join.lay_out(store, query_rows[order], store, doc_rows[order])) == [
            alone(i) for i in order
        ]
        assert one_by_one(single.lay_out(store, doc_rows[order])) == [text_alone(i) for i in order]


def test_a_query_too_long_for_the_limit_is_named(tmp_path):
    tokenizer = wordpiece_tokenizer()
    table = table_of(["w1", "w1 w2 w3 w4 w5 w6"], "q")
    join = JoinedPairs(tokenizer, 9)
    store = TokenStore.open(table, tokenizer)
    with pytest.raises(
        InputError,
        match="query '001' has 6 tokens, but max_length 9 leaves 5 .* the query, 'w1 w2 w3 w4 w5 w6'",
    ):
        join.check_queries(table.ids, table.texts, store)
    JoinedPairs(tokenizer, 10).check_queries(table.ids, table.texts, store)
    with pytest.raises(InputError, match="room for a query and a document beside 3"):
        JoinedPairs(tokenizer, 4)


def test_a_tokenizer_by_which_no_special_token_can_be_found_is_refused():
    """A vocabulary without the example's letter, and without a token for what it does not know."""
    backend = Tokenizer(models.BPE(vocab={"[CLS]": 0, "b": 1}, merges=[]))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A $B", special_tokens=[("[CLS]", 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    for form in (SingleTexts, JoinedPairs):
        with pytest.raises(InputError, match="the tokenizer must know 'a'"):
            form(tokenizer, 20)
