"""``ltr negatives import``, ``diff`` and ``audit``: folders of negatives made of other files,
compared, and checked for relevant documents.
"""

import logging
from pathlib import Path

import numpy as np
import transformers

from ltr.cli.run_paths import data_of_run
from ltr.data.collection import open_collection
from ltr.data.outputs import check_file, check_inside, check_new_folder
from ltr.data.whole_files import write_whole
from ltr.datamodules.triplets import check_name_of_negatives
from ltr.errors import InputError, positive
from ltr.mining.audit import find_suspects
from ltr.mining.audit_report import audit_lines, audit_tsv
from ltr.mining.diff import pairs_of_both
from ltr.mining.diff_report import diff_lines, diff_tsv
from ltr.mining.imported import negatives_of_file
from ltr.mining.judge import TextScorer, open_judge
from ltr.mining.mined_negatives import MinedNegatives
from ltr.mining.overlay import Remedy, save_overlay
from ltr.models.ranker import digest_of_weights
from ltr.run.run_folder import RunFolder

# Lines go through the log, see ltr.cli.commands.Stdout.MESSAGES.
log = logging.getLogger(__name__)


def import_negatives(
    source: str,
    output: str,
    *,
    data: str,
    distances: str | None = None,
    systems: list[str] | None = None,
    relevant_from: float | None = None,
) -> None:
    """Make a folder of negatives of a run file, an array or a file of pairs.

    Args:
        source: A run file in TREC format (.trec, .run, plain or packed), document rows [Q, K] (.npy),
            or rows of ids (.jsonl, .csv, .parquet, .tsv): query_id, doc_id and, if they have them,
            distance or score; a query, a positive and a negative; or qid and neg with the documents
            of each system, as msmarco-hard-negatives.
        output: The new folder.
        data: The collection.
        distances: An array [Q, K] (.npy) beside that of rows: the Euclidean distances of documents
            and queries.
        systems: Of a file with the documents of several systems, those to take, in this order.
            None: all of them, in the order of the file.
        relevant_from: The lowest grade that is relevant, as data.relevant_from of the training:
            documents of lower grades are taken. None: any above 0.
    """
    if relevant_from is not None:
        positive("relevant_from", relevant_from)
    check_new_folder(output, "the output")
    check_name_of_negatives(output, "the output")
    folder = Path(output)
    collection = open_collection(data)._replace(relevant_from=relevant_from)
    distances_file = None if distances is None else Path(distances)
    negatives = negatives_of_file(Path(source), collection, distances_file, systems)
    negatives.save(folder, collection)
    counts = negatives.manifest["counts"]
    n_queries = negatives.manifest["mined_queries"]
    with_or_without = "without" if negatives.manifest["distance"] is None else "with"
    log.info(
        "%s: %d negatives of %d queries, %s distances",
        output,
        counts["chosen"],
        n_queries,
        with_or_without,
    )
    if counts["relevant"]:
        log.info(
            "  %d documents are left out: they, or others of the same text, are judged relevant",
            counts["relevant"],
        )
    if "train" in collection.qrels:
        training_rows = collection.qrels["train"].query_rows
        rows_without = np.setdiff1d(training_rows, negatives.lists.query_rows)
        if len(rows_without):
            log.info("  %d training queries have none", len(rows_without))
    log.info("  to train on them: --data.negatives %s", output)


def diff(first: str, second: str, *, data: str, tsv: str | None = None) -> None:
    """Compare two folders of negatives: overlap, moved ranks, queries that changed most, likely
    false negatives.

    Args:
        first: A folder of negatives.
        second: Another one.
        data: The collection.
        tsv: Also write all pairs of queries and documents to this file.
    """
    check_file(tsv, "--tsv")
    collection = open_collection(data)
    both = []
    for path in (first, second):
        negatives = MinedNegatives.open(Path(path), collection)
        if not len(negatives.lists.doc_rows):
            raise InputError(f"{path}: there must be a negative to compare, and there is none")
        both.append(negatives)
    pairs = pairs_of_both(*both)
    for line in diff_lines(pairs, collection):
        log.info("%s", line)
    if tsv is not None:
        write_whole(tsv, [diff_tsv(pairs, collection)])
        log.info("all %d pairs are in %s", len(pairs), tsv)


def audit(
    folder: str,
    *,
    judge: str | None = None,
    data: str | None = None,
    margin: float = 0.0,
    max_length: int | None = None,
    tsv: str | None = None,
    policy: Remedy | None = None,
    grade: float | None = None,
) -> None:
    """List negatives that a judge scores above the relevant document, and write an overlay that
    training reads.

    Args:
        folder: A folder of negatives.
        judge: The ranker of texts that scores them: hub id, folder, package:NAME, or a run folder
            or checkpoint.
        data: The collection. None: that of the run in whose folder the negatives lie.
        margin: Also list what scores below the relevant document by less than this, in units of the
            judge's score.
        max_length: Tokens that the judge reads; None: its usual ones. A run has its own.
        tsv: Write all that is listed to this file, with texts and scores.
        policy: What training does with them: drop, relabel or soft. None: no overlay is written.
        grade: Of documents that are relabelled. None: 1, or data.relevant_from of the mining.
    """
    if judge is None:
        raise InputError("the audit needs a ranker that judges; name it: --judge MODEL")
    if grade is not None and not grade > 0:
        raise InputError(
            f"--grade must be above 0, got {grade}; to leave the documents out take --policy drop"
        )
    check_file(tsv, "--tsv")
    base = Path(folder)
    if policy is not None:  # the overlay will lie beside the folder
        check_inside(base.parent, "the folder of negatives")
    transformers.utils.logging.disable_progress_bar()  # even for loading weights, a tenth of a second
    collection = open_collection(_data_of_negatives(base) if data is None else data)
    negatives = MinedNegatives.open(base, collection)
    # What counted as irrelevant when these were mined is no relevant document to compare with.
    collection = collection._replace(relevant_from=negatives.relevant_from)
    if grade is None:
        grade = negatives.relevant_from or 1.0
    if policy is not None and negatives.split != "train":
        raise InputError(
            f"{base}: an overlay is for training, and these negatives are of the queries of {negatives.split}; leave --policy out"
        )
    ranker = open_judge(judge, max_length)
    relevant = collection.learnable(negatives.split)
    suspects, counts = find_suspects(
        negatives, relevant, TextScorer(judge, ranker, collection), margin
    )
    for line in audit_lines(suspects, counts, collection):
        log.info("%s", line)
    if tsv is not None:
        write_whole(tsv, audit_tsv(suspects, negatives, collection))
        log.info("all of them are in %s", tsv)
    if policy is None or not counts["suspects"]:
        return
    manifest = {
        "key": negatives.manifest.get("key"),
        "content": negatives.lists.digest(),
        "counts": counts,
        "policy": policy,
        "judge": judge,
        "weights": digest_of_weights(ranker),
        "margin": margin,
        "grade": grade,
    }
    overlay = save_overlay(
        base,
        collection,
        manifest,
        query_rows=suspects.query_rows,
        doc_rows=suspects.doc_rows,
        scores=suspects.scores,
        labels=suspects.labels(policy, grade),
    )
    log.info("to train on the negatives with it: --data.negatives %s", overlay)


def _data_of_negatives(negatives: Path) -> str:
    """The collection of the run that mined a folder: RUN/negatives/NAME."""
    run = RunFolder(negatives.resolve().parent.parent)
    if not run.config.is_file():
        raise InputError(
            f"{negatives} lies in no run that tells its collection; name it: --data FOLDER"
        )
    path = data_of_run(run)
    if not isinstance(path, str):
        raise InputError(
            f"{run.config} must tell the collection as data.init_args.path, got {path!r}; name it: --data FOLDER"
        )
    return path
