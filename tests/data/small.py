"""Small collections by hand."""

import json

import numpy as np

from ltr.data.collection import open_collection


def small_collection(folder, corpus, queries, judged, instructions=None, **splits):
    """A data folder of texts by id, with judgements (query, document, grade) of train, and of other
    splits by name.
    """
    (folder / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": id_, "text": text}) for id_, text in corpus.items()]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    lines = []
    for id_, text in queries.items():
        record = {"_id": id_, "text": text}
        if instructions and id_ in instructions:
            record["instruction"] = instructions[id_]
        lines.append(json.dumps(record))
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n")
    for split, judgements in {"train": judged, **splits}.items():
        text = "".join(f"{query}\t{doc}\t{grade}\n" for query, doc, grade in judgements)
        (folder / "qrels" / f"{split}.tsv").write_text(text)
    return open_collection(folder)


def by_ids(collection, lists):
    """Lists as {query: {document: value}} by ids; NaN is None."""
    queries = {}
    for query_row in lists.query_rows.tolist():
        docs = {}
        for doc_row, value in zip(*lists.of(query_row), strict=True):
            docs[collection.corpus.ids[int(doc_row)]] = None if np.isnan(value) else float(value)
        queries[collection.queries.ids[query_row]] = docs
    return queries
