"""Small collections: one that can be learnt, and those written by hand."""

import json
from pathlib import Path

import numpy as np
import torch

from ltr.data.collection import open_collection

WORDS = [f"w{i}" for i in range(60)]
GRADES_OF_T2RANKING = (0, 1, 2, 3, 3, 1)
QUERIES_OF_T2RANKING = 6


def write_jsonl(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_collection(folder: Path, n_queries: int = 30, n_docs: int = 8, seed: int = 0) -> Path:
    """Queries ``w{q} …`` whose relevant document repeats their word: learnable, with pools of
    ``n_docs`` and three splits.
    """
    generator = torch.Generator().manual_seed(seed)

    def words(n: int) -> list[str]:
        return [WORDS[i] for i in torch.randint(0, len(WORDS), (n,), generator=generator).tolist()]

    (folder / "qrels").mkdir(parents=True)
    (folder / "candidates").mkdir()
    queries = []
    docs = []
    for split in ("train", "dev", "test"):
        qrels = ["query-id\tcorpus-id\tscore\n"]
        run = []
        for q in range(n_queries):
            query = f"{split}-q{q}"
            queries.append({"_id": query, "text": " ".join([WORDS[q % len(WORDS)], *words(2)])})
            for d in range(n_docs):
                doc = f"{query}-d{d}"
                length = 3 + int(torch.randint(0, 12, (1,), generator=generator))
                docs.append(
                    {
                        "_id": doc,
                        "text": " ".join(
                            ([WORDS[q % len(WORDS)]] * 3 if d == 0 else []) + words(length)
                        ),
                    }
                )
                run.append(f"{query} Q0 {doc} {d + 1} {n_docs - d} pool\n")
                if d < 2:
                    qrels.append(f"{query}\t{doc}\t{int(d == 0)}\n")
        (folder / "qrels" / f"{split}.tsv").write_text("".join(qrels))
        (folder / "candidates" / f"{split}.trec").write_text("".join(run))
    write_jsonl(folder / "corpus.jsonl", docs)
    write_jsonl(folder / "queries.jsonl", queries)
    return folder


def write_t2ranking(folder: Path, level: int = 0) -> Path:
    """Grades from 0 to 3, as T2Ranking has them: 2 and 3 are relevant. Each query has pools of
    those and two documents more. Of the last training query all grades lie below 2.

    Args:
        level: grades of train below it are written as 0.
    """
    (folder / "qrels").mkdir(parents=True)
    (folder / "candidates").mkdir()
    queries = []
    docs = []
    for split in ("train", "dev"):
        qrels = []
        pools = []
        for number in range(QUERIES_OF_T2RANKING):
            query = f"{split}{number}"
            queries.append({"_id": query, "text": f"w{number} w{number + 1} {split}"})
            for place in range(len(GRADES_OF_T2RANKING) + 2):
                doc = f"{query}-{place}"
                docs.append({"_id": doc, "text": f"w{number} w{place + 10} w{place + 20} {split}"})
                pools.append(f"{query} Q0 {doc} {place + 1} {9 - place} pool\n")
                if place < len(GRADES_OF_T2RANKING):
                    grade = GRADES_OF_T2RANKING[place]
                    if split == "train" and number == QUERIES_OF_T2RANKING - 1:
                        grade = min(grade, 1)
                    if split == "train" and grade < level:
                        grade = 0
                    qrels.append(f"{query}\t{doc}\t{grade}\n")
        (folder / f"qrels/{split}.tsv").write_text("".join(qrels))
        (folder / f"candidates/{split}.trec").write_text("".join(pools))
    write_jsonl(folder / "corpus.jsonl", docs)
    write_jsonl(folder / "queries.jsonl", queries)
    return folder


def small_collection(folder, corpus, queries, train=None, instructions=None, **splits):
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
    if train is not None:
        splits = {"train": train, **splits}
    for split, judgements in splits.items():
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


def same_collections(one, other) -> bool:
    """Whether two collections have the same texts under the same ids, and the same lists, to the
    order of their documents.
    """
    for table, expected in ((one.corpus, other.corpus), (one.queries, other.queries)):
        columns = [(table.ids, expected.ids), (table.texts, expected.texts)]
        columns.append((table.instructions or (), expected.instructions or ()))
        if any(list(column) != list(same) for column, same in columns):
            return False
    for lists, expected in ((one.qrels, other.qrels), (one.candidates, other.candidates)):
        if lists.keys() != expected.keys():
            return False
        for split in lists:
            for array, same in zip(lists[split], expected[split], strict=True):
                if array.dtype != same.dtype or not np.array_equal(array, same):
                    return False
    return True


def corpus_texts(folder: Path) -> dict[str, str]:
    """The texts of a data folder's documents by id, in order."""
    docs = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    return {doc["_id"]: doc["text"] for doc in docs}


def write_corpus(folder: Path, texts: dict[str, str]) -> None:
    write_jsonl(folder / "corpus.jsonl", [{"_id": i, "text": text} for i, text in texts.items()])


def write_collection_with_twin(folder: Path, **sizes: int) -> Path:
    """A collection whose corpus ends with ``twin``, which has the text of ``train-q0-d0``."""
    write_collection(folder, **sizes)
    texts = corpus_texts(folder)
    write_corpus(folder, texts | {"twin": texts["train-q0-d0"]})
    return folder
