"""The tokens of a query and a document in a template are those of the whole text."""

import logging
import pickle
from dataclasses import replace

import numpy as np
import pytest

from ltr.data.collate import PairCollator
from ltr.data.layouts import ApartTexts, JoinedPairs, SingleTexts
from ltr.data.query_lists import LabelledList
from ltr.data.record_files import open_record_files
from ltr.data.template import Template
from ltr.data.templated_pairs import TemplatedPairs
from tests.world.collections import write_jsonl
from tests.world.laid_out import ids_of
from tests.world.laid_out import ids_of_pairs as laid_out
from tests.world.refusals import refused
from tests.world.tokenizers import KINDS, TEXTS, byte_level_bpe, llama_like, table_of, tokenizer_of

PLAIN = Template(
    query="Do: {instruction}\nAsk: {query}",
    document="Read: {document}",
    pair="Judge.\n{query}\n{document}\nAnswer:",
    instruction="find w1",
)
LONG = " ".join(f"w{number}" for number in range(1, 13)) * 9


def kept_of(text, kept, side):
    """Whether it is the begin of a text, or, where the left side is cut, its end."""
    return text.startswith(kept) if side == "right" else text.endswith(kept)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_whole_text(kind):
    """As any server makes them of the same string, whatever stands at the borders of the fields."""
    tokenizer = tokenizer_of(kind)
    reads = TemplatedPairs(tokenizer, 10_000, PLAIN)
    docs = TEXTS[::-1]
    expected = []
    for query, document in zip(TEXTS, docs, strict=True):
        text = f"Judge.\nDo: find w1\nAsk: {query}\nRead: {document}\nAnswer:"
        assert reads.rendered(query, document)[0] == text
        expected.append(tokenizer(text)["input_ids"])
    assert laid_out(reads, TEXTS, docs) == expected


def test_a_template_with_special_tokens_gets_no_others():
    tokenizer = llama_like()  # which puts <s> in front
    chat = Template(pair="<s>{query}</s>{document}</s>")
    (ids,) = laid_out(TemplatedPairs(tokenizer, 500, chat), ["w1"], ["w2"])
    assert ids == tokenizer("<s>w1</s>w2</s>", add_special_tokens=False)["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 1 and ids.count(tokenizer.eos_token_id) == 2
    (ids,) = laid_out(TemplatedPairs(tokenizer, 500, PLAIN), ["w1"], ["w2"])
    assert ids.count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_document_is_cut_and_nothing_else(kind, side):
    tokenizer = tokenizer_of(kind, side)
    longest = TemplatedPairs(tokenizer, 10_000, PLAIN).n_template + 14
    reads = TemplatedPairs(tokenizer, longest, PLAIN)
    (ids,) = laid_out(reads, ["w3"], [LONG])
    shown = reads.rendered("w3", LONG)[0]
    assert ids == tokenizer(shown)["input_ids"]
    # A text of one token that the template's text shares may be missing.
    assert longest - 1 <= len(ids) <= longest
    begin = "Judge.\nDo: find w1\nAsk: w3\nRead: "
    assert shown.startswith(begin) and shown.endswith("\nAnswer:")
    kept = shown.removeprefix(begin).removesuffix("\nAnswer:")
    assert kept and kept_of(LONG, kept, side)


def test_each_field_has_its_budget():
    """Of byte-level tokens: those of a text alone are counted."""
    tokenizer = byte_level_bpe()
    fields = ("{instruction}|{query}", "{document}", "{query}|{document}", "w1 w2 w3")
    template = Template(*fields, instruction_tokens=2, query_tokens=3, document_tokens=4)
    parts = TemplatedPairs(tokenizer, 10_000, template).rendered("w4 w5 w6 w7", LONG)[0].split("|")
    assert [len(tokenizer.tokenize(part)) for part in parts] == [2, 3, 4]
    for part, whole in zip(parts, ["w1 w2 w3", "w4 w5 w6 w7", LONG], strict=True):
        assert whole.startswith(part)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_cut_does_not_pass_its_budget_inside_a_character(side):
    """Each of these letters is two or three tokens of bytes: an odd one is left out, not kept."""
    tokenizer = byte_level_bpe()
    tokenizer.truncation_side = side
    text = "жツжツжツ"
    n_tokens = len(tokenizer.tokenize(text))
    assert n_tokens == 3 * (2 + 3)
    kept_letters = []
    for budget in range(1, n_tokens + 1):
        template = Template(pair="{query}|{document}", document_tokens=budget)
        kept = TemplatedPairs(tokenizer, 500, template).rendered("w1", text)[0].removeprefix("w1|")
        assert kept_of(text, kept, side)
        assert len(tokenizer.tokenize(kept)) <= budget
        kept_letters.append(len(kept))
    # ж has two tokens and ツ three: from the left they end at 2, 5, 7, 10, 12, 15; from the right at
    # 3, 5, 8, 10, 13, 15.
    ends = [2, 5, 7, 10, 12, 15] if side == "right" else [3, 5, 8, 10, 13, 15]
    assert kept_letters == [sum(end <= budget for end in ends) for budget in range(1, 16)]


def test_a_cut_keeps_so_many_tokens_as_have_room():
    """Three tokens a letter: one of the first letter has room. A text can only say none."""
    tokenizer = byte_level_bpe()
    template = Template(pair="{query}|{document}")
    longest = TemplatedPairs(tokenizer, 500, template).n_template + 3
    reads = TemplatedPairs(tokenizer, longest, template)
    first, *others = tokenizer("ツ", add_special_tokens=False)["input_ids"]
    assert len(others) == 2
    before = tokenizer("ж|", add_special_tokens=False)["input_ids"]
    (ids,) = laid_out(reads, ["ж"], ["ツツ"])
    assert ids == [tokenizer.bos_token_id, *before, first, tokenizer.eos_token_id]
    assert reads.rendered("ж", "ツツ") == ["ж|"]
    assert reads.document_for_proof("ж", "ツツ") == ""
    assert reads.document_for_proof("w1", "a") == "a"


OTHER_ENDS = [("{document}|{query}", "right"), ("{query}|{document}", "left")]


@pytest.mark.parametrize("pair, side", OTHER_ENDS)
def test_what_another_library_would_not_cut_is_expressed_by_a_text(pair, side):
    """It cuts the end of the whole, or its begin with what the template has there."""
    tokenizer = byte_level_bpe()
    tokenizer.truncation_side = side
    longest = TemplatedPairs(tokenizer, 500, Template(pair=pair)).n_template + 12
    reads = TemplatedPairs(tokenizer, longest, Template(pair=pair))
    kept = reads.document_for_proof("w3", LONG)
    assert kept and kept_of(LONG, kept, side)
    (shown,) = reads.rendered("w3", LONG)
    assert laid_out(reads, ["w3"], [kept]) == [tokenizer(shown)["input_ids"]]
    (ids,) = laid_out(reads, ["w3"], [LONG])
    query = tokenizer("|w3" if side == "right" else "w3|", add_special_tokens=False)["input_ids"]
    assert (ids[-1 - len(query) : -1] if side == "right" else ids[1 : 1 + len(query)]) == query


def test_an_instruction_of_a_query_changes_the_tokens_of_that_query_alone(queries):
    def stored(**own):
        reads = TemplatedPairs(byte_level_bpe(), 500, PLAIN)
        of_queries = pickle.loads(pickle.dumps(reads.store(queries(**own), "query")))
        docs = reads.store(table_of(["w4", "w5"]), "document")
        return ids_of(reads.lay_out(of_queries, np.arange(3), docs, np.array([0, 1, 0]))), reads

    plain, reads = stored()
    own, _ = stored(b="explain w9")
    assert own[0] == plain[0] and own[2] == plain[2] and own[1] != plain[1]
    text = "Judge.\nDo: explain w9\nAsk: w2\nRead: w5\nAnswer:"
    assert own[1] == reads.tokenizer(text)["input_ids"]
    assert reads.rendered("w2", "w5", "explain w9")[0] == text


def test_lists_are_laid_out_by_the_collator():
    reads = TemplatedPairs(byte_level_bpe(), 500, PLAIN)
    queries = reads.tokens(["w1", "w2"], "query")
    docs = reads.tokens(["w3", "w4 w5"], "document")
    collator = PairCollator(queries, docs, reads)
    lists = [
        LabelledList(1, np.array([0, 1]), np.array([1.0, 0.0], np.float32)),
        LabelledList(0, np.array([1]), np.array([1.0], np.float32)),
    ]
    batch = collator(lists)
    expected = laid_out(reads, ["w2", "w2", "w1"], ["w3", "w4 w5", "w4 w5"])
    assert batch.pairs.lengths.tolist() == [len(ids) for ids in expected]
    assert batch.pairs.ids.tolist() == [id_ for ids in expected for id_ in ids]
    # But for words that share a token with what stands before and behind them.
    difference = collator.costs(lists[0]) - batch.pairs.lengths[:2].numpy()
    assert (np.abs(difference) <= 4).all()


def test_no_pair_is_no_text():
    reads = TemplatedPairs(byte_level_bpe(), 500, PLAIN)
    nothing = np.empty(0, np.int64)
    texts = reads.lay_out(reads.tokens([], "query"), nothing, reads.tokens([], "document"), nothing)
    assert texts.ids.tolist() == [] and texts.lengths.tolist() == []
    assert texts.ids.dtype == texts.lengths.dtype


def test_what_leaves_no_room_is_refused():
    tokenizer = byte_level_bpe()
    n_template = TemplatedPairs(tokenizer, 500, PLAIN).n_template
    with refused(f"beside {n_template} tokens of the template, got 9"):
        TemplatedPairs(tokenizer, 9, PLAIN)
    with refused("needs a template of both, got none"):
        TemplatedPairs(tokenizer, 500, Template())
    cut = Template(PLAIN.query, PLAIN.document, PLAIN.pair, PLAIN.instruction, query_tokens=3)
    (ids,) = laid_out(TemplatedPairs(tokenizer, n_template + 5, cut), [LONG], ["w1 w2"])
    assert len(ids) == n_template + 5


@pytest.mark.parametrize("own", [3, ["find"], {"a": "b"}])
def test_the_instruction_of_a_query_must_be_a_string(tmp_path, own):
    """What a document calls its instruction is nobody's business."""
    file = tmp_path / "texts.jsonl"
    write_jsonl(file, [{"_id": "a", "text": "w1", "instruction": own}])
    with refused("jsonl:1: the instruction of a query must be a string, got"):
        open_record_files(file, "query")
    assert open_record_files(file, "document").instructions is None


def test_instructions_of_parquet_are_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    columns = {"_id": ["b", "a"], "text": ["w2", "w1"], "instruction": [None, "explain w9"]}
    write_table(pyarrow.table(columns), tmp_path / "queries.parquet")
    table = open_record_files(tmp_path / "queries.parquet", "query")
    assert list(table.texts) == ["w1", "w2"] and list(table.instructions) == ["explain w9", ""]


def test_an_instruction_that_leaves_no_room_is_refused_at_the_start(queries):
    reads = TemplatedPairs(byte_level_bpe(), 120, PLAIN)
    reads.store(queries(b="explain w9"), "query")
    with refused("instruction of a query must leave room .* max_length 120 tokens, got 'w1 w2"):
        reads.store(queries(b=LONG), "query")
    cut = replace(PLAIN, instruction_tokens=5)
    TemplatedPairs(byte_level_bpe(), 120, cut).store(queries(b=LONG), "query")


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_that_leaves_no_room_for_a_document_is_cut(kind, caplog):
    """To half of the tokens that the template leaves; and a document beside it to the other half.
    What is read is the text that is said, of a query with its own instruction too.
    """
    tokenizer = tokenizer_of(kind)
    reads = TemplatedPairs(tokenizer, 120, PLAIN)
    long = f"{LONG} {LONG} {LONG}"
    queries = [long, "w1", f"é中 {long}"]
    instructions = ["", "", "explain w9"]
    tokens = reads.tokens(queries, "query", instructions)
    rows = np.arange(3)
    pairs = ids_of(reads.lay_out(tokens, rows, reads.tokens([long] * 3, "document"), rows))
    half = (120 - reads.n_special) // 2
    assert half - 4 <= tokens.lengths(np.array([0])) <= half
    assert "2 of 3 queries leave no room for a document among max_length 120" in caplog.text
    for ids_of_pair, query, instruction in zip(pairs, queries, instructions, strict=True):
        assert 100 <= len(ids_of_pair) <= 120
        query_text = reads.query_text(query, instruction)
        assert query_text.startswith(f"Do: {instruction or 'find w1'}\nAsk: {query[:7]}")
        (text,) = reads.rendered(query, long, instruction)
        assert f"{query_text}\nRead: w1 w2" in text and text.endswith("\nAnswer:")
        assert abs(len(tokenizer(text)["input_ids"]) - len(ids_of_pair)) <= 2


def test_a_long_query_of_a_source_is_cut_in_training_batches():
    """The same in a store on disk, and in a process that was handed the collator."""
    reads = TemplatedPairs(byte_level_bpe(), 120, PLAIN)
    table = table_of(["w1", LONG], "q")
    tokens = pickle.loads(pickle.dumps(reads.store(table, "query")))
    docs = reads.store(table_of([LONG]), "document")
    in_memory = reads.tokens(["w1", LONG], "query")
    stored, expected = (
        reads.lay_out(each, np.array([1, 0]), docs, np.array([0, 0]))
        for each in (tokens, in_memory)
    )
    assert stored.lengths.max() <= 120 and stored.ids.tolist() == expected.ids.tolist()


READERS = {
    "joined": lambda tokenizer: JoinedPairs(tokenizer, 100),
    "in a template": lambda tokenizer: JoinedPairs(tokenizer, 100, Template("Do: {query}")),
    "apart": lambda tokenizer: ApartTexts(*[SingleTexts(tokenizer, 100)] * 2),
    "one text": lambda tokenizer: TemplatedPairs(
        tokenizer, 200, Template(pair="{query} {document}")
    ),
}


@pytest.mark.parametrize("kind", READERS)
def test_instructions_that_are_not_read_are_told(queries, caplog, kind):
    with caplog.at_level(logging.WARNING, logger="ltr"):
        READERS[kind](byte_level_bpe()).store(queries(b="explain w9"), "query")
    (line,) = caplog.messages
    assert line.startswith("queries have instructions")
    assert "does not read: its template has no {instruction}" in line
