"""``ltr rank``, ``search``, ``export`` and ``score``: a trained ranker orders texts, is handed to
others, and teaches.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Literal

import numpy as np
from rich.markup import escape
from rich.table import Table

from ltr.cli.run_paths import data_of_run
from ltr.data.collection import open_collection
from ltr.data.console import Console, say
from ltr.data.judged_lists import lists_of_run
from ltr.data.outputs import check_file, check_folder
from ltr.data.own_documents import own_documents, own_documents_line, without_own
from ltr.data.splits import SPLITS, file_of_split
from ltr.data.text_files import open_texts
from ltr.data.texts import TextTable
from ltr.data.trec import RunLine, write_run
from ltr.errors import InputError
from ltr.run.run_folder import RunFolder, run_of_checkpoint
from ltr.search.budget import RECALL, Budget, bytes_of
from ltr.search.encoding_places import EncodingOfFolder
from ltr.use.export import Form
from ltr.use.export import export as write_exported
from ltr.use.int8 import METRIC
from ltr.use.load import load
from ltr.use.rankers import FeatureScorer, Precision, RankedDocument, TextRanker, check_query
from ltr.use.reranking import rank_table, run_lines, search_and_rerank, search_run_lines
from ltr.use.reranking import rerank as rerank_lists
from ltr.use.retriever import Retriever, SearchableCorpus
from ltr.use.teaching import Teacher, lists_to_score, score_lists

STDIN = "-"


def rank(
    ranker: str,
    *,
    query: str = "",
    instruction: str | None = None,
    documents: str | None = None,
    k: int | None = None,
    run: str | None = None,
    data: str | None = None,
    output: str | None = None,
    depth: int | None = None,
    precision: Precision | None = None,
    device: str | None = None,
) -> None:
    """Order the documents of a file for a query; or order a run file again.

    Args:
        ranker: A run folder, a checkpoint, an exported folder, or a model of the hub.
        query: What is asked.
        instruction: That of the query; None, or empty: that of the ranker's template.
        documents: A file of texts: .jsonl with _id and text, .tsv with id<TAB>text, or .txt with
            one text a line; or a data folder.
        k: How many documents are printed; None: 10.
        run: A run file in TREC format, to be ordered again.
        data: Its queries and documents: a data folder.
        output: The new run file.
        depth: How many documents of each query of the run are read, best first; None: all. The
            others are left out.
        precision: Of the encoder; None: that of the run.
        device: Where it runs, such as cpu or cuda:1; None: the GPU if there is one.
    """
    _check_at_least_one(k=k, depth=depth)
    check_file(output, "--output")
    ranks_a_run = run is not None or data is not None or output is not None
    if documents is not None and not ranks_a_run:
        check_query(query, "--query")
        if depth is not None:
            raise InputError("--depth is of --run: it says how many documents of a run are read")
        table = open_texts(documents, "document", "--documents")
        text_ranker = _open_text_ranker(ranker, precision, device)
        _show(rank_table(text_ranker, query, table, k or 10, instruction))
        return
    _refuse_instruction(instruction)
    if run is None or data is None or output is None or query or documents is not None:
        raise InputError(
            "ltr rank needs either --query and --documents, or --run, --data and --output; see ltr rank --help"
        )
    if k is not None:
        raise InputError(
            "--k is of --query: it says how many documents are printed; --depth says how many of a run are read"
        )
    queries = open_texts(data, "query", "--data")
    corpus = open_texts(data, "document", "--data")
    lists = lists_of_run(Path(run), queries, corpus)
    own_docs = _own_documents(queries, corpus, lists.query_rows, data)
    lists = without_own(lists, own_docs).cut(depth)
    rankings = rerank_lists(_open_text_ranker(ranker, precision, device), queries, corpus, lists)
    _write(output, run_lines(rankings, queries, corpus), len(lists.query_rows))


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
    _check_at_least_one(k=k, depth=depth)
    has_file = queries is not None
    if has_file != (output is not None) or (has_file and query != STDIN):
        raise InputError(
            "ltr search takes --query, or --queries and --output, or neither; see ltr search --help"
        )
    check_file(output, "--output")
    check_query(query, "--query")
    if has_file:
        _refuse_instruction(instruction)
    if depth is not None and rerank is None:
        raise InputError(
            "--depth is of --rerank: it says how many documents the second ranker reads; --k says how many are found"
        )
    for option, value in (("--recall", recall), ("--recall_queries", recall_queries)):
        if value is not None and memory is None:
            raise InputError(f"{option} is of --memory: without it search is exact")
    budget = None
    if memory is not None:
        # A second ranker reads more documents than are shown.
        wanted = (k or (10 if queries is None else 100)) if rerank is None else depth or 100
        budget = Budget(bytes_of(memory), wanted, RECALL if recall is None else recall)
    retriever = _open(ranker, precision, device)
    if not isinstance(retriever, Retriever):
        raise InputError(
            f"{ranker} is no dual encoder, and only one can search a corpus; let it order: --rerank {ranker}"
        )
    second = None if rerank is None else _open_text_ranker(rerank, precision, device)
    encodings = None if encoded is None else EncodingOfFolder(Path(encoded))
    documents = open_texts(corpus, "document", "--corpus")
    measured_on: Sequence[str] = ()
    if budget is not None:
        measured_on = _queries_to_measure(recall_queries, queries, ranker, corpus)
    searched = SearchableCorpus(retriever, documents, encodings, budget, measured_on)
    if budget is not None:
        say(f"searching within {memory}: {searched.line}", to=sys.stderr)
    if queries is not None and output is not None:
        table = open_texts(queries, "query", "--queries")
        data = corpus if Path(queries) == Path(corpus) else None
        own_docs = _own_documents(table, documents, np.arange(len(table)), data)
        lines = search_run_lines(searched, table, k or 100, second, depth or 100, own_docs)
        _write(output, lines, len(table))
        return
    for text in _typed_queries(len(searched.documents)) if query == STDIN else [query]:
        if second is None:
            hits = searched.search(text, k or 10, instruction)
        else:
            hits = search_and_rerank(searched, second, text, depth or 100, instruction)[: k or 10]
        _show(hits)


def _own_documents(
    queries: TextTable, corpus: TextTable, query_rows: np.ndarray, data: str | None
) -> np.ndarray:
    """For each query the document that it is itself, by row, and −1 for none; as
    :meth:`ltr.data.collection.Collection.documents_left_out` where there are judgements. Says how
    many of some of the queries are documents: rankings leave these documents out.

    Args:
        queries, corpus: the texts.
        query_rows: ``[n]`` int64, the queries that are ranked for.
        data: what both come from; None: from two places.
    """
    own_docs = own_documents(queries, corpus)
    if data is not None and (own_docs >= 0).any() and _is_judged(data):
        own_docs = open_collection(data).documents_left_out()
    line = own_documents_line(queries, corpus, query_rows, own_docs)
    if line:
        say(line, to=sys.stderr)
    return own_docs


def _is_judged(data: str) -> bool:
    """Whether there are judgements beside the texts of some data."""
    if data.startswith("ir_datasets:"):
        return True
    return any(file_of_split(Path(data, "qrels"), split, ".tsv") for split in SPLITS)


def _queries_to_measure(
    recall_queries: str | None, queries: str | None, ranker: str, corpus: str
) -> Sequence[str]:
    """The texts on which the recall of a search is measured: those that are named; else those that
    are searched for; else those of dev, or of training, of the data that the run was trained on;
    else of the corpus, where it is a data folder. There may be none.
    """
    if recall_queries is not None:
        return open_texts(recall_queries, "query", "--recall_queries").texts
    if queries is not None:
        return open_texts(queries, "query", "--queries").texts
    for data in (_data_of_ranker(ranker), corpus):
        if data is None or not Path(data).is_dir():
            continue
        collection = open_collection(data)
        for split in ("dev", "train", "test"):
            if split in collection.qrels:
                texts = collection.queries.texts
                return [texts[row] for row in collection.qrels[split].query_rows.tolist()]
    return ()


def _data_of_ranker(ranker: str) -> str | None:
    """Where the data of the run lies that a ranker is of; None where it is of no run."""
    path = Path(ranker)
    folder = RunFolder(path) if path.is_dir() else run_of_checkpoint(path)
    if folder is None or not folder.config.is_file():
        return None
    path_of_data = data_of_run(folder)
    return path_of_data if isinstance(path_of_data, str) else None


def export(
    ranker: str, folder: str, *, to: Form = "sentence-transformers", int8: str | None = None
) -> None:
    """Write a folder that sentence-transformers, transformers, onnxruntime or PEFT loads, with a
    model card, and a proof of what it computes: see ltr verify.

    Adapters become part of the weights, and how that changes scores is printed.

    Args:
        ranker: A run folder, a checkpoint, an exported folder, or a model of the hub.
        folder: The new folder.
        to: ``sentence-transformers``; ``transformers``, for cross-encoders that kept a head of
            their own; ``onnx``; or ``adapter``: the adapters alone, for PEFT.
        int8: A data folder: ``onnx`` graphs with weights in int8, too, and both kinds measured on
            its dev split.
    """
    check_folder(folder, "the folder")
    try:
        exported = write_exported(ranker, folder, to, int8, _data_of_ranker(ranker))
    except KeyboardInterrupt:
        say(f"interrupted; {folder} is not written", to=sys.stderr)
        raise
    if exported.merged is not None:
        say(exported.merged)
    for graph in exported.measurements:  # with --int8
        say(
            f"{graph.kind}: {METRIC} {graph.ndcg:.4f} on dev, {graph.per_second:.0f} per second, {graph.megabytes:.1f} MB"
        )
    if exported.note:
        say(exported.note)
    say(f"{folder} is written, for {to}; its README.md says how to use it")
    if (Path(folder) / "proof/check.py").is_file():  # adapters alone have none
        say(f"python {folder}/proof/check.py says whether it computes the same elsewhere")


def score(
    rankers: list[str],
    *,
    data: str,
    output: str,
    split: Literal["train", "dev", "test"] = "train",
    documents: str = "candidates",
    depth: int | None = None,
    precision: Precision | None = None,
    device: str | None = None,
) -> None:
    """Write a teacher's scores of the lists of a collection, to train others on them:
    --data.labels.scores OUTPUT.

    Started again, it goes on where it was; started twice at once, the two share the work.

    Args:
        rankers: The teacher: a run folder, a checkpoint, an exported folder, or a model of the hub.
            Several are averaged.
        data: A data folder.
        output: The new folder.
        split: The queries.
        documents: Scored beside those that are judged relevant: ``candidates``, ``bm25``, or a
            folder of negatives.
        depth: How many of these documents, best first; None: all, and 100 of ``bm25``.
        precision: Of the encoder; None: that of the run.
        device: Where it runs, such as cpu or cuda:1; None: the GPU if there is one.
    """
    _check_at_least_one(depth=depth)
    check_folder(output, "--output")
    collection = open_collection(data)
    lists = lists_to_score(collection, split, documents, depth)
    teachers = [Teacher(name, _open_text_ranker(name, precision, device)) for name in rankers]
    manifest = score_lists(teachers, collection, lists, Path(output)).manifest
    counts = manifest["counts"]
    say(
        f"{output}: {counts['documents']} documents of {counts['queries']} queries are scored; "
        f"mean {manifest['mean']:.3g}, deviation within a list {manifest['deviation_in_lists']:.3g}"
    )
    say(f"to train on them: --data.labels.scores {output} --model.loss ltr.losses.MarginMSELoss")


def _open_text_ranker(name: str, precision: Precision | None, device: str | None) -> TextRanker:
    text_ranker = _open(name, precision, device)
    if not isinstance(text_ranker, TextRanker):
        raise InputError(f"{name} reads feature vectors, not texts; use it in Python: ltr.load")
    return text_ranker


def _open(name: str, precision: Precision | None, device: str | None) -> TextRanker | FeatureScorer:
    # Some packages speak when they are imported, and stdout is for results.
    with redirect_stdout(sys.stderr):
        return load(name, precision, device)


def _write(output: str, ranked: Iterable[RunLine], n_queries: int) -> None:
    write_run(output, ranked, "ltr")
    say(f"{n_queries} queries written to {output}")


def _show(hits: list[RankedDocument]) -> None:
    """A table on a terminal; elsewhere lines of rank, score, id and text, with tabs between."""
    if not sys.stdout.isatty():
        for place, hit in enumerate(hits, start=1):
            text = " ".join(hit.text.split())
            print(place, f"{hit.score:.9g}", hit.id, text, sep="\t", flush=True)
        return
    table = Table(box=None, pad_edge=False)
    for name in ("rank", "score", "id", "text"):
        table.add_column(name, no_wrap=name != "text")
    for place, hit in enumerate(hits, start=1):
        row = (str(place), f"{hit.score:.4f}", hit.id, _short(hit.text))
        table.add_row(*[escape(cell) for cell in row])
    Console().print(table)


def _short(text: str, length: int = 200) -> str:
    whole = " ".join(text.split())
    return whole if len(whole) <= length else f"{whole[: length - 1]}…"


def _typed_queries(n_documents: int) -> Iterator[str]:
    """The lines of stdin, up to an empty one."""
    terminal = sys.stdin.isatty()
    if terminal:
        say(f"{n_documents:,} documents; an empty line ends", to=sys.stderr)
    while True:
        if terminal:
            print("query> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line


def _refuse_instruction(instruction: str | None) -> None:
    """Refuse an instruction beside many queries, which have their own."""
    if instruction is not None:
        raise InputError(
            "--instruction is of --query; that of each query of a file is its instruction in queries.jsonl"
        )


def _check_at_least_one(**options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < 1:
            raise InputError(f"--{name} must be at least 1, got {value}")
