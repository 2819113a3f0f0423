"""A FlexIndex, read and searched by pyterrier_dr; without that package by npids and numpy, as its
class does.
"""

import json

import numpy as np
import pytest

from ltr.errors import InputError
from ltr.use.handover.hand_over import hand_over
from tests.use.handover.corpora import (
    COUNT,
    DIM,
    best_of_products,
    check_same_best,
    each_similarity,
    ids_of,
    write_encoding,
)

npids = pytest.importorskip("npids", reason="needs pip install npids")


@each_similarity("dot", "cosine")
def test_pyterrier_finds_the_same(tmp_path, similarity, numbers):
    pandas = pytest.importorskip("pandas")
    pyterrier_dr = pytest.importorskip("pyterrier_dr", reason="needs pip install pyterrier-dr")

    def search(output, queries):
        index = pyterrier_dr.FlexIndex(str(output), verbose=False)
        assert len(index) == COUNT
        frame = pandas.DataFrame(
            {"qid": [str(place) for place in range(len(queries))], "query_vec": list(queries)}
        )
        found = index.np_retriever(num_results=10)(frame)
        ranked = found.sort_values("rank").groupby(found["qid"].astype(int))["docno"]
        return [list(docnos) for _, docnos in ranked]

    check_same_best(tmp_path, "flex", similarity, numbers, search)


@each_similarity("dot", "cosine")
def test_its_files_give_the_same(tmp_path, similarity, numbers):
    def search(output, _):
        meta = json.loads((output / "pt_meta.json").read_text())
        assert meta == {
            "type": "dense_index",
            "format": "flex",
            "vec_size": DIM,
            "doc_count": COUNT,
        }
        lookup = npids.Lookup(output / "docnos.npids")
        ids = lookup.fwd[np.arange(COUNT)].tolist()
        assert ids == ids_of(COUNT) and lookup.inv[ids] == list(range(COUNT))
        vectors = np.memmap(output / "vecs.f4", np.float32, "r", shape=(COUNT, DIM))
        return best_of_products(ids, vectors)

    check_same_best(tmp_path, "flex", similarity, numbers, search)


@pytest.mark.parametrize("similarity", ["euclidean", "squared_euclidean"])
def test_distances_are_refused(tmp_path, similarity):
    write_encoding(tmp_path / "encoded", similarity)
    with pytest.raises(InputError, match=f"by inner product or cosine, got .* {similarity}; hand"):
        hand_over(tmp_path / "encoded", "flex", tmp_path / "out")


@pytest.mark.parametrize("ids", [["a"], ["é1", "è2"]], ids=["one", "half a letter in common"])
def test_ids_that_npids_cannot_write_are_refused(tmp_path, ids):
    write_encoding(tmp_path / "encoded", "dot", count=len(ids), ids=ids)
    with pytest.raises(InputError, match="a FlexIndex needs ids that the package npids can write"):
        hand_over(tmp_path / "encoded", "flex", tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["encoded"]
