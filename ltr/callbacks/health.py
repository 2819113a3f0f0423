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
from ltr.module import LastStep, RankerModule, data_of
from ltr.pairs import hinge, pair_sums
from ltr.pairs.lists import relevant_and_not, two_labels

log = logging.getLogger(__name__)

NAMED = 8  # queries that a warning names, at most


class _Seen(NamedTuple):
    """A step that has not been checked yet; its tensors stay on the device."""

    step: int
    query_rows: Tensor
    loss: Tensor
    gradient_norm: Tensor | None  # None where gradients are only added up


class Health(Callback):
    r"""Logs the state of a :class:`ltr.module.RankerModule`, and warns once for each kind of
    trouble when it no longer learns.

    Logged every n optimiser steps, for the batch of that step (rank 0's batch):

    * ``health/active``: share of the pairs that still violate their margin, :math:`s_i - s_j <
      m_{ij}` with :math:`y_i > y_j`. The margin is what the loss asks for
      (:meth:`ltr.losses.Loss.asked_margin`). For a loss that asks for none it is 0, and the pairs
      in the wrong order are active;
    * ``health/positive_score``, ``health/negative_score``: mean scores of documents with a label
      above 0, and of the others;
    * ``health/spread``: :math:`\sqrt{\mathrm{mean} \lVert e - \bar e \rVert^2} / \mathrm{mean}
      \lVert e \rVert` of the texts' embeddings, if the ranker gives any: about 1 if they point in
      all directions, 0 if all are equal;
    * ``health/gradient_norm``: of all parameters, unscaled and not yet clipped.

    Warnings, with the step and the numbers:

    * collapse: the spread is below ``collapse``, or scores are equal in every list whose labels
      differ. A triplet loss then equals its margin and its gradient is 0, so it can't recover;
    * a dead loss: it or its gradient is exactly 0 for ``patience`` steps in a row;
    * NaN or infinity in the loss or the gradient, with the queries of the batch. In ``16-mixed``
      precision only in the loss: there the gradient scaler tries, and skips, steps with an infinite
      gradient.

    On a CPU every step is checked when it is done. On a GPU that would wait for the device, so
    losses and norms are kept there and read every n steps: a warning then comes up to n steps
    later, but names the right step. Each rank checks its own numbers.

    Args:
        every_n_steps: optimiser steps between two checks; the logger writes a check if
            ``trainer.log_every_n_steps`` divides it.
        patience: steps in a row with a loss or gradient of 0 before the warning.
        collapse: embeddings with a smaller spread count as equal. At 0.01 the mean cosine of two
            texts is 0.9999. Pretrained encoders start at 0.03 and more; rounding equal embeddings
            to bfloat16 gives about 0.002.
        stop: whether to end the training after a warning, on all ranks together.

    Raises:
        InputError: if every_n_steps or patience is below 1, or collapse below 0; at the start of a
            run, for another module.
    """

    def __init__(
        self,
        every_n_steps: int = 50,
        patience: int = 100,
        collapse: float = 0.01,
        stop: bool = False,
    ) -> None:
        if every_n_steps < 1 or patience < 1 or collapse < 0:
            rule = "every_n_steps and patience must be at least 1 and collapse at least 0"
            came = f"{every_n_steps}, {patience} and {collapse}"
            raise InputError(f"Health: {rule}, got {came}", option="trainer.callbacks")
        self.every_n_steps = every_n_steps
        self.patience = patience
        self.collapse = collapse
        self.stop = stop
        self._reset()

    def _reset(self) -> None:
        self._window: list[_Seen] = []
        self._warned: set[str] = set()
        self._dead_steps = 0
        self._step = 0
        self._gradient_norm: Tensor | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not isinstance(pl_module, RankerModule):
            raise InputError(
                f"Health watches a RankerModule, got {type(pl_module).__name__}; remove the callback"
            )
        self._reset()

    # Seeing

    def on_train_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        self._step = trainer.global_step
        self._gradient_norm = None

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        self._gradient_norm = (
            torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())
        )

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: RankingBatch,
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, RankerModule) and pl_module.last_step is not None
        seen = pl_module.last_step
        self._window.append(_Seen(self._step, batch.query_rows, seen.loss, self._gradient_norm))
        due = self._gradient_norm is not None and trainer.global_step % self.every_n_steps == 0
        if due or reads_freely(seen.loss):
            self._look_back(trainer)
        if due:
            self._look(pl_module, seen)
        if self.stop and (due or trainer.world_size == 1):
            # All ranks reach this line at the same steps, so the reduction does not block.
            trainer.should_stop |= trainer.strategy.reduce_boolean_decision(
                bool(self._warned), all=False
            )

    # Looking

    def _look_back(self, trainer: Trainer) -> None:
        """Check the losses and gradients since the last time."""
        window = self._window
        self._window = []
        values = _values([x for one in window for x in (one.loss, one.gradient_norm)])
        for one, loss, norm in zip(window, values[::2], values[1::2], strict=True):
            assert loss is not None
            bad_gradient = (
                norm is not None and not math.isfinite(norm) and trainer.precision != "16-mixed"
            )
            if not math.isfinite(loss) or bad_gradient:
                came = f"the loss is {loss}, the gradient's norm {norm}; the batch has {_named(trainer, one.query_rows)}"
                others = "a lower learning rate, clipped gradients (trainer.gradient_clip_val) or another precision"
                hint = f"The weights are lost: resume from an earlier checkpoint, with {others}"
                self._warn("nan", f"step {one.step}: {came}. {hint}")
            self._dead_steps = self._dead_steps + 1 if loss == 0 or norm == 0 else 0
            if self._dead_steps == self.patience:
                came = f"for {self.patience} steps the loss or its gradient was exactly 0 (now {loss} and {norm})"
                hint = "so nothing is learnt; use harder negatives or a larger margin"
                self._warn("dead", f"step {one.step}: {came}, {hint}")

    def _look(self, pl_module: RankerModule, seen: LastStep) -> None:
        """Log numbers of this step's batch, and check it for collapse."""
        scores = seen.lists.scores.float()
        labels = seen.lists.labels
        mask = seen.lists.mask
        margin = pl_module.loss.asked_margin(seen.margin)
        relevant, irrelevant, _ = relevant_and_not(labels, mask)
        names = ("active", "positive_score", "negative_score", "spread", "gradient_norm")
        numbers = (
            active_share(pl_module, seen),
            scores[relevant].mean(),
            scores[irrelevant].mean(),
            _spread(seen.lists),
            self._gradient_norm,
        )
        found = {
            name: x
            for name, x in zip(names, _values(numbers), strict=True)
            if x is not None and not math.isnan(x)
        }
        for name, value in found.items():  # a batch may have no pair, or no relevant document
            pl_module.log(f"health/{name}", value, on_step=True, on_epoch=False)
        equal = _scores_are_equal(scores, labels, mask)
        if found.get("spread", math.inf) < self.collapse or equal:
            told = f"loss {seen.loss.item():.4g}"
            if margin is not None:
                told += f", mean margin {torch.as_tensor(margin).float().mean().item():.4g}"
            if "spread" in found:
                told += f", spread of the embeddings {found['spread']:.4g}"
            close = f"the embeddings are closer than {self.collapse} of their length"
            what = "all scores of each list are equal" if equal else close
            again = "a lower learning rate or a longer warm-up, or with all or semi-hard triplets instead of the hardest"
            hint = f"It can't recover: start again with {again}"
            self._warn(
                "collapse", f"step {self._step}: the model has collapsed: {what} ({told}). {hint}"
            )

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("%s", message)


def active_share(module: RankerModule, seen: LastStep) -> Tensor:
    """The share of the pairs of a step that violate the margin that the loss asks for, or are in
    the wrong order; see Health.
    """
    margin = module.loss.asked_margin(seen.margin)
    lists = (
        seen.lists.scores.float(),
        seen.lists.labels,
        seen.lists.mask,
        hinge,
        0.0 if margin is None else margin,
    )
    active_b, n_pairs_b = (pair_sums(*lists, active=active)[1] for active in (True, False))
    return active_b.sum() / n_pairs_b.sum()


def reads_freely(loss: Tensor) -> bool:
    """Whether reading a tensor does not wait for a device."""
    return loss.device.type == "cpu"


def _spread(lists: ScoredLists) -> Tensor | None:
    """See :class:`Health`; None for fewer than two texts."""
    if lists.embeddings is None:
        return None
    rows_are_alike = len(lists.embeddings) != len(lists.mask)
    real = lists.mask.any(dim=0, keepdim=True) if rows_are_alike else lists.mask
    embeddings = lists.embeddings[real].float()
    if len(embeddings) < 2:
        return None
    from_centre = (embeddings - embeddings.mean(dim=0)).square().sum(dim=1).mean().sqrt()
    return from_centre / embeddings.norm(dim=1).mean().clamp(min=1e-12)


def _scores_are_equal(scores: Tensor, labels: Tensor, mask: Tensor) -> bool:
    """Whether all scores of each list with two labels are equal, up to rounding; False if there is
    no such list.
    """
    high_b = scores.masked_fill(~mask, -torch.inf).amax(dim=1)
    low_b = scores.masked_fill(~mask, torch.inf).amin(dim=1)
    equal_b = high_b - low_b <= 1e-6 * torch.maximum(high_b.abs(), low_b.abs())
    to_order_b = two_labels(labels, mask)
    return bool((to_order_b.any() & (equal_b | ~to_order_b).all()).item())


def _values(tensors: Sequence[Tensor | None]) -> list[float | None]:
    """The values of all tensors, read from the device at once."""
    there = [x.float() for x in tensors if x is not None]
    values = iter(torch.stack(there).tolist() if there else ())
    return [None if x is None else next(values) for x in tensors]


def _named(trainer: Trainer, query_rows: Tensor) -> str:
    """The queries by their ids, or by row where the trainer was given plain loaders."""
    rows = query_rows.tolist()
    data = data_of(trainer)
    told = rows if data is None else [data.names("train")[0][row] for row in rows]
    more = "" if len(told) <= NAMED else f" and {len(told) - NAMED} more"
    return (
        f"{'query rows' if data is None else 'queries'} {', '.join(map(str, told[:NAMED]))}{more}"
    )
