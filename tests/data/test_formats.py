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
from tests.data.tokenizers import (
    KINDS,
    TEXTS,
    byte_level_bpe,
    random_prompts,
    sentencepiece_like,
    table_of,
)

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


@pytest.mark.parametrize(
    "kind", sorted(KINDS.keys() - {"many words"})
)  # a copy of these takes long
@pytest.mark.parametrize("side", SIDES)
def test_prompts_are_tokenised_together_with_their_texts(kind, side):
    """Each is cut behind one token of a text, and behind some."""
    tokenizer = tokenizer_of(kind, side)
    texts = [*TEXTS, " w1", "\tw2", *COUNTED[1:]]
    table = table_of(texts)
    rows = np.arange(len(texts))
    for number, prompt in enumerate(random_prompts(tokenizer, 10)):
        n_prompt = len(tokenizer(prompt)["input_ids"])
        max_length = n_prompt + (1, 2, 9, 30)[number % 4]
        form = SingleTexts(tokenizer, max_length, prompt)
        encodings = [
            tokenizer(prompt + text, truncation=True, max_length=max_length) for text in texts
        ]
        expected = list(map(as_the_tokenizer_says, encodings))
        tokens = form.store(table) if number % 5 == 1 else form.tokens(texts)
        assert one_by_one(form.lay_out(tokens, rows)) == expected, prompt
        lengths = form.lengths(tokens.lengths(rows)).tolist()
        assert lengths == [len(ids) for ids, _ in expected]
        with pytest.raises(
            InputError, match=f"a token of the text beside .* of the prompt .*, got {n_prompt} "
        ):
            SingleTexts(tokenizer, n_prompt, prompt)


def test_a_space_at_the_end_of_a_prompt_opens_the_first_word_of_a_byte_level_bpe():
    """``w2 : Ġw1``, as in no prompt apart: ``w2 : Ġ w1``."""
    tokenizer = byte_level_bpe()
    form = SingleTexts(tokenizer, 48, "w2: ")
    (ids, _), *_ = one_by_one(form.lay_out(form.tokens(["w1"]), np.array([0])))
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokens == ["<s>", "w", "2", ":", "Ġw", "1", "</s>"]


def test_what_prompts_tokenised_apart_have_made_has_another_key():
    """Without a prompt the tokens are what they were, and so is the key of mined negatives."""
    tokenizer = wordpiece_tokenizer()
    assert SingleTexts(tokenizer, 12).key == [12, ""]
    assert SingleTexts(tokenizer, 12, "w1 ").key == [12, "w1 ", "together"]


def test_tokens_of_another_prompt_are_not_laid_out():
    tokenizer = wordpiece_tokenizer()
    tokens = SingleTexts(tokenizer, 12).tokens(["w1"])
    with pytest.raises(AssertionError, match="tokens of another prompt"):
        SingleTexts(tokenizer, 12, "w2 ").lay_out(tokens, np.array([0]))


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
    form = SingleTexts(tokenizer, max_length, "passage: ")
    single = form.lay_out(form.store(table_of(docs)), rows)
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
    prompted_store = single.store(table_of(TEXTS))
    query_rows = np.array([0, 2, 0, 1, 0])
    doc_rows = np.array([3, 3, 5, 3, 3])

    def alone(i):
        return one_by_one(join.lay_out(store, query_rows[[i]], store, doc_rows[[i]]))[0]

    def text_alone(i):
        return one_by_one(single.lay_out(prompted_store, doc_rows[[i]]))[0]

    for order in ([0, 1, 2, 3, 4], [4, 0, 3, 2, 1], [], [2, 2]):
        assert one_by_one(join.lay_out(store, query_rows[order], store, doc_rows[order])) == [
            alone(i) for i in order
        ]
        assert one_by_one(single.lay_out(prompted_store, doc_rows[order])) == [
            text_alone(i) for i in order
        ]


def test_a_query_too_long_for_the_limit_is_named(tmp_path):
    tokenizer = wordpiece_tokenizer()
    table = table_of(["w1", "w1 w2 w3 w4 w5 w6"], "q")
    join = JoinedPairs(tokenizer, 9)
    with pytest.raises(
        InputError,
        match="query '001' has 6 tokens, but max_length 9 leaves 5 .* the query, 'w1 w2 w3 w4 w5 w6'",
    ):
        join.store(table, "query")
    with pytest.raises(InputError, match="query '1' has 6 tokens"):
        join.tokens(list(table.texts), "query")
    assert len(join.store(table, "document")) == 2, "a document is cut"
    assert len(JoinedPairs(tokenizer, 10).store(table, "query")) == 2
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
