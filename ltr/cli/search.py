"""``ltr search``: a dual encoder finds the best documents of a corpus."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ltr.cli.opened_rankers import data_of_ranker, open_ranker, open_text_ranker
from ltr.cli.rank_and_search import (
    check_at_least_one,
    find_own_documents,
    print_hits,
    refuse_instruction,
    write_rankings,
)
from ltr.data.collection import open_collection
from ltr.data.console import counted, say
from ltr.data.outputs import check_file
from ltr.data.text_files import open_texts
from ltr.data.texts import TextTable
from ltr.errors import InputError
from ltr.run.precision import Precision
from ltr.search.budget import RECALL, Budget, bytes_of
from ltr.search.encoding_places import EncodingOfFolder
from ltr.use.rankers import check_query
from ltr.use.reranking import search_and_rerank, search_run_lines
from ltr.use.retriever import Retriever, SearchableCorpus

STDIN = "-"


def search(
    ranker: str,
    *,
    corpus: str,
    encoded: str | None = None,
    query: str = STDIN,
    instruction: str | None = None,
    queries: str | None = None,
    output: str | None = None,
    k: int | None = None,
    rerank: str | None = None,
    depth: int | None = None,
    memory: str | None = None,
    recall: float | None = None,
    recall_queries: str | None = None,
    precision: Precision | None = None,
    device: str | None = None,
) -> None:
    """Find the best documents of a corpus: for a query, for those of a file, or for what is typed.

    The encoded corpus is kept, so the next search of it starts at once.

    Args:
        ranker: A dual encoder: a run folder, a checkpoint, an exported folder, or a model of the
            hub.
        corpus: A data folder, or a file of texts: .jsonl with _id and text, .tsv with id<TAB>text,
            or .txt with one text a line.
        encoded: The corpus as ltr encode has encoded it with these weights: a folder. None: it is
            encoded now, unless that was done before.
        query: What is searched for; - reads queries line by line, until an empty one.
        instruction: That of the query; None, or empty: that of the ranker's template.
        queries: A file of queries, as corpus; or a data folder.
        output: The new run file, in TREC format, for --queries.
        k: How many documents; None: 10, and 100 for --queries.
        rerank: A second ranker that orders again what was found.
        depth: How many documents it reads for each query; None: 100.
        memory: How much a search may keep of the embeddings, such as 4GB: all of them if they fit,
            else codes of one bit a dimension, whose best documents are scored again. None: all of
            them are read from the disk for each search, as far as the system has not kept them.
        recall: The share of the best documents that codes must find; None: 0.95. Else the search is
            refused.
        recall_queries: The queries on which that is measured: a file, as corpus, or a data folder.
            None: those of --queries, else of the run, else of the corpus.
        precision: Of the encoders; None: that of each run.
        device: Where they run, such as cpu or cuda:1; None: the GPU if there is one.
    """
    check_at_least_one(k=k, depth=depth)
    has_file = queries is not None
    if has_file != (output is not None) or (has_file and query != STDIN):
        raise InputError(
            "ltr search takes --query, or --queries and --output, or neither; see ltr search --help"
        )
    check_file(output, "--output")
    check_query(query, "--query")
    if has_file:
        refuse_instruction(instruction)
    if depth is not None and rerank is None:
        raise InputError(
            "--depth is of --rerank: it says how many documents the second ranker reads; --k says how many are found"
        )
    for option, value in (("--recall", recall), ("--recall_queries", recall_queries)):
        if value is not None and memory is None:
            raise InputError(f"{option} is of --memory: without it search is exact")
    k = k or (100 if has_file else 10)
    depth = depth or 100
    budget = None
    if memory is not None:
        # A second ranker reads more documents than are shown.
        n_found = k if rerank is None else depth
        budget = Budget(bytes_of(memory), n_found, RECALL if recall is None else recall)
    # Files first: a ranker takes long to load, and a corpus longer to encode.
    documents = open_texts(corpus, "document", "--corpus")
    table = None if queries is None else open_texts(queries, "query", "--queries")
    measured_on: Sequence[str] = ()
    if budget is not None:
        measured_on = _queries_to_measure(recall_queries, table, ranker, corpus)
    retriever = open_ranker(ranker, precision, device)
    if not isinstance(retriever, Retriever):
        raise InputError(
            f"{ranker} is no dual encoder, and only one can search a corpus; let it order: --rerank {ranker}"
        )
    second = None if rerank is None else open_text_ranker(rerank, precision, device)
    encodings = None if encoded is None else EncodingOfFolder(Path(encoded))
    searched = SearchableCorpus(retriever, documents, encodings, budget, measured_on)
    if budget is not None:
        say(f"searching within {memory}: {searched.line}", to=sys.stderr)
    if table is not None and queries is not None and output is not None:
        data = corpus if Path(queries) == Path(corpus) else None
        own_docs = find_own_documents(table, documents, np.arange(len(table)), data)
        lines = search_run_lines(searched, table, k, second, depth, own_docs)
        write_rankings(output, lines, len(table))
        return
    for text in _typed_queries(len(searched.documents)) if query == STDIN else [query]:
        if second is None:
            hits = searched.search(text, k, instruction)
        else:
            hits = search_and_rerank(searched, second, text, depth, instruction)[:k]
        print_hits(hits)


def _queries_to_measure(
    recall_queries: str | None, queries: TextTable | None, ranker: str, corpus: str
) -> Sequence[str]:
    """The texts on which the recall of a search is measured: those that are named; else those that
    are searched for; else those of the data that the run was trained on, or else of the corpus, where
    it is a data folder: of dev, of training, or of test, the first that is there. There may be none.
    """
    if recall_queries is not None:
        return open_texts(recall_queries, "query", "--recall_queries").texts
    if queries is not None:
        return queries.texts
    for data in (data_of_ranker(ranker), corpus):
        if data is None or not Path(data).is_dir():
            continue
        collection = open_collection(data)
        for split in ("dev", "train", "test"):
            if split in collection.qrels:
                texts = collection.queries.texts
                return [texts[row] for row in collection.qrels[split].query_rows.tolist()]
    return ()


def _typed_queries(n_documents: int) -> Iterator[str]:
    """The lines of stdin, up to an empty one."""
    terminal = sys.stdin.isatty()
    if terminal:
        say(f"{counted(n_documents, 'document')}; an empty line ends", to=sys.stderr)
    while True:
        if terminal:
            print("query> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line
