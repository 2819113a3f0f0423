"""``ltr negatives audit``: lists likely false negatives, and writes an overlay that training reads."""

from pathlib import Path
from typing import Any, get_args

import jsonargparse
import torch
import yaml

from ltr.data.collection import Collection, open_collection
from ltr.data.files import write_whole
from ltr.errors import InputError
from ltr.mining.audit import Suspects, audited
from ltr.mining.judge import Judge
from ltr.mining.miner import digest_of_weights
from ltr.mining.negatives import MinedNegatives
from ltr.mining.overlay import Policy, save_overlay
from ltr.models import DualEncoder, PairWiseBertRanker, Ranker
from ltr.models.encoder.pretrained import is_ready_cross_encoder

SHOWN = 10  # suspects on the terminal
WIDTH = 100  # letters of a text there
COLUMNS = ("query_id", "doc_id", "relevant_id", "score", "relevant_score", "place", "distance", "query", "doc", "relevant")


def parser() -> jsonargparse.ArgumentParser:
    """The options of the command."""
    parser = jsonargparse.ArgumentParser(prog="ltr negatives audit", description=__doc__, exit_on_error=False)
    parser.add_argument("folder", type=Path, help="Negatives, as mining has written them.")
    parser.add_argument("--judge", type=str, required=True, help="The ranker that judges: hub id, folder, or package:NAME.")
    parser.add_argument("--data.path", type=str | None, help="The collection. None: that of the run whose folder this is.")
    help = "Take what scores above the relevant document minus this, in units of the judge's score."
    parser.add_argument("--margin", type=float, default=0.0, help=help)
    parser.add_argument("--max_length", type=int | None, help="Tokens that the judge reads. None: its usual ones.")
    parser.add_argument("--tsv", type=Path | None, help="A file for all suspects, with their texts.")
    help = f"Write an overlay that training reads: {', '.join(get_args(Policy))}. None: only list them."
    parser.add_argument("--policy", type=Policy | None, help=help)
    parser.add_argument("--grade", type=float, default=1.0, help="The grade of documents that are relabelled.")
    return parser


def run(args: list[str]) -> None:
    """Audit the negatives of a folder.

    Args:
        args: those behind ``ltr negatives audit``.

    Raises:
        InputError: for what the user can mend.
    """
    options = parser().parse_args(args)
    if not options.grade > 0:
        raise InputError(f"--grade must be above 0, got {options.grade}; to leave the documents out take --policy drop")
    collection = open_collection(options.data.path or _data_of_run(options.folder))
    negatives, ranker = MinedNegatives.open(options.folder, collection), judge_named(options.judge, options.max_length)
    judge = Judge(options.judge, ranker, collection)
    suspects, counts = audited(negatives, collection.learnable("train"), judge, options.margin)
    for line in _report(suspects, counts, collection, options.judge):
        print(line)
    if options.tsv is not None:
        write_whole(options.tsv, _table(suspects, negatives, collection))
        print(f"all of them: {options.tsv}")
    if options.policy is not None and len(suspects.scores):
        print(f"negatives: {_write(options, suspects, negatives, counts, ranker)}   # trains with them: {options.policy}")


def judge_named(name: str, max_length: int | None = None) -> Ranker:
    """A ranker by name, to score with: a ready cross-encoder, or else a dual encoder.

    Args:
        name: hub id, folder, or ``package:NAME``.
        max_length: tokens that it reads; None: its usual ones.

    Raises:
        InputError: if it can't be loaded.
    """
    length: dict[str, Any] = {} if max_length is None else {"max_length": max_length}
    try:
        ranker = PairWiseBertRanker(name, **length) if is_ready_cross_encoder(name) else DualEncoder(name, **length)
    except InputError as error:
        raise InputError(f"--judge {name}: {error.message}") from None
    return ranker.eval().requires_grad_(False).to("cuda" if torch.cuda.is_available() else "cpu")


def _data_of_run(folder: Path) -> str:
    """The collection of the run that mined a folder: RUN/negatives/NAME."""
    config = folder.resolve().parents[1] / "config.yaml" if len(folder.resolve().parents) > 1 else folder
    found = yaml.safe_load(config.read_text()) if config.is_file() else {}
    path = found.get("data", {}).get("init_args", {}).get("path")
    if path is None:
        raise InputError(f"{folder} lies in no run that tells its collection; name it: --data.path FOLDER")
    return path


def _write(
    options: jsonargparse.Namespace, suspects: Suspects, negatives: MinedNegatives, counts: dict[str, int], ranker: Ranker
) -> Path:
    asked = {"policy": options.policy, "judge": options.judge, "weights": digest_of_weights(ranker), "margin": options.margin}
    asked |= {"grade": options.grade} if options.policy == "relabel" else {}
    content = {"key": negatives.manifest.get("key"), "content": negatives.lists().digest(), "counts": counts}
    arrays = {"query_rows": suspects.query_rows, "doc_rows": suspects.doc_rows, "scores": suspects.scores}
    return save_overlay(options.folder, content | asked, **arrays, labels=suspects.labels(options.policy, options.grade))


def _report(suspects: Suspects, counts: dict[str, int], collection: Collection, judge: str) -> list[str]:
    n, of = counts["suspects"], counts["negatives"]
    share = f" ({n / of:.1%})" if of else ""
    lines = [f"{of:,} negatives of {counts['queries']:,} queries, judged by {judge}"]
    lines += [f"likely false negatives: {n:,}{share}, of {counts['suspect_queries']:,} queries"]
    for at in range(min(n, SHOWN)):
        query, doc, _, score, relevant, own = (values[at] for values in suspects)
        lines += ["", f"{collection.queries.ids[query]}  {_line(collection.queries.texts[query])[:WIDTH]}"]
        for name, row, value in (("negative", doc, score), ("relevant", relevant, own)):
            lines += [f"  {name} {value:7.3f}  {collection.corpus.ids[row]}  {_line(collection.corpus.texts[row])[:WIDTH]}"]
    return [*lines, "", f"… and {n - SHOWN:,} more"] if n > SHOWN else lines


def _table(suspects: Suspects, negatives: MinedNegatives, collection: Collection) -> list[str]:
    """Lines of a TSV file, the largest gap first."""
    queries, corpus, rows = collection.queries, collection.corpus, ["\t".join(COLUMNS)]
    for query, doc, place, score, relevant, own in zip(*suspects, strict=True):
        numbers = (f"{score:.6g}", f"{own:.6g}", str(place), f"{negatives.distances[query, place]:.6g}")
        texts = (_line(queries.texts[query]), _line(corpus.texts[doc]), _line(corpus.texts[relevant]))
        rows.append("\t".join((queries.ids[query], corpus.ids[doc], corpus.ids[relevant], *numbers, *texts)))
    return [f"{row}\n" for row in rows]


def _line(text: str) -> str:
    """A text without tabs and line ends."""
    return " ".join(text.split())
