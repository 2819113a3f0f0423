"""What is read of a side in its template: tokens of the whole, and the text alone is cut."""

import logging
import pickle

import numpy as np
import pytest

from ltr.data.cache_folder import entry_folder
from ltr.data.layouts import ApartTexts, JoinedPairs, SingleTexts
from ltr.data.template import Template
from ltr.data.tokens import TokenStore
from tests.world.backbones import wordpiece_tokenizer
from tests.world.laid_out import ids_of, ids_of_pairs
from tests.world.refusals import refused
from tests.world.tokenizers import KINDS, TEXTS, byte_level_bpe, table_of, tokenizer_of

TEMPLATE = Template("Do {instruction}: {query}", "Read: {document}", instruction="find w1")
BEHIND = Template("{instruction}: {query} ?", "Read: {document} !", instruction="w1")
LONG = "w1 w2 w3 w4 w5 w6 w7 w8 w9 " * 9


def single_ids(form, texts, instructions=None):
    return ids_of(form.lay_out(form.tokens(texts, instructions), np.arange(len(texts))))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_texts_in_their_templates(kind):
    """As the tokenizer makes them of the whole strings, in pairs and alone."""
    tokenizer = tokenizer_of(kind)
    queries = [f"Do find w1: {text}" for text in TEXTS]
    docs = [f"Read: {text}" for text in TEXTS[::-1]]
    reads = JoinedPairs(tokenizer, 10_000, TEMPLATE)
    expected = [tokenizer(*pair)["input_ids"] for pair in zip(queries, docs, strict=True)]
    assert ids_of_pairs(reads, TEXTS, TEXTS[::-1]) == expected
    assert reads.rendered(TEXTS[0], TEXTS[-1]) == [queries[0], docs[0]]
    form = SingleTexts(tokenizer, 10_000, template=BEHIND, side="query")
    behind = [tokenizer(f"w1: {text} ?")["input_ids"] for text in TEXTS]
    assert single_ids(form, TEXTS) == behind


def test_a_template_that_says_nothing_or_a_prompt_changes_no_tokens_and_no_keys():
    """Folders in the cache, keys of encodings and tokens are those from before templates."""
    tokenizer = byte_level_bpe()
    table = table_of(["w1 w2", "w3"])
    backend = tokenizer.backend_tokenizer
    settings = f"{backend.encode_special_tokens} {backend.to_str()}"

    def in_cache(prompt):
        return entry_folder("tokens", f"tokens-2 {table.key} {prompt!a} {settings}")

    plain = JoinedPairs(tokenizer, 24).store(table, "document")
    assert plain.folder == in_cache("") == TokenStore.open(table, tokenizer).folder
    assert JoinedPairs(tokenizer, 24, Template()).store(table, "query").folder == plain.folder
    prompt = SingleTexts(tokenizer, 24, "Read: ")
    same = SingleTexts(tokenizer, 24, template=TEMPLATE, side="document")
    assert prompt.key == same.key == [24, "Read: "]
    assert prompt.store(table).folder == same.store(table).folder == in_cache("Read: ")
    templates = [
        TEMPLATE,
        Template("Do {instruction}: {query}", instruction="find w2"),
        Template("Do find w1: {query}"),  # which reads no instruction of a query's own
        Template("Do find w1: {query}", query_tokens=9),
        BEHIND,
    ]
    keys = [SingleTexts(tokenizer, 24, template=one, side="query").key for one in templates]
    assert all(keys.count(key) == 1 for key in keys)


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_text_is_cut_and_what_stands_around_it_never_is(side):
    tokenizer = byte_level_bpe()
    tokenizer.truncation_side = side
    form = SingleTexts(tokenizer, 30, template=BEHIND, side="query")
    (ids,) = single_ids(form, [LONG])
    (text,) = form.rendered(LONG)
    assert ids == tokenizer(text)["input_ids"] and 28 <= len(ids) <= 30
    kept = text.removeprefix("w1: ").removesuffix(" ?")
    assert len(kept) == len(text) - 6 and kept
    assert LONG.startswith(kept) if side == "right" else LONG.endswith(kept)


def test_budgets_cut_a_field_before_it_is_put_in():
    tokenizer = byte_level_bpe()
    fields = ("{instruction}|{query}", "|{document}", None, "w1 w2 w3")
    template = Template(*fields, instruction_tokens=2, query_tokens=3, document_tokens=4)
    query, document = JoinedPairs(tokenizer, 500, template).rendered("w4 w5 w6 w7", LONG)
    counts = [len(tokenizer.tokenize(part)) for part in [*query.split("|"), document[1:]]]
    assert counts == [2, 3, 4]
    (alone,) = SingleTexts(tokenizer, 500, template=template, side="query").rendered("w4 w5 w6 w7")
    assert alone == query


@pytest.mark.parametrize("form", ["pairs", "single"])
def test_an_instruction_of_a_query_changes_the_tokens_of_that_query_alone(queries, form, caplog):
    caplog.set_level(logging.WARNING, logger="ltr")
    tokenizer = byte_level_bpe()
    reads = JoinedPairs(tokenizer, 100, TEMPLATE)
    if form == "single":
        reads = ApartTexts(*[SingleTexts(tokenizer, 100, template=TEMPLATE, side="query")] * 2)
    plain = reads.store(queries(), "query")
    own = pickle.loads(pickle.dumps(reads.store(queries(b="explain w9"), "query")))
    assert own[0].tolist() == plain[0].tolist() and own[2].tolist() == plain[2].tolist()
    alone = tokenizer("Do explain w9: w2", add_special_tokens=False)["input_ids"]
    assert own[1].tolist() == alone != plain[1].tolist()
    assert not caplog.records


def test_an_instruction_that_leaves_no_room_is_refused(queries):
    tokenizer = byte_level_bpe()
    for store in (
        lambda table: JoinedPairs(tokenizer, 60, TEMPLATE).store(table, "query"),
        SingleTexts(tokenizer, 60, template=TEMPLATE, side="query").store,
        SingleTexts(tokenizer, 60, template=BEHIND, side="query").store,
    ):
        store(queries(b="explain w9"))
        with refused("raise max_length, or set template"):
            store(queries(b=LONG))


def test_a_template_that_does_not_fit_is_refused():
    tokenizer = wordpiece_tokenizer()
    with refused("cut where template.document must have no text"):
        JoinedPairs(tokenizer, 40, BEHIND)
    with refused("has no template of both; leave out template.pair"):
        JoinedPairs(tokenizer, 40, Template(pair="{query}{document}"))
    with refused("room for a token of the text beside 3 of the template"):
        SingleTexts(tokenizer, 5, template=BEHIND, side="query")
    with refused(r"beside 9 tokens of the template, got 10"):
        JoinedPairs(tokenizer, 10, Template("w1 w2 w3 {query}", "w4 w5 w6 {document}"))
