"""``ltr score``: a trained ranker teaches others by its scores."""

from pathlib import Path
from typing import Literal

from ltr.cli.opened_rankers import open_text_ranker
from ltr.cli.rank_and_search import check_at_least_one
from ltr.data.collection import open_collection
from ltr.data.console import counted, say
from ltr.data.outputs import check_folder
from ltr.run.precision import Precision
from ltr.use.teaching import Teacher, lists_to_score, score_lists


def score(
    rankers: list[str],
    *,
    data: str,
    output: str,
    split: Literal["train", "dev", "test"] = "train",
    documents: str = "auto",
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
        documents: Scored beside those that are judged relevant: the split's pools (``candidates``),
            the best of BM25 (``bm25``), pools where there are some, else BM25 (``auto``), or a folder
            of negatives.
        depth: How many of these documents, best first; None: all, and 100 of ``bm25``.
        precision: Of the encoder; None: that of the run.
        device: Where it runs, such as cpu or cuda:1; None: the GPU if there is one.
    """
    check_at_least_one(depth=depth)
    check_folder(output, "--output")
    collection = open_collection(data)
    lists = lists_to_score(collection, split, documents, depth)
    teachers = [Teacher(name, open_text_ranker(name, precision, device)) for name in rankers]
    manifest = score_lists(teachers, collection, lists, Path(output)).manifest
    counts = manifest["counts"]
    say(
        f"{output}: scored {counted(counts['documents'], 'document')} of {counted(counts['queries'], 'query')}; "
        f"mean {manifest['mean']:.3g}, deviation within a list {manifest['deviation_in_lists']:.3g}"
    )
    say(f"to train on them: --data.labels.scores {output} --model.loss ltr.losses.MarginMSELoss")
