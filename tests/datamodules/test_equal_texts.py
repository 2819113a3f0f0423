"""What never becomes a negative in training: a query that is a document, what answers an equal query,
the text of a relevant document under another id.
"""

import logging

import numpy as np
import pytest

from ltr.datamodules import Evaluation, GroupDataModule, ListDataModule, TripletDataModule
from ltr.mining.audit import find_suspects
from ltr.mining.imported import negatives_of_file
from ltr.mining.judge import TextScorer
from tests.datamodules.read import reads_of
from tests.mining.audited import negatives_of
from tests.mining.test_judge import ByNumber
from tests.world.collections import by_ids, small_collection

TOPICS = ["uniforms", "power", "trade", "space", "taxes", "zoos"]
CORPUS = {}
QUERIES = {}
JUDGED = []
for topic in TOPICS:  # each argument is a query, and stands in the corpus again under another id
    CORPUS[f"{topic}-pro"] = f"{topic} help people and save money"
    CORPUS[f"{topic}-again"] = f"{topic} help people and save money"
    CORPUS[f"{topic}-con"] = f"{topic} harm people and waste money"
    QUERIES[f"{topic}-pro"] = CORPUS[f"{topic}-pro"]
    JUDGED.append((f"{topic}-pro", f"{topic}-con", 1))
# One question under two ids; x1 again as x3.
CORPUS |= {"x1": "people say Paris", "x2": "Paris by the Seine, people", "x3": "people say Paris"}
QUERIES |= {"q1": "which people and money", "q2": "which people and money"}
JUDGED += [("q1", "x1", 1), ("q2", "x2", 1), ("q2", "x1", 0)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("equal") / "c"
    small_collection(folder, CORPUS, QUERIES, JUDGED, test=JUDGED)
    (folder / "candidates").mkdir()
    lines = []
    for query in QUERIES:
        for place, doc in enumerate(CORPUS):
            lines.append(f"{query} Q0 {doc} 1 {-place} x\n")
    for split in ("train", "test"):
        (folder / f"candidates/{split}.trec").write_text("".join(lines))
    return folder


def is_never_negative(query, doc):
    if CORPUS[doc] == QUERIES[query]:
        return True
    return query in ("q1", "q2") and doc in ("x1", "x2", "x3")


@pytest.mark.parametrize("negatives", ["random", "bm25", "candidates"])
@pytest.mark.parametrize("reads", ["apart", "pairs"])
def test_no_source_of_negatives_gives_one(folder, negatives, reads):
    data = TripletDataModule(
        str(folder), negatives, negatives_per_query=50, evaluation=Evaluation(candidates=None)
    )
    data.reads = reads_of(reads)
    data.setup("fit")
    n_drawn = 0
    for batch in data.train_dataloader():
        for row, docs, grades, real in zip(
            batch.query_rows, batch.doc_rows, batch.labels, batch.mask, strict=True
        ):
            query = data.collection.queries.ids[int(row)]
            for doc in docs[real & (grades == 0)].tolist():
                n_drawn += 1
                assert not is_never_negative(query, data.collection.corpus.ids[doc])
    assert n_drawn > 8 * 10


def test_lists_and_groups_leave_them_out_and_know_them(folder, caplog):
    with caplog.at_level(logging.INFO):
        lists = ListDataModule(str(folder), evaluation=Evaluation("candidates"))
        lists.reads = reads_of("apart")
        lists.setup("fit")
    assert "are never negatives" in caplog.text
    groups = GroupDataModule(str(folder), groups=8, evaluation=Evaluation(candidates=None))
    groups.reads = reads_of("apart")
    groups.setup("fit")
    for data in (lists, groups):
        for batch in data.train_dataloader():
            for place, row in enumerate(batch.query_rows.tolist()):
                query = data.collection.queries.ids[row]
                own = {doc for q, doc, grade in JUDGED if q == query and grade > 0}
                docs = batch.doc_rows[place][batch.mask[place]].tolist()
                listed = {data.collection.corpus.ids[doc] for doc in docs}
                assert own <= listed, "what is relevant stays"
                assert not any(is_never_negative(query, doc) for doc in listed - own)
                rows = batch.judged_rows[place].tolist()
                known = {data.collection.corpus.ids[doc] for doc in rows if doc >= 0}
                assert {doc for doc in CORPUS if is_never_negative(query, doc)} <= known


@pytest.mark.parametrize("candidates", ["candidates", "bm25"])
def test_evaluation_leaves_the_document_of_the_own_id_out_and_no_other(folder, caplog, candidates):
    """The same text under another id is a document as any: BEIR ranks it, too."""
    data = TripletDataModule(str(folder), evaluation=Evaluation(candidates, depth=30))
    data.reads = reads_of("pairs")
    with caplog.at_level(logging.INFO):
        data.setup("test")
    assert "6 of 8 queries are documents of the corpus, by id and text" in caplog.text
    for batch in data.eval_batches("test").batches:
        for labelled in batch:
            query = data.collection.queries.ids[labelled.query_row]
            docs = {data.collection.corpus.ids[doc] for doc in labelled.doc_rows.tolist()}
            assert docs == set(CORPUS) - {query}


def test_evaluation_by_search_knows_the_own_documents(folder):
    data = TripletDataModule(str(folder), evaluation=Evaluation("corpus", depth=5))
    data.reads = reads_of("apart")
    data.setup("test")
    own = data.corpora[0].own_docs
    ids = data.collection.corpus.ids
    assert [ids[doc] for doc in own.tolist() if doc >= 0] == sorted(f"{t}-pro" for t in TOPICS)


def test_imported_negatives_and_audits_leave_them_out(folder, tmp_path):
    """A run of all documents for each query; a judge that takes each for relevant."""
    data = TripletDataModule(str(folder), evaluation=Evaluation(candidates=None))
    data.reads = reads_of("apart")
    data.setup("fit")
    collection = data.collection
    run = tmp_path / "all.trec"
    run.write_text((folder / "candidates/train.trec").read_text())
    negatives = negatives_of_file(run, collection)
    found = by_ids(collection, negatives.lists)
    assert set(found) == set(QUERIES)
    for query, docs in found.items():
        assert not any(is_never_negative(query, doc) for doc in docs)
    # A folder that others have made, with all documents, is audited.
    row = collection.queries.row("zoos-pro")
    docs = [collection.corpus.row(f"zoos-{name}") for name in ("pro", "again")]
    other = collection.corpus.row("taxes-con")
    folder_of_others = negatives_of(collection, {row: [*docs, other]})
    scores = {doc: float(doc in (*docs, other)) for doc in range(len(collection.corpus))}
    judge = TextScorer("a table", ByNumber(scores), collection)
    suspects, counts = find_suspects(folder_of_others, collection.judgements("train"), judge)
    assert suspects.doc_rows.tolist() == [other] and counts["negatives"] == 1


def test_equal_queries_keep_their_own_positives(folder):
    """What answers an equal query is no negative; but a row draws what is relevant for its own id."""
    data = TripletDataModule(
        str(folder), "random", positives=9, evaluation=Evaluation(candidates=None)
    )
    data.reads = reads_of("apart")
    data.setup("fit")
    relevant = {}
    for batch in data.train_dataloader():
        for row, docs, grades in zip(batch.query_rows, batch.doc_rows, batch.labels, strict=True):
            ids = [data.collection.corpus.ids[doc] for doc in docs[grades > 0].tolist()]
            relevant[data.collection.queries.ids[int(row)]] = ids
    assert relevant["q1"] == ["x1"] and relevant["q2"] == ["x2"]
    assert np.isin(["uniforms-con"], relevant["uniforms-pro"]).all()
