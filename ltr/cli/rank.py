"""``ltr rank``: a trained ranker orders texts for a query, or the documents of a run file again."""

import sys
from pathlib import Path

from ltr.cli.opened_rankers import open_text_ranker
from ltr.cli.rank_and_search import (
    check_at_least_one,
    find_own_documents,
    print_hits,
    refuse_instruction,
    write_rankings,
)
from ltr.data.console import say
from ltr.data.judged_lists import lists_of_run
from ltr.data.outputs import check_file
from ltr.data.own_documents import without_own
from ltr.data.text_files import open_texts
from ltr.errors import InputError
from ltr.run.precision import Precision
from ltr.use.calibration.calibration import check_keep
from ltr.use.calibration.conformal import Kept
from ltr.use.rankers import check_query
from ltr.use.reranking import rank_table, rerank, run_lines


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
    keep: float | None = None,
    kept: Kept = "all",
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
        k: How many documents are printed; None: 10, and with --keep all that are kept.
        run: A run file in TREC format, to be ordered again.
        data: Its queries and documents: a data folder.
        output: The new run file.
        depth: How many documents of each query of the run are read, best first; None: all. The
            others are left out.
        keep: The share of queries that are to keep their relevant documents, such as 0.9, by the
            calibration of the run (ltr calibrate RUN): documents of too low a score are left out, all
            of them where nothing fits. None: all documents.
        kept: Of the relevant documents all, or one at least, which keeps fewer documents.
        precision: Of the encoder; None: that of the run.
        device: Where it runs, such as cpu or cuda:1; None: the GPU if there is one.
    """
    check_at_least_one(k=k, depth=depth)
    check_keep(keep, kept)
    check_file(output, "--output")
    ranks_a_run = run is not None or data is not None or output is not None
    if documents is not None and not ranks_a_run:
        check_query(query, "--query")
        if depth is not None:
            raise InputError("--depth is of --run: it says how many documents of a run are read")
        table = open_texts(documents, "document", "--documents")
        text_ranker = open_text_ranker(ranker, precision, device)
        n_ranked = k or 10 if keep is None else None
        ranking = rank_table(text_ranker, query, table, n_ranked, instruction, keep=keep, kept=kept)
        if not ranking and keep is not None:
            say("nothing fits: no document has the score that keeps the promise", to=sys.stderr)
        if k is not None and len(ranking) > k:
            say(f"{len(ranking):,} documents fit, {k:,} are printed (--k)", to=sys.stderr)
        print_hits(ranking[:k])
        return
    refuse_instruction(instruction)
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
    own_docs = find_own_documents(queries, corpus, lists.query_rows, data)
    lists = without_own(lists, own_docs).cut(depth)
    text_ranker = open_text_ranker(ranker, precision, device)
    calibration = text_ranker.calibration_for(keep, kept)
    rankings = rerank(text_ranker, queries, corpus, lists)
    n_queries = len(rankings.query_rows)
    if calibration is not None and keep is not None:
        rankings = rankings.where(calibration.keeps(rankings.values, keep, kept))
    write_rankings(output, run_lines(rankings, queries, corpus), len(rankings.query_rows))
    n_empty = n_queries - len(rankings.query_rows)
    if n_empty:
        say(f"nothing fits {n_empty} of {n_queries} queries: they have no line there")
