"""Whether the parts of a training fit each other and the data. What doesn't is refused in one line,
before anything runs.
"""

import copy
import logging
from bisect import bisect_right
from collections.abc import Iterable

import torch

from ltr.datamodules import RankingDataModule
from ltr.errors import InputError
from ltr.in_batch import AllTexts, InBatch, OtherQueries, OwnLists
from ltr.in_batch.policies import NO_QUERIES, check_one_prompt
from ltr.losses import Loss, SoftmaxLoss
from ltr.losses.transform import Transform
from ltr.margins import Margin
from ltr.metrics import RankingMetric
from ltr.models import DualEncoder, Ranker

log = logging.getLogger(__name__)


def check_part(option: str, part: object, kind: type, example: str) -> None:
    """Raise an InputError for a part of the module that is no object of its kind."""
    if isinstance(part, kind):
        return
    given = f"the class {part.__name__}" if isinstance(part, type) else f"{part!r:.80}"
    raise InputError(f"{option} must be an object, such as {example}, got {given}", option=option)


def check_margin(loss: Loss, margin: Margin, ranker: Ranker) -> None:
    """Raise an InputError where the loss can't use the margin, or the ranker gives nothing that it
    could be computed from.
    """
    margin_name = type(margin).__name__
    if not loss.takes_margin:
        raise InputError(
            f"{type(loss).__name__} has no margin, got {margin_name}; remove the margin",
            option="margin",
        )
    if margin.wants_embeddings and not ranker.gives_embeddings:
        raise InputError(
            f"{margin_name} needs a ranker that gives embeddings, and the own head of a ready cross-encoder hides them; take a backbone without a head, or another margin",
            option="margin",
        )
    reads_apart = margin.wants_queries or margin.encoder is not None
    if reads_apart and not isinstance(ranker, DualEncoder):
        raise InputError(
            f"{margin_name} needs queries and documents that are read apart, by a DualEncoder, got {type(ranker).__name__}; take another margin",
            option="margin",
        )


def check_data(
    ranker: Ranker,
    loss: Loss,
    margin: Margin | None,
    in_batch: InBatch,
    transform: Transform,
    data: RankingDataModule,
    *,
    quiet: bool = False,
) -> None:
    """Raise an InputError for data that a module with these parts can't be trained on; warn where it
    can't from some lists, unless ``quiet``.
    """
    check_options(ranker, loss, margin, in_batch, transform, data)
    check_labels(loss, in_batch, data, quiet=quiet)
    _check_distances(ranker, margin, data)


def check_options(
    ranker: Ranker,
    loss: Loss,
    margin: Margin | None,
    in_batch: InBatch,
    transform: Transform,
    data: RankingDataModule,
) -> None:
    """As :func:`check_data`, by what options and judgements tell: nothing need be tokenised."""
    _check_groups(ranker, in_batch, data)
    _check_one_list(margin, in_batch, data)
    _check_scale(data)
    _check_kind_of_labels(loss, in_batch, data)
    check_transform(transform, loss, margin, data)
    check_anchor(ranker, loss, transform)


def _check_groups(ranker: Ranker, in_batch: InBatch, data: RankingDataModule) -> None:
    """Refuse groups of relevant documents that would be ranked alone; and those without queries where
    queries are needed, or texts are read in two ways.
    """
    if data.needs_in_batch and not in_batch.ranks_other_lists:
        raise InputError(
            f"the groups of {type(data).__name__} hold relevant documents only, so they must be ranked against each other; set in_batch to ltr.in_batch.OtherQueries or ltr.in_batch.AllTexts",
            option="in_batch",
        )
    if data.has_queries:
        return
    if type(in_batch) is OtherQueries:
        raise InputError(NO_QUERIES, option="in_batch")
    if isinstance(ranker, DualEncoder):
        check_one_prompt(ranker)


def _check_one_list(margin: Margin | None, in_batch: InBatch, data: RankingDataModule) -> None:
    """Refuse what has no meaning over the documents of all queries: labels of several sources, and a
    margin of what lies between the texts of one list.
    """
    if not in_batch.joins_lists:
        return
    name = type(in_batch).__name__
    if data.mixes_sources:
        raise InputError(
            f"{name} compares the labels of all lists of a batch, and those of two sources can't be compared; set mixture.batches to one_source",
            option="mixture.batches",
        )
    for policy in () if margin is None else margin.modules():
        if isinstance(policy, Margin) and (policy.wants_embeddings or policy.wants_distances):
            raise InputError(
                f"{type(policy).__name__} compares the texts of a list, and {name} makes one list of all queries; take another margin",
                option="margin",
            )


def _check_scale(data: RankingDataModule) -> None:
    """Refuse one divisor for the grades of several sources, whose scales may differ."""
    divide_by = data.labels.divide_by
    if divide_by is not None and len(data.source_names) > 1:
        raise InputError(
            f"divide_by is one number for grades of one scale, got {divide_by:g} and {len(data.source_names)} sources; divide the grades in the files of the source that needs it",
            option="labels.divide_by",
        )


def _check_distances(ranker: Ranker, margin: Margin | None, data: RankingDataModule) -> None:
    """Refuse a margin of distances where nothing gives any."""
    # A dual encoder gives those of its embeddings.
    if isinstance(ranker, DualEncoder) or margin is None or data.has_distances:
        return
    # Any of its parts counts: of a schedule of losses the margin of a later stage too.
    for policy in margin.modules():
        if isinstance(policy, Margin) and policy.wants_distances:
            raise InputError(
                "the margin needs the distances of mined negatives, and the lists here have none; set negatives to a folder of mined ones, or take another margin",
                option="margin",
            )


def check_transform(
    transform: Transform, loss: Loss, margin: Margin | None, data: RankingDataModule
) -> None:
    """Refuse transformed scores where labels are the scores of a teacher; and a margin of the loss
    that they can't reach.
    """
    if transform == "none":
        return
    if data.has_teacher_scores:
        raise InputError(
            f"labels are the scores of a teacher, and the {transform} of a score can't be compared with them; set transform: none",
            option="transform",
        )
    loss = loss.current
    asked = loss.asked_margin(None)
    if margin is None and isinstance(asked, int | float) and asked >= 1:
        raise InputError(
            f"after transform: {transform} all scores are from 0 to 1, and {type(loss).__name__} asks for a gap of {asked:g}, which none can reach; set its margin below 1",
            option="transform",
        )


def check_anchor(ranker: Ranker, loss: Loss, transform: Transform) -> None:
    """Refuse an anchor that all scores lie above, or none."""
    anchored = any(
        isinstance(part, SoftmaxLoss) and part.anchor is not None for part in loss.current.modules()
    )
    if not anchored:
        return
    if transform != "none":
        raise InputError(
            f"after transform: {transform} all scores are from 0 to 1, so none can go below the anchor of SoftmaxLoss, a document with score 0; set transform: none, or leave the anchor out",
            option="transform",
        )
    if isinstance(ranker, DualEncoder) and ranker.similarity.by_distance:
        raise InputError(
            f"scores by similarity: {ranker.similarity.name} are 0 at most, so none can go above the anchor of SoftmaxLoss, a document with score 0; take the similarity cosine or dot, or leave the anchor out",
            option="similarity",
        )


def check_labels(
    loss: Loss, in_batch: InBatch, data: RankingDataModule, *, quiet: bool = False
) -> None:
    """Raise an InputError where the loss, or ``in_batch``, can't learn from the labels of the data;
    warn where it can't from some lists, unless ``quiet``.
    """
    _check_kind_of_labels(loss, in_batch, data)
    ranks_own_lists = not in_batch.ranks_other_lists and not in_batch.joins_lists
    if data.lists_with_both is not None and ranks_own_lists:
        n_with_both, n_lists = data.lists_with_both
        _check_lists_have_order(loss.current, n_with_both, n_lists, quiet)


def _check_kind_of_labels(loss: Loss, in_batch: InBatch, data: RankingDataModule) -> None:
    """Refuse a loss or ``in_batch`` that can't learn from a teacher's scores, or soft labels."""
    if data.has_teacher_scores:
        _check_teacher_scores(loss, in_batch)
    elif data.largest_soft_label:
        _check_soft_labels(loss, in_batch, data.largest_soft_label)


def _check_teacher_scores(loss: Loss, in_batch: InBatch) -> None:
    """Of a teacher's scores, refuse a loss that wants grades, and documents of other queries."""
    if not loss.takes_teacher_scores:
        raise InputError(
            f"{type(loss).__name__} takes grades as labels, and they are scores",
            option="loss",
        )
    if type(in_batch) is not OwnLists and not in_batch.joins_lists:
        raise InputError(
            "a teacher has scored no documents of other queries; leave out in_batch",
            option="in_batch",
        )


def _check_soft_labels(loss: Loss, in_batch: InBatch, largest: float) -> None:
    """Refuse a loss, or a policy, that takes soft labels of different sizes for the same."""
    if not loss.distinguishes_grades:
        name = type(loss).__name__
    elif isinstance(in_batch, AllTexts):
        name = type(in_batch).__name__
    elif largest > loss.largest_label:
        raise InputError(
            f"{type(loss).__name__} takes every label above {loss.largest_label:g} for relevant, and labels with fractions go up to {largest:g}; divide the labels by the largest one of the scale (data.labels.divide_by of texts), say from which one on a document is relevant (data.relevant_from), or take another loss of grades, as MSELoss or RankNetLoss",
            option="loss",
        )
    else:
        return
    raise InputError(
        f"{name} takes every label above 0 for relevant, so also the soft ones, with fractions, of the data or of an audit; take a loss of grades, as RankNetLoss, MSELoss or ListNetLoss, and no AllTexts; or say from which label on a document is relevant (data.relevant_from), or audit with --policy drop"
    )


def _check_lists_have_order(loss: Loss, n_with_both: int, n_lists: int, quiet: bool) -> None:
    """Where the loss knows only relevant or not, refuse data of which no list has an order."""
    if n_with_both == n_lists or _orders_grades(loss):
        return
    name = type(loss).__name__
    if not n_with_both:
        raise InputError(
            f"{name} tells relevant documents from irrelevant ones, and none of the {n_lists} training lists has both; take a loss of grades, as RankNetLoss, or lists with irrelevant documents (unjudged: irrelevant, or a larger list_size)",
            option="loss",
        )
    if quiet:
        return
    log.warning(
        "%d of %d training lists have no relevant or no irrelevant document, so %s learns no order from them",
        n_lists - n_with_both,
        n_lists,
        name,
    )


def _orders_grades(loss: Loss) -> bool:
    """Whether the loss orders two documents of the grades 1 and 2: tried, since BCELoss does not,
    though a soft label makes a difference to it.
    """
    loss = copy.deepcopy(loss).cpu()  # a loss may learn from what it sees
    scores = torch.tensor([[0.0, 0.5]], requires_grad=True)
    gradients: list[torch.Tensor] = []
    for labels in ([[1.0, 2.0]], [[2.0, 1.0]]):
        value = loss(scores, torch.tensor(labels)).sum()
        gradients += torch.autograd.grad(value, scores)
    return not torch.equal(*gradients)


def warn_of_nothing_to_find(
    data: RankingDataModule | None, metrics: Iterable[RankingMetric], split: str
) -> None:
    """Say which measures have nothing to find in a split, or in a source of it."""
    eval_batches = None if data is None else data.eval_batches(split)
    if data is None or eval_batches is None:
        return
    largest_of_source: dict[int, float] = {}  # of those that have queries
    for lists in eval_batches.batches:
        for ranked_list in lists:
            grades = ranked_list.labels if ranked_list.ideal is None else ranked_list.ideal
            source = bisect_right(data.first_queries, ranked_list.query_row) - 1
            largest = float(grades.max(initial=largest_of_source.get(source, 0.0)))
            largest_of_source[source] = largest
    for metric in metrics:
        measure = metric.measure
        for source, largest in sorted(largest_of_source.items()):
            if not measure.by_rank or measure.is_relevant(torch.tensor(largest)):
                continue
            name = data.source_names[source]
            log.warning(
                "split %r%s: no query has %s (the largest grade is %g), so %s tells nothing%s",
                split,
                f" of {name}" if name else "",
                measure.to_find,
                largest,
                metric.name,
                f" of {name}, nor does its mean over sources" if name else "",
            )
