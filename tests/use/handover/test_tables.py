"""Parquet and Lance: read back by their own packages, and searched."""

import json
import threading

import numpy as np
import pytest

from ltr.similarity import similarity_of
from ltr.use.handover import tables
from ltr.use.handover.hand_over import hand_over
from tests.use.handover.corpora import (
    COUNT,
    DIM,
    ROWS,
    check_same_best,
    each_similarity,
    ids_of,
    write_encoding,
)


def columns(table) -> tuple[list[str], np.ndarray]:
    """Ids and embeddings ``[D, H]`` of a table of Arrow."""
    embeddings = table["embedding"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return table["id"].to_pylist(), embeddings.reshape(len(table), -1)


@each_similarity("dot", "cosine", "euclidean")
def test_a_search_of_the_parquet_file_finds_the_same(tmp_path, similarity, numbers):
    parquet = pytest.importorskip("pyarrow.parquet")

    def search(output, queries):
        ids, embeddings = columns(parquet.read_table(output))
        embeddings = embeddings.astype(np.float32)
        if similarity == "euclidean":
            scores = -((queries[:, None] - embeddings) ** 2).sum(axis=2)
        else:  # the plain inner product, for cosine, too
            scores = queries @ embeddings.T
        return [[ids[row] for row in ranked[:10]] for ranked in np.argsort(-scores).tolist()]

    check_same_best(tmp_path, "parquet", similarity, numbers, search)


@each_similarity("dot", "cosine", "euclidean")
def test_lance_finds_the_same(tmp_path, similarity, numbers):
    lance = pytest.importorskip("lance", reason="needs pip install pylance")
    metric = "l2" if similarity == "euclidean" else "dot"

    def search(output, queries):
        dataset = lance.dataset(str(output))
        assert dataset.count_rows() == COUNT
        assert json.loads(dataset.schema.metadata[b"ltr"])["similarity"] == similarity
        found = []
        for query in queries:
            nearest = {"column": "embedding", "q": query, "k": 10, "metric": metric}
            table = dataset.to_table(columns=["id", "_distance"], nearest=nearest)
            found.append(table["id"].to_pylist())
        return found

    check_same_best(tmp_path, "lance", similarity, numbers, search)


@pytest.mark.parametrize(
    ("similarity", "numbers", "dtype"),
    [
        ("dot", "float16", np.float16),
        ("squared_euclidean", "float16", np.float16),
        ("dot", "float32", np.float32),
        ("dot", "int8", np.float32),
        ("cosine", "float16", np.float32),
    ],
)
def test_a_parquet_file_holds_the_shards(tmp_path, similarity, numbers, dtype):
    """A row group for each; the bits of the shards, where nothing but their type is changed."""
    parquet = pytest.importorskip("pyarrow.parquet")
    encoding = write_encoding(tmp_path / "encoded", similarity, numbers)
    hand_over(tmp_path / "encoded", "parquet", tmp_path / "out.parquet")
    with parquet.ParquetFile(tmp_path / "out.parquet") as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        schema = file.schema_arrow
    assert sizes == [ROWS, ROWS, COUNT - 2 * ROWS]
    assert str(schema.field("id").type) == "string"
    assert schema.field("embedding").type.list_size == DIM
    assert json.loads(schema.metadata[b"ltr"]) == {
        "ranker": "runs/dual",
        "similarity": similarity,
        "embeddings_have_length_1": similarity == "cosine",
        "digest": encoding.manifest()["digest"],
    }
    ids, embeddings = columns(parquet.read_table(tmp_path / "out.parquet"))
    assert ids == ids_of(COUNT) and embeddings.dtype == dtype
    expected = encoding.embeddings()[0:COUNT]
    if similarity == "cosine":
        np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, rtol=1e-6)
        expected = similarity_of("cosine").prepare(expected, None)
    np.testing.assert_array_equal(embeddings.astype(np.float32), expected)


def test_nothing_is_read_for_lance_after_its_block():
    """The thread that reads is in another one's hands: it may come late."""
    begun = threading.Event()
    go_on = threading.Event()
    made = []

    def batches():
        for number in range(3):
            begun.set()
            go_on.wait(60)
            made.append(number)
            yield number

    said = []

    def read_all(rows):
        try:
            for number in rows:
                said.append(number)
        except RuntimeError as error:
            said.append(str(error))

    with tables._read_within(batches()) as rows:
        reader = threading.Thread(target=read_all, args=[rows])
        reader.start()
        assert begun.wait(60)
        threading.Timer(0.2, go_on.set).start()
    n_made = len(made)
    assert n_made >= 1, "the block has waited for the batch that was being made"
    reader.join(60)
    assert len(made) == n_made and said[-1] in ("the writing has ended", 2)
