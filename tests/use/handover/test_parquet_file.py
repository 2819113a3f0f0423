"""Parquet: read back by its own package, and searched."""

import json

import numpy as np
import pytest

from ltr.similarity import similarity_of
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
