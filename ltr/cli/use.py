"""``ltr rank``, ``search``, ``export`` and ``score``: a trained ranker orders texts, is handed to
others, and teaches.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Literal

import jsonargparse
from rich.console import Console
from rich.table import Table

from ltr.data.collection import lists_of_run, open_collection
from ltr.data.text_files import open_texts
from ltr.data.trec import Ranked, write_run
from ltr.errors import InputError
from ltr.use.export import Form
from ltr.use.export import export as write_exported
from ltr.use.int8 import METRIC
from ltr.use.load import load
from ltr.use.rankers import FeatureScorer, Precision, RankedDocument, TextRanker
from ltr.use.reranking import rank_table, rerank, run_lines, search_and_rerank, search_run_lines
from ltr.use.retriever import Retriever, SearchableCorpus
from ltr.use.teaching import Teacher, lists_to_score, score_lists

STDIN = "-"


def run(command: str, args: list[str]) -> None:
    """Parse the arguments after one of these commands, and do what they say."""
    functions: dict[str, Callable[..., None]] = {
        "rank": rank,
        "search": search,
        "export": export,
        "score": score,
    }
    n_words = next((at for at, word in enumerate(args) if word.startswith("-")), len(args))
    words = args[:n_words]
    args = args[n_words:]
    if command == "score" and words:
        args = ["--rankers", json.dumps(words), *args]
    else:
        names = ("--ranker", "--folder") if command == "export" else ("--ranker",)
        args = (
            [part for pair in zip(names, words, strict=False) for part in pair]
            + words[len(names) :]
            + args
        )
    options: dict[str, Any] = {
        "exit_on_error": False,
        "allow_abbrev": False,
        "as_positional": False,
    }
    jsonargparse.auto_cli(functions[command], args=args, prog=f"ltr {command} RANKER", **options)


def rank(
    ranker: str,
    query: str = "",
    documents: str | None = None,
    k: int = 10,
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
        documents: A file of texts: .jsonl with _id and text, .tsv with id<TAB>text, or one text a
            line; or a data folder.
        k: How many documents are printed.
        run: A run file in TREC format, to be ordered again.
        data: Its queries and documents: a data folder.
        output: The new run file.
        depth: How many documents of each query of the run are read, best first; None: all. The
            others are left out.
        precision: Of the encoder; None: that of the run.
        device: Where it runs, such as cpu or cuda:1; None: the GPU if there is one.
    """
    _at_least_one(k=k, depth=depth)
    if query and documents is not None and run is data is output is None:
        table = open_texts(documents, "document", "--documents")
        _show(rank_table(_texts(ranker, precision, device), query, table)[:k])
    elif (
        run is not None
        and data is not None
        and output is not None
        and not query
        and documents is None
    ):
        tables = open_texts(data, "query", "--data"), open_texts(data, "document", "--data")
        lists = lists_of_run(Path(run), *tables).first(depth)
        _write(
            output,
            run_lines(rerank(_texts(ranker, precision, device), *tables, lists), *tables),
            len(lists.query_rows),
        )
    else:
        raise InputError(
            "ltr rank needs either --query and --documents, or --run, --data and --output; see ltr rank --help"
        )


def search(
    ranker: str,
    corpus: str,
    query: str = STDIN,
    queries: str | None = None,
    output: str | None = None,
    k: int | None = None,
    rerank: str | None = None,
    depth: int = 100,
    precision: Precision | None = None,
    device: str | None = None,
) -> None:
    """Find the best documents of a corpus: for a query, for those of a file, or for what is typed.

    The encoded corpus is kept, so the next search of it starts at once.

    Args:
        ranker: A dual encoder: a run folder, a checkpoint, an exported folder, or a model of the
            hub.
        corpus: A data folder, or a file of texts: .jsonl with _id and text, .tsv with id<TAB>text,
            or one text a line.
        query: What is searched for; - reads queries line by line, until an empty one.
        queries: A file of queries, as corpus; or a data folder.
        output: The new run file, in TREC format, for --queries.
        k: How many documents; None: 10, and 100 for --queries.
        rerank: A second ranker that orders again what was found.
        depth: How many documents it reads for each query.
        precision: Of the encoders; None: that of each run.
        device: Where they run, such as cpu or cuda:1; None: the GPU if there is one.
    """
    _at_least_one(k=k, depth=depth)
    if (queries is None) != (output is None) or (queries is not None and query != STDIN):
        raise InputError(
            "ltr search takes --query, or --queries and --output, or neither; see ltr search --help"
        )
    found = _loaded(ranker, precision, device)
    if not isinstance(found, Retriever):
        raise InputError(
            f"{ranker} is no dual encoder, and only one can search a corpus; let it order: --rerank {ranker}"
        )
    second = None if rerank is None else _texts(rerank, precision, device)
    searched = SearchableCorpus(found, open_texts(corpus, "document", "--corpus"))
    if queries is not None and output is not None:
        table = open_texts(queries, "query", "--queries")
        return _write(
            output, search_run_lines(searched, table, k or 100, second, depth), len(table)
        )
    for asked in _typed(len(searched.documents)) if query == STDIN else [query]:
        _show(
            searched.search(asked, k or 10)
            if second is None
            else search_and_rerank(searched, second, asked, depth)[: k or 10]
        )
    return None


def export(
    ranker: str, folder: str, to: Form = "sentence-transformers", int8: str | None = None
) -> None:
    """Write a folder that sentence-transformers, transformers or onnxruntime loads, with a model
    card.

    Args:
        ranker: A run folder, a checkpoint, an exported folder, or a model of the hub.
        folder: The new folder.
        to: ``sentence-transformers``; ``transformers``, for cross-encoders that kept a head of
            their own; or ``onnx``.
        int8: A data folder: ``onnx`` graphs with weights in int8, too, and both kinds measured on
            its dev split.
    """
    for one in write_exported(ranker, folder, to, int8):
        print(
            f"{one.kind}: {METRIC} {one.ndcg:.4f} on dev, {one.per_second:.0f} per second, {one.megabytes:.1f} MB"
        )
    print(f"{folder} is written, for {to}; its README.md says how to use it")


def score(
    rankers: list[str],
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
    _at_least_one(depth=depth)
    collection = open_collection(data)
    lists = lists_to_score(collection, split, documents, depth)
    teachers = [Teacher(name, _texts(name, precision, device)) for name in rankers]
    found = score_lists(teachers, collection, lists, Path(output))
    counts = found.manifest["counts"]
    about = found.manifest
    print(
        f"{output}: {counts['documents']} documents of {counts['queries']} queries are scored",
        end="; ",
    )
    print(f"mean {about['mean']:.3g}, deviation within a list {about['deviation_in_lists']:.3g}")
    print(f"to train on them: --data.labels.scores {output} --model.loss ltr.losses.MarginMSELoss")


def _texts(name: str, precision: Precision | None, device: str | None) -> TextRanker:
    found = _loaded(name, precision, device)
    if not isinstance(found, TextRanker):
        raise InputError(f"{name} reads feature vectors, not texts; use it in Python: ltr.load")
    return found


def _loaded(
    name: str, precision: Precision | None, device: str | None
) -> TextRanker | FeatureScorer:
    with redirect_stdout(
        sys.stderr
    ):  # some packages speak when they are imported, and stdout is for results
        return load(name, precision, device)


def _write(output: str, ranked: Iterable[Ranked], n_queries: int) -> None:
    write_run(output, ranked, "ltr")
    print(f"{n_queries} queries written to {output}")


def _show(hits: list[RankedDocument]) -> None:
    """A table on a terminal; elsewhere lines of rank, score, id and text, with tabs between."""
    if not sys.stdout.isatty():
        for rank, hit in enumerate(hits, start=1):
            print(
                rank, f"{hit.score:.9g}", hit.id, " ".join(hit.text.split()), sep="\t", flush=True
            )
        return
    table = Table(box=None, pad_edge=False)
    for name in ("rank", "score", "id", "text"):
        table.add_column(name, no_wrap=name != "text")
    for rank, hit in enumerate(hits, start=1):
        table.add_row(
            str(rank),
            f"{hit.score:.4f}",
            hit.id.replace("[", r"\["),
            _short(hit.text).replace("[", r"\["),
        )
    Console().print(table)


def _short(text: str, length: int = 200) -> str:
    whole = " ".join(text.split())
    return whole if len(whole) <= length else f"{whole[: length - 1]}…"


def _typed(n_documents: int) -> Iterator[str]:
    """The lines of stdin, up to an empty one."""
    terminal = sys.stdin.isatty()
    if terminal:
        print(f"{n_documents:,} documents; an empty line ends", file=sys.stderr)
    while True:
        if terminal:
            print("query> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line


def _at_least_one(**options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < 1:
            raise InputError(f"--{name} must be at least 1, got {value}")
