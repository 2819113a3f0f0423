"""Rankers that are loaded."""

import numpy as np
import pytest

from ltr.data.collection import open_collection
from ltr.data.trec import read_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory, copied_run):
    folder = tmp_path_factory.mktemp("runs")
    return {kind: copied_run(folder / kind, kind) for kind in ("cross", "dual")}


def texts_of_run(run, collection_folder):
    """Pairs of texts and the scores of test.run."""
    collection = open_collection(str(collection_folder))
    pairs = []
    scores = []
    for _, (query, doc, score) in read_run(run / "test.run"):
        asked = collection.queries.row(query)
        found = collection.corpus.row(doc)
        pairs.append((collection.queries.texts[asked], collection.corpus.texts[found]))
        scores.append(score)
    return pairs, np.array(scores)
