"""``ltr negatives audit``: lists likely false negatives, and writes an overlay that training reads."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from ltr.data.collection import Collection, open_collection
from ltr.data.files import write_whole
from ltr.data.formats import JoinedPairs
from ltr.errors import InputError
from ltr.mining.audit import Suspects, find_suspects
from ltr.mining.judge import Judge
from ltr.mining.negatives import MinedNegatives
from ltr.mining.overlay import Policy, save_overlay
from ltr.models import PairWiseBertRanker, Ranker
from ltr.models.named import open_ranker
from ltr.models.ranker import digest_of_weights
from ltr.run.folder import RunFolder

log = logging.getLogger(__name__)

SHOWN = 10  # suspects on the terminal
WIDTH = 100  # letters of a text there
PAIR_TOKENS = 256  # that a judge of no run reads, as a PairWiseBertRanker does in training
COLUMNS = (
    "query_id",
    "doc_id",
    "relevant_id",
    "score",
    "relevant_score",
    "place",
    "distance",
    "query",
    "doc",
    "relevant",
)


@dataclass
class Data:
    """The data that the negatives belong to.

    Args:
        path: A collection.
    """

    path: str


def audit(
    folder: str,
    judge: str | None = None,
    data: Data | None = None,
    margin: float = 0.0,
    max_length: int | None = None,
    tsv: str | None = None,
    policy: Policy | None = None,
    grade: float = 1.0,
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
        grade: Of documents that are relabelled.
    """
    if judge is None:
        raise InputError("the audit needs a ranker that judges; name it: --judge MODEL")
    if not grade > 0:
        raise InputError(
            f"--grade must be above 0, got {grade}; to leave the documents out take --policy drop"
        )
    base = Path(folder)
    collection = open_collection(data.path if data else _data_of_run(Path(folder)))
    negatives = MinedNegatives.open(base, collection)
    ranker = judge_named(judge, max_length)
    suspects, counts = find_suspects(
        negatives, collection.learnable("train"), Judge(judge, ranker, collection), margin
    )
    for line in _told(suspects, counts, collection):
        log.info("%s", line)
    if tsv is not None:
        write_whole(tsv, _table(suspects, negatives, collection))
        log.info("all of them are in %s", tsv)
    if policy is None or not counts["suspects"]:
        return
    asked = {
        "policy": policy,
        "judge": judge,
        "weights": digest_of_weights(ranker),
        "margin": margin,
        "grade": grade,
    }
    content = {
        "key": negatives.manifest.get("key"),
        "content": negatives.lists().digest(),
        "counts": counts,
    }
    arrays = {
        "query_rows": suspects.query_rows,
        "doc_rows": suspects.doc_rows,
        "scores": suspects.scores,
        "labels": suspects.labels(policy, grade),
    }
    found = save_overlay(base, collection, content | asked, **arrays)
    log.info("to train on the negatives with it: --data.negatives %s", found)


def judge_named(name: str, max_length: int | None = None) -> Ranker:
    """A ranker of texts by name, to score with; see :func:`ltr.models.named.open_ranker`.

    Args:
        name: run folder, checkpoint, folder, ``package:NAME`` or hub id.
        max_length: tokens that it reads; None: those of the model, but 256 of a pair at most. A run
            has its own.

    Raises:
        InputError: if it can't be loaded.
    """
    named = open_ranker(name, "--judge", "texts", max_length=max_length)
    ranker = named.ranker
    has_no_length_of_its_own = named.file is None and max_length is None
    if has_no_length_of_its_own and isinstance(ranker, PairWiseBertRanker):
        shorter = min(ranker.reads.max_length, PAIR_TOKENS)
        ranker.reads = JoinedPairs(ranker.tokenizer, shorter)
    return ranker.eval().requires_grad_(False).to("cuda" if torch.cuda.is_available() else "cpu")


def _data_of_run(folder: Path) -> str:
    """The collection of the run that mined a folder: RUN/negatives/NAME."""
    whole = folder.resolve()
    options: dict[str, Any] = {}
    if len(whole.parents) > 1:
        config = RunFolder(whole.parents[1]).config
        if config.is_file():
            options = yaml.safe_load(config.read_text()) or {}
    path = options.get("data", {}).get("init_args", {}).get("path")
    if path is None:
        raise InputError(
            f"{folder} lies in no run that tells its collection; name it: --data.path FOLDER"
        )
    return path


def _told(suspects: Suspects, counts: dict[str, int], collection: Collection) -> list[str]:
    n = counts["suspects"]
    of = counts["negatives"]
    share = f" ({n / of:.1%})" if of else ""
    lines = [f"{of:,} negatives of {counts['queries']:,} queries are judged"]
    lines += [f"likely false negatives: {n:,}{share}, of {counts['suspect_queries']:,} queries"]
    for at in range(min(n, SHOWN)):
        query, doc, _, score, relevant, own = (values[at] for values in suspects)
        lines += [
            "",
            f"{collection.queries.ids[query]}  {_line(collection.queries.texts[query])[:WIDTH]}",
        ]
        for name, row, value in (("negative", doc, score), ("relevant", relevant, own)):
            lines += [
                f"  {name} {value:7.3f}  {collection.corpus.ids[row]}  {_line(collection.corpus.texts[row])[:WIDTH]}"
            ]
    return [*lines, "", f"… and {n - SHOWN:,} more"] if n > SHOWN else lines


def _table(suspects: Suspects, negatives: MinedNegatives, collection: Collection) -> list[str]:
    """Lines of a TSV file, the largest gap first."""
    queries = collection.queries
    corpus = collection.corpus
    rows = ["\t".join(COLUMNS)]
    for query, doc, place, score, relevant, own in zip(*suspects, strict=True):
        numbers = (
            f"{score:.6g}",
            f"{own:.6g}",
            str(place),
            f"{negatives.distances[query, place]:.6g}",
        )
        texts = (
            _line(queries.texts[query]),
            _line(corpus.texts[doc]),
            _line(corpus.texts[relevant]),
        )
        rows.append(
            "\t".join((queries.ids[query], corpus.ids[doc], corpus.ids[relevant], *numbers, *texts))
        )
    return [f"{row}\n" for row in rows]


def _line(text: str) -> str:
    """A text without tabs and line ends."""
    return " ".join(text.split())
