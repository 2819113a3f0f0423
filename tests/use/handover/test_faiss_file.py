"""An index of faiss, read and searched by faiss."""

import json

import numpy as np
import pytest

from ltr.errors import InputError
from ltr.similarity import similarity_of
from ltr.use.handover import faiss_file
from ltr.use.handover.hand_over import hand_over
from tests.use.handover.corpora import (
    COUNT,
    DIM,
    check_same_best,
    each_similarity,
    ids_of,
    write_encoding,
)

faiss = pytest.importorskip("faiss")


@each_similarity("dot", "cosine", "euclidean")
def test_faiss_finds_the_same(tmp_path, similarity, numbers):
    def search(output, queries):
        ids = (output / "ids.txt").read_text(encoding="utf-8").splitlines()
        _, rows = faiss.read_index(str(output / "index.faiss")).search(queries, 10)
        return [[ids[row] for row in ranked] for ranked in rows.tolist()]

    check_same_best(tmp_path, "faiss", similarity, numbers, search)


@pytest.mark.parametrize("similarity", ["dot", "cosine", "euclidean", "squared_euclidean"])
def test_the_bytes_are_those_that_faiss_writes(tmp_path, similarity):
    encoding = write_encoding(tmp_path / "encoded", similarity)
    hand_over(tmp_path / "encoded", "faiss", tmp_path / "out")
    index = faiss.IndexFlatL2(DIM) if "euclid" in similarity else faiss.IndexFlatIP(DIM)
    index.add(similarity_of(similarity).prepare(encoding.embeddings()[0:COUNT], None))
    faiss.write_index(index, str(tmp_path / "whole"))
    assert (tmp_path / "out/index.faiss").read_bytes() == (tmp_path / "whole").read_bytes()
    lines = (tmp_path / "out/ids.txt").read_text(encoding="utf-8").split("\n")
    assert lines == [*ids_of(COUNT), ""]
    about = json.loads((tmp_path / "out/ltr.json").read_text())
    assert about["similarity"] == similarity and about["ranker"] == "runs/dual"


def test_a_faiss_of_another_format_is_refused(tmp_path, monkeypatch):
    """Its header has a field more."""
    real = faiss.serialize_index

    def with_a_field_more(index):
        return np.append(real(index), np.zeros(8, np.uint8))

    write_encoding(tmp_path / "encoded", "dot")
    monkeypatch.setattr(faiss_file.faiss, "serialize_index", with_a_field_more)
    with pytest.raises(InputError, match="has another format of files"):
        hand_over(tmp_path / "encoded", "faiss", tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["encoded"]
