"""Watches whether a ranker still learns: active pairs, scores, embeddings, gradient."""

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ltr.batch import RankingBatch, ScoredLists
from ltr.errors import InputError
from ltr.module import LastStep, RankerModule
from ltr.pairs import hinge, pair_sums
from ltr.pairs.list_tensors import relevant_and_not, two_labels
from ltr.trainer_state import data_of

log = logging.getLogger(__name__)

MOST_NAMED = 8  # queries that a warning names, at most
FEW_SCORES = 16  # fewer may be numbers of half precision by chance


class _Step(NamedTuple):
    """What is kept of a training batch until it is checked; its tensors stay on the device."""

    number: int  # of the optimiser step
    query_rows: Tensor
    loss: Tensor
    scores_are_finite: Tensor
    gradient_norm: Tensor | None  # None where gradients are only added up to those of later batches


class Health(Callback):
    r"""Logs the state of a :class:`ltr.module.RankerModule`, and warns once for each kind of
    trouble when it no longer learns.

    Logged every n optimiser steps, for the batch of that step, which has the lists of all
    processes:

    * ``health/active``: share of the pairs that still violate their margin, :math:`s_i - s_j <
      m_{ij}` with :math:`y_i > y_j`. The margin is what the loss asks for
      (:meth:`ltr.losses.Loss.asked_margin`). Where the loss asks for none, :math:`m_{ij} = 0`:
      pairs in the wrong order are active;
    * ``health/positive_score``, ``health/negative_score``: mean scores of documents with a label
      above 0, and of the others;
    * ``health/spread``: :math:`\sqrt{\mathrm{mean} \lVert e - \bar e \rVert^2} / \mathrm{mean}
      \lVert e \rVert` of the texts' embeddings, if the ranker gives any: about 1 if they point in
      all directions, 0 if all are equal;
    * ``health/gradient_norm``: of all parameters, unscaled and not yet clipped.

    Warnings, with the step and the numbers:

    * collapse: the spread is below ``collapse``, or scores are equal in every list whose labels
      differ. A triplet loss then equals its margin and its gradient is 0, so it can't recover;
    * a dead loss: it or its gradient is exactly 0 for ``patience`` optimiser steps in a row;
    * NaN or infinity in the loss or the gradient, with the queries of the batch. In ``16-mixed``
      precision only in the loss: there the gradient scaler tries, and skips, steps with an infinite
      gradient.

    Before the first step of a run that does not resume, a line each:

    * a part of the ranker that was just made up, such as its head
      (``ltr.models.Ranker.new_parts``); this one is no warning;
    * collapse, as above: what the ranker was built from is wrong;
    * scores that tie since they are numbers of half precision: document ids then decide the order.

    On a CPU every step is checked when it is done. On a GPU that would wait for the device, so
    losses and norms are kept there and read every n steps: a warning then comes up to n steps
    later, but names the right step. Each rank checks its own numbers.

    Args:
        every_n_steps: optimiser steps between two checks; the logger writes a check if
            ``trainer.log_every_n_steps`` divides it.
        patience: optimiser steps in a row with a loss or gradient of 0 before the warning.
        collapse: embeddings with a smaller spread count as equal. At 0.01 the mean cosine of two
            texts is 0.9999. Pretrained encoders start at 0.03 and more; rounding equal embeddings
            to bfloat16 gives about 0.002.
        stop: whether to end the training after a warning, on all ranks together.

    Raises:
        InputError: if every_n_steps or patience is below 1, or collapse below 0; at the start of a
            run, for another module.

    Example:
        >>> from ltr.run.trainer import RankerTrainer
        >>> health = Health(every_n_steps=50, stop=True)
        >>> trainer = RankerTrainer(callbacks=[health], accelerator="cpu")
    """

    def __init__(
        self,
        every_n_steps: int = 50,
        patience: int = 100,
        collapse: float = 0.01,
        stop: bool = False,
    ) -> None:
        if every_n_steps < 1 or patience < 1 or collapse < 0:
            raise InputError(
                f"Health: every_n_steps and patience must be at least 1 and collapse at least 0, got {every_n_steps}, {patience} and {collapse}",
                option="trainer.callbacks",
            )
        self.every_n_steps = every_n_steps
        self.patience = patience
        self.collapse = collapse
        self.stop = stop
        self._reset()

    def _reset(self) -> None:
        """The state of a run that begins."""
        self._unchecked: list[_Step] = []
        self._warned: set[str] = set()  # kinds of trouble
        self._start_is_checked = False
        # Optimiser steps with a loss or gradient of 0 in a row, up to the last one that was checked.
        self._dead_steps = 0
        # Whether any batch of the optimiser step in progress had a loss other than 0.
        self._has_loss = False
        # The current batch: the optimiser step it belongs to; and the norm of the gradient, None
        # while gradients are still added up.
        self._step = 0
        self._gradient_norm: Tensor | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not isinstance(pl_module, RankerModule):
            raise InputError(
                f"Health watches a RankerModule, got {type(pl_module).__name__}; remove the callback"
            )
        self._reset()

    # Collecting

    def on_train_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        self._step = trainer.global_step
        self._gradient_norm = None

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        if gradients:
            self._gradient_norm = torch.nn.utils.get_total_norm(gradients)
        else:
            self._gradient_norm = torch.zeros((), device=pl_module.device)
        if trainer.global_step == 0 and not self._start_is_checked:
            # Here, where there are scores, and the weights have not changed yet.
            self._start_is_checked = True
            assert isinstance(pl_module, RankerModule) and pl_module.last_step is not None
            self._check_start(pl_module, pl_module.last_step)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: RankingBatch,
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, RankerModule) and pl_module.last_step is not None
        last_step = pl_module.last_step
        scores = last_step.lists.scores.masked_fill(~last_step.lists.mask, 0.0)
        step = _Step(
            self._step,
            batch.query_rows,
            last_step.loss,
            scores.isfinite().all(),
            self._gradient_norm,
        )
        self._unchecked.append(step)
        is_done = self._gradient_norm is not None  # else gradients are only added up
        is_due = is_done and trainer.global_step % self.every_n_steps == 0
        if is_due or reading_is_free(last_step.loss):
            self._check_steps(trainer)
        if is_due:
            self._check_batch(pl_module, last_step)
        if self.stop and (is_due or trainer.world_size == 1):
            # A single rank may stop at once. Several agree at the due steps only, which all reach
            # together, so that the reduction does not block.
            has_warned = trainer.strategy.reduce_boolean_decision(bool(self._warned), all=False)
            trainer.should_stop |= has_warned

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check_steps(trainer)  # those since the last check

    # Checking

    def _check_steps(self, trainer: Trainer) -> None:
        """Check the losses and gradients since the last time."""
        steps = self._unchecked
        self._unchecked = []
        # All in one list: a device is waited for once.
        losses: list[Tensor | None] = [step.loss for step in steps]
        norms = [step.gradient_norm for step in steps]
        values = _values(losses + norms)
        loss_values = values[: len(steps)]
        norm_values = values[len(steps) :]
        for step, loss, norm in zip(steps, loss_values, norm_values, strict=True):
            assert loss is not None
            is_bad_gradient = (
                norm is not None and not math.isfinite(norm) and trainer.precision != "16-mixed"
            )
            if not math.isfinite(loss) or is_bad_gradient:
                queries = _queries_by_name(trainer, step.query_rows)
                change = "with a lower learning rate, clipped gradients (trainer.gradient_clip_val) or another precision"
                if math.isnan(loss) and step.scores_are_finite:
                    change = "after mending the loss, its margins or its labels: all scores are numbers, so a lower learning rate is no help"
                self._warn(
                    "nan",
                    f"step {step.number}: the loss is {loss}, the gradient's norm {norm}; the batch has {queries}. "
                    f"The weights are lost: resume from an earlier checkpoint, {change}",
                )
            self._has_loss |= loss != 0
            if norm is None:  # the optimiser step is not done
                continue
            if norm == 0 or not self._has_loss:
                self._dead_steps += 1
            else:
                self._dead_steps = 0
            self._has_loss = False
            if self._dead_steps == self.patience:
                self._warn(
                    "dead",
                    f"step {step.number}: for {self.patience} steps the loss or its gradient was exactly 0 (now {loss} and {norm}), "
                    "so nothing is learnt; use harder negatives or a larger margin",
                )

    def _check_batch(self, pl_module: RankerModule, last_step: LastStep) -> None:
        """Log numbers of this step's batch, and check it for collapse."""
        scores = last_step.lists.scores.float()
        labels = last_step.lists.labels
        mask = last_step.lists.mask
        is_relevant, is_irrelevant, _ = relevant_and_not(labels, mask)
        tensors = {
            "active": active_share(pl_module, last_step),
            "positive_score": scores[is_relevant].mean(),
            "negative_score": scores[is_irrelevant].mean(),
            "spread": _spread(last_step.lists),
            "gradient_norm": self._gradient_norm,
        }
        values = _values([*tensors.values()])
        numbers = {}
        for name, value in zip(tensors, values, strict=True):
            # NaN where the batch has no pair, or no relevant document.
            if value is not None and not math.isnan(value):
                numbers[name] = value
                pl_module.log(f"health/{name}", value, on_step=True, on_epoch=False)
        sign = self._sign_of_collapse(last_step.lists, numbers.get("spread"))
        if sign is not None:
            details = f"loss {last_step.loss.item():.4g}"
            margin = pl_module.loss.asked_margin(last_step.margin)
            if margin is not None:
                details += f", mean margin {torch.as_tensor(margin).float().mean().item():.4g}"
            if "spread" in numbers:
                details += f", spread of the embeddings {numbers['spread']:.4g}"
            self._warn(
                "collapse",
                f"step {self._step}: the model has collapsed: {sign} ({details}). "
                "It can't recover: start again with a lower learning rate or a longer warm-up, or with all or semi-hard triplets instead of the hardest",
            )

    def _check_start(self, pl_module: RankerModule, last_step: LastStep) -> None:
        """Say what is wrong with a ranker before its first step."""
        if pl_module.ranker.new_parts:
            parts = ", ".join(pl_module.ranker.new_parts)
            log.info("before the first step: new in the ranker, made of random numbers: %s", parts)
        (spread,) = _values([_spread(last_step.lists)])
        sign = self._sign_of_collapse(last_step.lists, spread)
        if sign is not None:
            self._warn(
                "collapse",
                f"before the first step: {sign}. The ranker that training starts from can't tell texts apart: check its backbone, pooling, max_length and prompts",
            )
            return
        half = _half_precision_of(last_step.lists)
        if half is None:
            return
        n_ties = _n_ties(last_step.lists)
        if n_ties:
            # It learns, so this is no reason to stop.
            log.warning(
                "before the first step: %d pairs of documents of the first batch tie, as all scores are numbers of %s. Document ids then decide their order: compute scores in float32",
                n_ties,
                half,
            )

    def _sign_of_collapse(self, lists: ScoredLists, spread: float | None) -> str | None:
        """By what a collapse is known; None where there is none. A spread may be None or NaN."""
        if _scores_are_equal(lists.scores.float(), lists.labels, lists.mask):
            return "all scores of each list are equal"
        if spread is not None and spread < self.collapse:
            return f"the embeddings are closer than {self.collapse} of their length"
        return None

    def _warn(self, kind: str, message: str) -> None:
        """Warn once for each kind of trouble."""
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("%s", message)


def active_share(module: RankerModule, last_step: LastStep) -> Tensor:
    """The share of the pairs of a step that violate the margin that the loss asks for, or are in
    the wrong order; see Health.
    """
    scores = last_step.lists.scores.float()
    labels = last_step.lists.labels
    mask = last_step.lists.mask
    margin = module.loss.asked_margin(last_step.margin)
    if margin is None:
        margin = 0.0
    # pair_sums gives the summed costs [B] of the pairs of each list, and their numbers [B].
    _, n_active_b = pair_sums(scores, labels, mask, hinge, margin, active=True)
    _, n_pairs_b = pair_sums(scores, labels, mask, hinge, margin)
    return n_active_b.sum() / n_pairs_b.sum()


def reading_is_free(tensor: Tensor) -> bool:
    """Whether reading a tensor does not wait for a device."""
    return tensor.device.type == "cpu"


def _spread(lists: ScoredLists) -> Tensor | None:
    """See :class:`Health`; None for fewer than two texts."""
    if lists.embeddings is None:
        return None
    is_document = lists.mask
    if len(lists.embeddings) != len(lists.mask):  # one row of embeddings, which all lists share
        is_document = lists.mask.any(dim=0, keepdim=True)
    embeddings = lists.embeddings[is_document].float()
    if len(embeddings) < 2:
        return None
    from_centre = embeddings - embeddings.mean(dim=0)
    root_mean_square = from_centre.square().sum(dim=1).mean().sqrt()
    return root_mean_square / embeddings.norm(dim=1).mean().clamp(min=1e-12)


def _scores_are_equal(scores: Tensor, labels: Tensor, mask: Tensor) -> bool:
    """Whether all scores of each list with two labels are equal; False without such a list."""
    high_b = scores.masked_fill(~mask, -torch.inf).amax(dim=1)
    low_b = scores.masked_fill(~mask, torch.inf).amin(dim=1)
    is_equal_b = high_b - low_b <= 1e-6 * torch.maximum(high_b.abs(), low_b.abs())
    has_two_labels_b = two_labels(labels, mask)
    # There is such a list, and in each of them all scores are equal. One tensor says both, so a
    # device is waited for once.
    all_are_equal = has_two_labels_b.any() & (is_equal_b | ~has_two_labels_b).all()
    return bool(all_are_equal.item())


def _half_precision_of(lists: ScoredLists) -> str | None:
    """The half precision whose numbers all scores are: they have been rounded to it. None for fewer
    than FEW_SCORES scores, which may be such numbers by chance.
    """
    scores = lists.scores[lists.mask].float()
    if len(scores) < FEW_SCORES:
        return None
    for dtype in (torch.bfloat16, torch.float16):
        if scores.to(dtype).float().equal(scores):
            return str(dtype).removeprefix("torch.")
    return None


def _n_ties(lists: ScoredLists) -> int:
    """The number of pairs of documents of one list that have the same score."""
    n_ties = 0
    for scores, mask in zip(lists.scores, lists.mask, strict=True):
        _, counts = scores[mask].unique(return_counts=True)
        n_ties += int((counts * (counts - 1) // 2).sum())
    return n_ties


def _values(tensors: Sequence[Tensor | None]) -> list[float | None]:
    """The values of all tensors, read from the device at once; None where there is no tensor."""
    values: list[float | None] = [None] * len(tensors)
    places = [place for place, tensor in enumerate(tensors) if tensor is not None]
    if places:
        present = [tensor.float() for tensor in tensors if tensor is not None]
        for place, value in zip(places, torch.stack(present).tolist(), strict=True):
            values[place] = value
    return values


def _queries_by_name(trainer: Trainer, query_rows: Tensor) -> str:
    """The queries by their ids, or by row where the trainer was given plain loaders."""
    rows = query_rows.tolist()
    data = data_of(trainer)
    if data is None:
        kind = "query rows"
        names = [str(row) for row in rows]
    else:
        kind = "queries"
        query_ids, _ = data.names("train")
        names = [str(query_ids[row]) for row in rows]
    n_more = len(names) - MOST_NAMED
    more = f" and {n_more} more" if n_more > 0 else ""
    return f"{kind} {', '.join(names[:MOST_NAMED])}{more}"
