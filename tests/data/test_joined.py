"""Collections laid one behind the other: each text is read as it is alone."""

import pickle

import numpy as np
import pytest
import torch

from ltr.data.collate import collator_of
from ltr.data.collection import open_collection
from ltr.data.concatenated import concatenated
from ltr.data.joined import JoinedCollections
from ltr.data.layouts import ApartTexts, JoinedPairs, PairsAndTexts, SingleTexts
from ltr.data.query_lists import LabelledList
from ltr.data.template import Template
from ltr.data.templated_pairs import TemplatedPairs
from ltr.data.windows import Windows
from tests.world.backbones import wordpiece_tokenizer
from tests.world.collections import write_collection

PAIR = Template("{instruction} a {query}", "{document}", "{query} a {document}", "w9")
FORMS = {
    "pairs": lambda tokenizer: JoinedPairs(tokenizer, 24),
    "one text": lambda tokenizer: TemplatedPairs(tokenizer, 40, PAIR),
    "apart": lambda tokenizer: apart(tokenizer, 16),
    "pairs in windows": lambda tokenizer: JoinedPairs(tokenizer, 24, windows=Windows(3, 2)),
    "windows apart": lambda tokenizer: apart(tokenizer, 16, "w9", windows=Windows(3, 2)),
    "both": lambda tokenizer: PairsAndTexts(JoinedPairs(tokenizer, 24), apart(tokenizer, 9)),
}


def apart(tokenizer, *of_docs, **options):
    return ApartTexts(SingleTexts(tokenizer, 24), SingleTexts(tokenizer, *of_docs, **options))


@pytest.fixture(scope="module")
def collections(tmp_path_factory):
    """Three sources; the first and the last share a corpus."""
    folder = tmp_path_factory.mktemp("sources")
    a = write_collection(folder / "a", n_queries=4, n_docs=3)
    b = write_collection(folder / "b", n_queries=3, n_docs=3, seed=1)
    c = write_collection(folder / "c", n_queries=4, n_docs=3)
    lines = (c / "queries.jsonl").read_text().replace('"text": "', '"text": "w7 ')
    (c / "queries.jsonl").write_text(lines)
    return [open_collection(path) for path in (a, b, c)]


@pytest.fixture
def joined(collections):
    return JoinedCollections(["a", "b", "c"], collections)


def some_lists(collection):
    judged = collection.qrels["train"]
    for query in judged.query_rows[:3].tolist():
        rows, _ = judged.of(query)
        yield judged.labelled(query, rows[::-1].copy())


def test_numbers_by_hand(joined):
    """12 queries of a, 9 of b; 36 documents of a and c, 27 of b."""
    assert joined.first_queries.tolist() == [0, 12, 21]
    assert joined.first_docs.tolist() == [0, 36, 0]
    assert len(joined.query_ids) == 12 + 9 + 12 and len(joined.doc_ids) == 36 + 27
    assert joined.query_ids[12] == f"b/{joined.collections[1].queries.ids[0]}"
    assert joined.doc_ids[36 + 26] == f"b/{joined.collections[1].corpus.ids[26]}"
    assert joined.doc_ids[0] == f"a/{joined.collections[2].corpus.ids[0]}"
    with pytest.raises(IndexError):
        joined.doc_ids[63]
    known_rows = np.array([2, 5])
    alone = LabelledList(1, np.array([0, 2]), np.ones(2), known_rows=known_rows)
    shifted = joined.shift_of(1)(alone)
    assert (shifted.query_row, shifted.doc_rows.tolist()) == (13, [36, 38])
    assert shifted.known_rows.tolist() == [38, 41] and known_rows.tolist() == [2, 5]


@pytest.mark.parametrize("form", FORMS)
def test_each_list_is_read_as_it_is_alone(form, collections, joined):
    """Lists of all sources in one batch, one of each in turn."""
    reads = FORMS[form](wordpiece_tokenizer())
    together = pickle.loads(pickle.dumps(joined.collator(reads)))
    by_source = []
    for number, collection in enumerate(collections):
        alone = collator_of([collection.queries], [collection.corpus], reads)
        lists = list(some_lists(collection))
        by_source.append([(number, one, alone([one]), alone.sort_length(one)) for one in lists])
    in_turn = [one for of_all in zip(*by_source, strict=True) for one in of_all]
    batch = together([joined.shift_of(number)(one) for number, one, _, _ in in_turn])
    assert batch.sources.tolist() == [number for number, *_ in in_turn]
    for name in ("pairs", "queries", "docs"):
        texts = getattr(batch, name)
        expected = [getattr(alone, name) for _, _, alone, _ in in_turn]
        if texts is None:
            assert expected[0] is None
            continue
        assert torch.equal(texts.ids, torch.cat([one.ids for one in expected]))
        assert torch.equal(texts.lengths, torch.cat([one.lengths for one in expected]))
        if texts.windows is not None:
            assert torch.equal(texts.windows, torch.cat([one.windows for one in expected]))
            assert texts.windows.max() > 1
    for row, (number, one, alone, length) in enumerate(in_turn):
        assert together.sort_length(joined.shift_of(number)(one)) == length
        assert torch.equal(batch.labels[row], alone.labels[0])
        assert batch.query_rows[row] == alone.query_rows[0] + joined.first_queries[number]


def test_a_shared_corpus_has_one_store(joined):
    collator = joined.collator(FORMS["apart"](wordpiece_tokenizer())).collator
    assert [len(part) for part in collator.doc_tokens.parts] == [36, 27]
    assert [len(part) for part in collator.query_tokens.parts] == [12, 9, 12]


def test_one_table_stays_as_it_is_and_rows_that_are_nowhere_are_refused(collections):
    reads = FORMS["pairs"](wordpiece_tokenizer())
    stores = [reads.store(one.corpus, "document") for one in collections[:2]]
    assert concatenated(stores[:1]) is stores[0]
    tokens = concatenated(stores)
    assert tokens[36].tolist() == stores[1][0].tolist()
    for row in (-1, 63):
        with pytest.raises(IndexError, match="rows must be between 0 and 62"):
            tokens.lengths(np.array([3, row]))


def test_a_part_of_them_crosses_from_table_to_table(collections):
    """Every part of 12 + 9 queries has the tokens of its rows."""
    form = SingleTexts(wordpiece_tokenizer(), 24)
    tables = [form.store(collection.queries) for collection in collections[:2]]
    joined = concatenated(tables)
    for first in range(len(joined) + 1):
        for stop in range(first, len(joined) + 1):
            part = joined.between(first, stop)
            rows = np.arange(stop - first)
            assert len(part) == stop - first
            assert part.lengths(rows).tolist() == joined.lengths(rows + first).tolist()
            for row in rows.tolist():
                assert part[row].tolist() == joined[row + first].tolist()
