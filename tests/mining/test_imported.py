"""Negatives of other files: TREC runs, arrays, pairs of ids."""

import gzip
import json
import lzma

import numpy as np
import pytest

from ltr.data.collection import open_collection
from ltr.datamodules import TripletDataModule
from ltr.errors import InputError
from ltr.mining.imported import negatives_of_file
from ltr.mining.mined_negatives import MinedNegatives
from ltr.models import DualEncoder
from tests.world.collections import small_collection, write_collection_with_twin, write_jsonl
from tests.world.data_modules import data_module
from tests.world.refusals import refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported") / "c"
    return write_collection_with_twin(folder, n_queries=3, n_docs=4)


@pytest.fixture(scope="module")
def collection(folder):
    return open_collection(str(folder))


def named(negatives, collection):
    """Ids of documents by id of the query, hardest first."""
    docs = {}
    for query in negatives.lists.query_rows:
        rows, _ = negatives.lists.of(query)
        docs[collection.queries.ids[query]] = [collection.corpus.ids[row] for row in rows]
    return {query: found for query, found in docs.items() if found}


RUN = """\
train-q0 Q0 dev-q1-d1 1 0.5 bm25
train-q0 Q0 twin 2 0.9 bm25
train-q0 Q0 train-q0-d0 3 0.8 bm25
train-q0 Q0 train-q0-d1 4 0.7 bm25
train-q1 Q0 twin 1 7 bm25
"""
FOUND = {"train-q0": ["train-q0-d1", "dev-q1-d1"], "train-q1": ["twin"]}  # by score; d1 is judged 0


@pytest.mark.parametrize("name", ["a.trec", "a.run", "a.trec.gz", "a.run.xz"])
def test_a_run_is_sorted_by_score_and_what_is_judged_relevant_is_left_out(
    tmp_path, collection, name
):
    file = tmp_path / name
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(file.suffix, bytes)
    file.write_bytes(pack(RUN.encode()))
    found = negatives_of_file(file, collection)
    assert named(found, collection) == FOUND
    assert found.manifest["counts"] == {"found": 5, "relevant": 2, "chosen": 3}
    assert found.manifest["distance"] is None and np.isnan(found.lists.values).all()


def test_a_folder_without_distances_is_read_again_and_trains_without(
    tmp_path, folder, collection, backbone
):
    (tmp_path / "a.trec").write_text(RUN)
    negatives_of_file(tmp_path / "a.trec", collection).save(tmp_path / "n", collection)
    assert named(MinedNegatives.open(tmp_path / "n", collection), collection) == FOUND
    data = data_module(
        TripletDataModule,
        str(folder),
        negatives=str(tmp_path / "n"),
        negatives_per_query=1,
        batch_size=2,
        reads=DualEncoder(backbone, max_length=24).reads,
    )
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch.distances[batch.mask].isnan().all()
    manifest = tmp_path / "n/manifest.json"
    manifest.write_text(manifest.read_text().replace('"distance": null', '"distance": "euclidean"'))
    with pytest.raises(InputError, match=r"distances must be finite \(float32\), got nan at"):
        MinedNegatives.open(tmp_path / "n", collection)


def arrays(tmp_path, collection, ids_of=(), distances_of=()):
    """Two negatives of train-q0, the first its relevant document, and one of train-q1."""
    ids = np.full((9, 2), -1)
    distances = np.zeros((9, 2))
    docs = {
        ("train-q0", 0): "train-q0-d0",
        ("train-q0", 1): "dev-q1-d1",
        ("train-q1", 1): "twin",
        **dict(ids_of),
    }
    for (query, column), doc in docs.items():
        row = collection.corpus.row(doc) if isinstance(doc, str) else doc
        ids[collection.queries.row(query), column] = row
    values = {("train-q0", 0): 0.25, ("train-q0", 1): 0.5, ("train-q1", 1): 0.75}
    for (query, column), value in (values | dict(distances_of)).items():
        distances[collection.queries.row(query), column] = value
    np.save(tmp_path / "ids.npy", ids)
    np.save(tmp_path / "distances.npy", distances)
    return tmp_path / "ids.npy", tmp_path / "distances.npy"


def test_arrays_with_and_without_distances(tmp_path, collection):
    ids, distances = arrays(tmp_path, collection)
    found = negatives_of_file(ids, collection, distances)
    assert named(found, collection) == {"train-q0": ["dev-q1-d1"], "train-q1": ["twin"]}
    assert found.manifest["distance"] is not None
    assert found.lists.values.tolist() == [0.5, 0.75]
    assert negatives_of_file(ids, collection).manifest["distance"] is None


PAIRS = [("train-q0", "train-q0-d1"), ("train-q0", "dev-q1-d1"), ("train-q1", "twin")]
IN_ORDER = ["train-q0-d1", "dev-q1-d1"]


@pytest.mark.parametrize(
    ("column", "values", "expected", "distances"),
    [
        ("score", [0.5, 0.9, 7.0], IN_ORDER[::-1], None),
        ("distance", [0.5, 0.9, 0.1], IN_ORDER, [0.5, np.float32(0.9)]),
        (None, [None] * 3, IN_ORDER, None),
    ],
)
@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv"])
def test_rows_of_pairs(tmp_path, collection, column, values, expected, distances, ending):
    names = ["query_id", "doc_id", *([column] if column else [])]
    rows = [[*pair, value][: len(names)] for pair, value in zip(PAIRS, values, strict=True)]
    file = tmp_path / f"a.{ending}"
    if ending == "jsonl":
        write_jsonl(file, [dict(zip(names, row, strict=True)) for row in rows])
    else:
        lines = [{"csv": ",", "tsv": "\t"}[ending].join(map(str, row)) for row in [names, *rows]]
        file.write_text("\n".join(lines) + "\n")
    found = negatives_of_file(file, collection)
    assert named(found, collection) == {"train-q0": expected, "train-q1": ["twin"]}
    assert (found.manifest["distance"] is None) == (distances is None)
    if distances:
        assert found.lists.of(collection.queries.row("train-q0"))[1].tolist() == distances


def test_parquet_reads_as_other_rows(tmp_path, collection):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    queries, docs = zip(*PAIRS, strict=True)
    columns = {"query_id": queries, "doc_id": docs, "score": [0.5, 0.9, 7.0]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    found = negatives_of_file(tmp_path / "a.parquet", collection)
    assert named(found, collection) == {"train-q0": IN_ORDER[::-1], "train-q1": ["twin"]}


def numbered_collection(folder):
    """Ids that are numbers, as MS MARCO has them: document 10 is relevant for query 1, and 12 for 2;
    20 has the text of 12.
    """
    docs = {"10": "a", "11": "b", "12": "c", "13": "d", "20": "c"}
    return small_collection(folder, docs, {"1": "x", "2": "y"}, [("1", "10", 1), ("2", "12", 1)])


def test_msmarco_hard_negatives(tmp_path, caplog):
    """Ids are numbers there. Systems are taken in order, each document once; 20 has the text of a
    relevant document, and 99 is absent.
    """
    collection = numbered_collection(tmp_path / "data")
    lines = [
        {"qid": 1, "pos": [10], "neg": {"bm25": [12, 10, 11], "distil": [13, 11], "no": []}},
        {"qid": 2, "pos": [12], "neg": {"bm25": [20, 13], "distil": [99, 11]}},
        {"qid": 3, "pos": [12], "neg": {"distil": [11]}},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "hard.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    found = negatives_of_file(tmp_path / "hard.jsonl.gz", collection)
    assert named(found, collection) == {"1": ["12", "11", "13"], "2": ["13", "11"]}
    assert found.manifest["counts"] == {"found": 7, "relevant": 2, "chosen": 5}
    for note in (
        "1 of 9 negatives are of absent queries and left out, first in line 3",
        "1 of 9 negatives are of absent documents and left out, first in line 2",
    ):
        assert note in caplog.text
    found = negatives_of_file(tmp_path / "hard.jsonl.gz", collection, systems=["distil", "bm25"])
    assert named(found, collection) == {"1": ["13", "11", "12"], "2": ["11", "13"]}
    found = negatives_of_file(tmp_path / "hard.jsonl.gz", collection, systems=["distil"])
    assert named(found, collection) == {"1": ["13", "11"], "2": ["11"]}
    with refused(r"hard.jsonl.gz: systems must be .*, got 'ance'; it has bm25, distil, no"):
        negatives_of_file(tmp_path / "hard.jsonl.gz", collection, systems=["bm25", "ance"])


# Three numbers are ids of a query, a positive and a negative, or of a pair and its score or rank.
COLUMNS = {
    "triples": ("1\t10\t13\n1\t10\t11\n2\t12\t11\n", {"1": ["13", "11"], "2": ["11"]}),
    "scores": ("1\t13\t11\n1\t11\t12\n2\t11\t0.5\n", {"1": ["11", "13"], "2": ["11"]}),
    "ranks": ("1\t13\t10\n1\t11\t11\n2\t11\t12\n", {"1": ["13", "11"], "2": ["11"]}),
    "pairs": ("1\t13\n1\t11\n2\t11\n", {"1": ["13", "11"], "2": ["11"]}),
    "top1000": ("1\t13\tx\td\n1\t11\tx\tb\n2\t11\ty\tb\n", {"1": ["13", "11"], "2": ["11"]}),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_what_numbers_without_names_are(tmp_path, case):
    collection = numbered_collection(tmp_path / "data")
    text, expected = COLUMNS[case]
    (tmp_path / "a.tsv").write_text(text)
    assert named(negatives_of_file(tmp_path / "a.tsv", collection), collection) == expected


# A name, and numbers that may be ids of positives and negatives, or of documents and their scores.
UNCLEAR = {
    "not judged": "1\t11\t10\n2\t13\t11\n",
    "relevant": "1\t10\t13\n2\t12\t17\n",
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_numbers_that_may_be_ids_or_scores_are_refused(tmp_path, case):
    collection = numbered_collection(tmp_path / "data")
    (tmp_path / "a.tsv").write_text(UNCLEAR[case])
    with refused("a.tsv: the numbers of column 3 may be ids of documents or scores; write names"):
        negatives_of_file(tmp_path / "a.tsv", collection)


def test_the_name_of_triples_tells(tmp_path):
    collection = numbered_collection(tmp_path / "data")
    file = tmp_path / "qidpidtriples.train.tsv"
    file.write_text(UNCLEAR["not judged"])
    assert named(negatives_of_file(file, collection), collection) == {"2": ["11"]}


def test_documents_that_their_own_grade_calls_relevant_are_no_negatives(tmp_path, caplog):
    collection = numbered_collection(tmp_path / "data")
    rows = [{"qid": 1, "pid": 11, "label": 1}, {"qid": 1, "pid": 13, "label": 0}]
    write_jsonl(tmp_path / "a.jsonl", rows)
    assert named(negatives_of_file(tmp_path / "a.jsonl", collection), collection) == {"1": ["13"]}
    assert "1 rows are of documents that their grade calls relevant and left out" in caplog.text


def test_ids_of_letters_are_triples_without_a_judgement(tmp_path, collection):
    (tmp_path / "a.tsv").write_text("train-q1\tdev-q1-d0\ttwin\n")
    found = negatives_of_file(tmp_path / "a.tsv", collection)
    assert named(found, collection) == {"train-q1": ["twin"]}


# A file, what it holds, and what is told.
BAD_FILES = [
    ("a.trec", f"{RUN}train-q9 Q0 twin 1 7 x", ":6: query 'train-q9' is not in the queries"),
    ("a.trec", f"{RUN}train-q1 Q0 twins 1 7 x", ":6: document 'twins' is not in the corpus"),
    (
        "a.trec",
        f"{RUN}train-q1 Q0 twin 2 6 x",
        ":6: a second line for query 'train-q1' and document 'twin'",
    ),
    (
        "a.trec",
        "train-q0 Q0 twin 1 7 x",
        ": there must be a negative, got 1 documents, all of them judged relevant",
    ),
    (
        "a.csv",
        "query,doc_id\nx,y",
        ":2: a row must have query_id, got no column called query_id or qid",
    ),
    ("a.txt", "x", r":1: expected columns 2 \(query, doc\), 3 .*, got 1: 'x'"),
    ("a.npy", "x", ": expected a whole .npy file"),
    ("a.parquet", "x", ":1: the Parquet file is broken here"),
    ("a.jsonl", '{"qid": "q", "pos": ["d"]}', ":1: a row must have negative, got no column .* neg"),
    (
        "a.jsonl",
        '{"qid": "train-q0", "pid": "twin"}\n{"qid": "train-q1", "pid": "twin", "score": 1}',
        ": all rows or none must have a distance or a score, got order and score",
    ),
    (
        "a.jsonl",
        '{"qid": "train-q1", "pid": "twin", "score": NaN}',
        ":1: a score must be a finite number",
    ),
    (
        "a.jsonl",
        '{"qid": "train-q0", "pid": "tw"}',
        ": at least one negative must be of a query and a document that are there, got 1 of others",
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_a_file_that_does_not_fit_is_one_line(tmp_path, collection, name, content, message):
    (tmp_path / name).write_text(f"{content}\n")
    with pytest.raises(InputError, match=name + message) as error:
        negatives_of_file(tmp_path / name, collection)
    assert "\n" not in str(error.value)


AGAIN = "a query must have a document once, got document .* again in row"
BAD_ARRAYS = [
    ({"ids_of": {("train-q0", 0): "dev-q1-d1"}}, AGAIN),
    ({"ids_of": {("train-q0", 0): 99}}, "ids must be -1 or rows of 37 documents, got -1 to 99"),
    ({"distances_of": {("train-q0", 0): np.nan}}, r"must be finite \(float32\), got nan"),
    ({"distances_of": {("train-q0", 1): -0.5}}, "distances must be at least 0, got -0.5"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_ARRAYS)
def test_arrays_that_do_not_fit_are_one_line(tmp_path, collection, changes, message):
    ids, distances = arrays(tmp_path, collection, **changes)
    with pytest.raises(InputError, match=message):
        negatives_of_file(ids, collection, distances)


def test_distances_go_with_arrays_alone(tmp_path, collection):
    (tmp_path / "a.trec").write_text(RUN)
    with pytest.raises(InputError, match="distances go with an array of rows"):
        negatives_of_file(tmp_path / "a.trec", collection, tmp_path / "distances.npy")


def test_a_run_and_an_array_have_no_systems(tmp_path, collection):
    (tmp_path / "a.trec").write_text(RUN)
    with refused("a run and an array are of one system; leave the systems out"):
        negatives_of_file(tmp_path / "a.trec", collection, systems=["bm25"])
