"""Token ids laid out for an encoder are those that its tokenizer makes of the texts."""

import gzip
import itertools
import json
import pickle

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from ltr.data.layouts import MANY_TEXTS, ApartTexts, JoinedPairs, SingleTexts
from ltr.data.template import Template
from ltr.data.tokens import TokenStore
from tests.world.backbones import wordpiece_tokenizer
from tests.world.collections import WORDS
from tests.world.laid_out import ids_of, ids_of_pairs
from tests.world.refusals import refused
from tests.world.tokenizers import (
    KINDS,
    TEXTS,
    byte_level_bpe,
    random_prompts,
    sentencepiece_like,
    table_of,
    tokenizer_of,
)

# Every number of words around the cut; a zero-width space is a text without a token for some
# tokenizers.
COUNTED = ["\u200b", *(" ".join(WORDS[:n]) for n in range(1, 26))]
SIDES = ["right", "left"]


def one_by_one(texts):
    """Ids and types of each text, as lists."""
    ids = ids_of(texts)
    if texts.type_ids is None:
        return [(ids_of_text, None) for ids_of_text in ids]
    return list(zip(ids, ids_of(texts._replace(ids=texts.type_ids)), strict=True))


def as_the_tokenizer_says(tokenizer, *texts, **options):
    """Ids and types of a text, or of a pair, in which the document is cut."""
    options["truncation"] = "only_second" if len(texts) == 2 else True
    encoding = tokenizer(*texts, **options)
    return encoding["input_ids"], encoding.get("token_type_ids")


def medquad(file, n):
    with gzip.open(f"examples/medquad/{file}.jsonl.gz", "rt") as lines:
        return [json.loads(line)["text"] for line in itertools.islice(lines, n)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("max_length", [pytest.param(48, marks=pytest.mark.long), 20, 15])
def test_joined_pairs_equal_the_tokenizer_own(kind, side, max_length):
    tokenizer = tokenizer_of(kind, side)
    texts = TEXTS + COUNTED
    store = TokenStore.open(table_of(texts), tokenizer)
    join = JoinedPairs(tokenizer, max_length)
    rows = np.arange(len(texts))
    fitting = rows[store.lengths(rows) + join.n_special < max_length]
    query_rows = np.repeat(fitting, len(rows))
    doc_rows = np.tile(rows, len(fitting))
    joined = join.lay_out(store, query_rows, store, doc_rows)
    assert one_by_one(joined) == [
        as_the_tokenizer_says(tokenizer, texts[q], texts[d], max_length=max_length)
        for q, d in zip(query_rows, doc_rows, strict=True)
    ]
    lengths = join.lengths(store.lengths(query_rows), store.lengths(doc_rows))
    assert joined.lengths.tolist() == lengths.tolist() and lengths.max() <= max_length
    assert len(fitting) >= 6
    assert {t.dtype for t in joined if isinstance(t, torch.Tensor)} == {torch.int64}
    assert joined.host_lengths.tolist() == joined.lengths.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("max_length", [48, 9, 3])
def test_single_texts_equal_the_tokenizer_own(kind, side, max_length):
    tokenizer = tokenizer_of(kind, side)
    texts = TEXTS + COUNTED
    store = TokenStore.open(table_of(texts), tokenizer)
    form = SingleTexts(tokenizer, max_length)
    rows = np.arange(len(texts))
    single = form.lay_out(store, rows)
    assert one_by_one(single) == [
        as_the_tokenizer_says(tokenizer, text, max_length=max_length) for text in texts
    ]
    assert single.lengths.tolist() == form.lengths(store.lengths(rows)).tolist()
    assert {t.dtype for t in single if isinstance(t, torch.Tensor)} == {torch.int64}
    assert single.host_lengths.tolist() == single.lengths.tolist()


# A copy of many words takes long.
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"many words"}))
@pytest.mark.parametrize("side", ["right", pytest.param("left", marks=pytest.mark.long)])
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
        expected = [
            as_the_tokenizer_says(tokenizer, prompt + text, max_length=max_length) for text in texts
        ]
        tokens = form.store(table) if number % 5 == 1 else form.tokens(texts)
        assert one_by_one(form.lay_out(tokens, rows)) == expected, prompt
        lengths = form.lengths(tokens.lengths(rows)).tolist()
        assert lengths == [len(ids) for ids, _ in expected]
        with refused(f"a token of the text beside .* of the prompt .*, got {n_prompt} "):
            SingleTexts(tokenizer, n_prompt, prompt)


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"many words"}))
def test_many_texts_get_the_tokens_that_each_gets_alone(kind):
    form = SingleTexts(tokenizer_of(kind), 30, "w2: ")
    texts = [*TEXTS, " w1", "\tw2", *COUNTED[1:]]
    alone = [form.tokens([text])[0].tolist() for text in texts]
    times = -(-MANY_TEXTS // len(texts))
    tokens = form.tokens(texts * times)
    assert [tokens[row].tolist() for row in range(len(tokens))] == alone * times
    assert (tokens.dtype, tokens.rendering_key) == (form.tokens(["w1"]).dtype, "w2: ")


def test_a_space_at_the_end_of_a_prompt_opens_the_first_word_of_a_byte_level_bpe():
    """``w2 : Ġw1``, as in no prompt apart: ``w2 : Ġ w1``."""
    tokenizer = byte_level_bpe()
    form = SingleTexts(tokenizer, 48, "w2: ")
    (ids,) = ids_of(form.lay_out(form.tokens(["w1"]), np.array([0])))
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokens == ["<s>", "w", "2", ":", "Ġw", "1", "</s>"]


def test_what_prompts_tokenised_apart_have_made_has_another_key():
    """Without a prompt the tokens are what they were, and so is the key of mined negatives."""
    tokenizer = wordpiece_tokenizer()
    assert SingleTexts(tokenizer, 12).key == [12, ""]
    assert SingleTexts(tokenizer, 12, "w1 ").key == [12, "w1 "]


def test_tokens_of_another_prompt_are_not_laid_out():
    tokenizer = wordpiece_tokenizer()
    tokens = SingleTexts(tokenizer, 12).tokens(["w1"])
    with pytest.raises(AssertionError, match="tokens of another prompt"):
        SingleTexts(tokenizer, 12, "w2 ").lay_out(tokens, np.array([0]))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("max_length", [32, 256])
def test_real_texts_equal_the_tokenizer_own(side, max_length):
    tokenizer = tokenizer_of("MiniLM", side)
    queries = medquad("queries", 60)
    docs = medquad("corpus", 60)
    query_store = TokenStore.open(table_of(queries), tokenizer)
    doc_store = TokenStore.open(table_of(docs), tokenizer)
    rows = np.flatnonzero(query_store.lengths(np.arange(60)) < 28)
    pairs = JoinedPairs(tokenizer, max_length).lay_out(query_store, rows, doc_store, rows)
    assert len(rows) > 30
    assert one_by_one(pairs) == [
        as_the_tokenizer_says(tokenizer, queries[i], docs[i], max_length=max_length) for i in rows
    ]
    form = SingleTexts(tokenizer, max_length, "passage: ")
    single = form.lay_out(form.store(table_of(docs)), rows)
    assert one_by_one(single) == [
        as_the_tokenizer_says(tokenizer, "passage: " + docs[i], max_length=max_length) for i in rows
    ]


@pytest.mark.parametrize("kind", [wordpiece_tokenizer, byte_level_bpe, sentencepiece_like])
def test_a_batch_is_its_texts_one_after_the_other(kind):
    tokenizer = kind()
    store = TokenStore.open(table_of(TEXTS), tokenizer)
    join = JoinedPairs(tokenizer, 60)
    single = SingleTexts(tokenizer, 8, "w1")
    prompted_store = single.store(table_of(TEXTS))
    query_rows = np.array([0, 2, 0, 1, 0])
    doc_rows = np.array([3, 3, 5, 3, 3])

    def pairs(order):
        return one_by_one(join.lay_out(store, query_rows[order], store, doc_rows[order]))

    def texts(order):
        return one_by_one(single.lay_out(prompted_store, doc_rows[order]))

    for order in ([0, 1, 2, 3, 4], [4, 0, 3, 2, 1], [], [2, 2]):
        for laid_out in (pairs, texts):
            assert laid_out(order) == [laid_out([one])[0] for one in order]


def test_a_query_that_leaves_no_room_keeps_half(caplog):
    """Three special tokens of 9 leave 6: a query of 5 is whole, beside one token of the document;
    one of 6 or more keeps 3, and so does the document.
    """
    tokenizer = wordpiece_tokenizer()
    words = "w1 w2 w3 w4 w5 w6 w7 w8"
    table = table_of(["w1", "w1 w2 w3 w4 w5", "w1 w2 w3 w4 w5 w6", words], "q")
    join = JoinedPairs(tokenizer, 9)
    docs = join.tokens([words], "document")
    expected = []
    for n_query, n_document in ((1, 5), (5, 1), (3, 3), (3, 3)):
        query, document = (" ".join(words.split()[:n]) for n in (n_query, n_document))
        expected.append(tokenizer(query, document)["input_ids"])
    in_memory = join.tokens(list(table.texts), "query")
    said = "2 of 4 queries leave no room for a document among max_length 9 tokens, and are cut to 3 tokens; the longest has 8, the first is"
    assert caplog.messages == [f"{said} 'w1 w2 w3 w4 w5 w6'"]
    caplog.clear()
    join.store(table, "query")
    join.store(table, "query")
    assert caplog.messages == [f"{said} '{table.ids[2]}'"], "once of a table"
    for tokens in (join.store(table, "query"), in_memory):
        again = pickle.loads(pickle.dumps(tokens))
        assert ids_of(join.lay_out(again, np.arange(4), docs, np.zeros(4, np.int64))) == expected
    assert join.rendered(words, "w9") == ["w1 w2 w3", "w9"]
    with refused("room for a query and a document beside 3"):
        JoinedPairs(tokenizer, 4)


@pytest.mark.parametrize("template", [None, Template(query="w9 {query} w8")])
def test_queries_that_a_dual_encoder_cuts_are_counted(template, caplog):
    """Two special tokens of 9 leave 7: two queries of 8 and 10 tokens are cut. Around each there may
    stand two more: then the one of 6 is cut, too, also where the text alone is cut, so that what
    stands behind it stays.
    """
    tokenizer = wordpiece_tokenizer()
    texts = [" ".join(["w1"] * n) for n in (2, 6, 8, 10)]
    table = table_of(texts, "q")
    forms = [
        SingleTexts(tokenizer, 9, template=template, side=side) for side in ("query", "document")
    ]
    reads = ApartTexts(*forms)
    n_cut, longest, first = (2, 10, 2) if template is None else (3, 12, 1)
    said = f"{n_cut} of 4 queries have more tokens than max_length 9 reads, and are cut to 7 tokens; the longest has {longest}, the first is"
    reads.store(table, "query")
    reads.store(table, "query")
    reads.store(table, "document")
    reads.tokens(texts, "document")
    assert caplog.messages == [f"{said} '{table.ids[first]}'"], "once, and nothing of documents"
    caplog.clear()
    tokens = reads.tokens(texts, "query")
    assert caplog.messages == [f"{said} '{texts[first]}'"]
    assert max(map(len, ids_of(reads.queries.lay_out(tokens, np.arange(4))))) == 9


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_any_query_is_read_as_the_tokenizer_reads_what_is_left_of_it(kind, side):
    """Of random texts and lengths: the whole query where ``only_second`` takes it, else a piece of
    it, of which the tokenizer makes the same tokens.
    """
    tokenizer = tokenizer_of(kind, side)
    draws = np.random.default_rng(0)
    words = [*WORDS, "é", "naïve", "中文字", "unknown", "—", "😀"]
    n_cut = 0
    for max_length in (8, 13, 30):
        join = JoinedPairs(tokenizer, max_length)
        half = (max_length - join.n_special) // 2
        queries = [" ".join(draws.choice(words, draws.integers(1, 30))) for _ in range(16)]
        docs = [" ".join(draws.choice(words, draws.integers(1, 12))) for _ in range(16)]
        kept = join.tokens(queries, "query").lengths(np.arange(16))
        laid_out = ids_of_pairs(join, queries, docs)
        for query, document, n_kept, ids in zip(queries, docs, kept, laid_out, strict=True):
            n_query = len(tokenizer(query, add_special_tokens=False)["input_ids"])
            fits = n_query + join.n_special + 1 <= max_length
            piece, _ = join.rendered(query, document)
            assert (piece == query) == fits
            assert query.startswith(piece) if side == "right" else query.endswith(piece)
            assert fits or half - 8 < n_kept <= half
            n_cut += not fits
            expected, _ = as_the_tokenizer_says(tokenizer, piece, document, max_length=max_length)
            assert ids == expected
    assert n_cut >= 8


def test_a_tokenizer_by_which_no_special_token_can_be_found_is_refused():
    """A vocabulary without the example's letter, and without a token for what it does not know."""
    backend = Tokenizer(models.BPE(vocab={"[CLS]": 0, "b": 1}, merges=[]))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A $B", special_tokens=[("[CLS]", 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    for form in (SingleTexts, JoinedPairs):
        with refused("the tokenizer must know 'a'"):
            form(tokenizer, 20)
