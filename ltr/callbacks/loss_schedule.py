"""Another loss, margin or option of the loss, from a given epoch or step on."""

import copy
import inspect
import logging
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn

from ltr.batch import RankingBatch, ScoredLists
from ltr.errors import InputError
from ltr.losses import Loss
from ltr.margins import Margin
from ltr.modules import RankerModule

log = logging.getLogger(__name__)


@dataclass
class LossChange:
    """What changes, and when: exactly one of epoch and step, and at least one of the others.

    Args:
        epoch: epochs done before it.
        step: optimiser steps done before it.
        loss: takes the place of the loss.
        margin: takes the place of the margin policy.
        options: new values for options of the loss, such as ``{margin: 0.2}``.
    """

    epoch: int | None = None
    step: int | None = None
    loss: Loss | None = None
    margin: Margin | None = None
    options: dict[str, bool | int | float | str] | None = None

    def due(self, epoch: int, step: int) -> bool:
        """Whether its moment has come."""
        return epoch >= self.epoch if self.epoch is not None else step >= self.step


class LossSchedule(Callback):
    """Changes the loss, its options or the margin policy of a :class:`ltr.modules.RankerModule` while it is trained.

    The module's own loss and margin are stage 0, and every change makes the next stage out of the one before. In every batch the
    last change that is due counts: nothing but (epoch, step) decides, so a resumed run is in the right stage. All stages are part
    of the module from the start: the optimiser has all their parameters, and every checkpoint holds each of them once, whatever
    stage it was made in. ``validate`` and ``test`` need the same schedule to read it.

    The stage is logged as ``train/loss_stage``. Where a stage leaves a learnable loss or margin unused, several ranks need
    ``--trainer.strategy ddp_find_unused_parameters_true``.

    Args:
        changes: in the order of their epochs and of their steps.

    Raises:
        InputError: for a change that says not one moment, or nothing, or comes out of order; at the start of a run, for an option
            that the loss has not or can't be computed with, or a margin that it can't use.

    Example:
        >>> from ltr.losses import MarginRankingLoss
        >>> changes = [LossChange(epoch=1, loss=MarginRankingLoss()), LossChange(step=500, options={"margin": 0.2})]
        >>> schedule = LossSchedule(changes)
        >>> [schedule.stage(epoch, step) for epoch, step in ((0, 99), (1, 100), (4, 500))]
        [0, 1, 2]
    """

    def __init__(self, changes: list[LossChange]) -> None:
        self.changes = changes
        last = {"epoch": 1, "step": 1}
        for number, change in enumerate(changes):
            moments = {name: at for name in last if (at := getattr(change, name)) is not None}
            if len(moments) != 1:
                raise _error(number, f"give exactly one of epoch and step, got {_listed(moments) or 'none'}")
            if change.loss is None and change.margin is None and not change.options:
                raise _error(number, "give at least one of loss, margin and options, got none")
            ((name, at),) = moments.items()
            if at < last[name]:
                order = "so it would never be seen" if at < 1 else "the changes stand in their order"
                raise _error(number, f"{name} must be at least {last[name]}, got {at}: {order}")
            last[name] = at

    def stage(self, epoch: int, step: int) -> int:
        """How many changes are behind: the number of the last one that is due, counted from 1."""
        return max((number for number, change in enumerate(self.changes, 1) if change.due(epoch, step)), default=0)

    def setup(self, trainer: Trainer, pl_module: RankerModule, stage: str) -> None:
        if isinstance(pl_module.loss, _StagedLoss):
            if pl_module.loss.changes is self.changes:
                return
            raise InputError("this module was trained under another LossSchedule; build it anew")
        losses, margins = [pl_module.loss], [pl_module.margin]
        for number, change in enumerate(self.changes):
            # Copies: another module under the same schedule starts anew.
            loss = losses[-1] if change.loss is None else copy.deepcopy(change.loss)
            losses.append(_with_options(loss, change.options, number) if change.options else loss)
            margins.append(margins[-1] if change.margin is None else copy.deepcopy(change.margin))
            try:
                pl_module.check_margin(losses[-1], margins[-1])
            except InputError as error:
                raise _error(number, str(error)) from None
        pl_module.loss = _StagedLoss(losses, self.changes)
        if margins[-1] is not None:
            pl_module.margin = _StagedMargin(margins)

    def on_train_batch_start(self, trainer: Trainer, pl_module: RankerModule, batch: RankingBatch, batch_idx: int) -> None:
        loss, margin = pl_module.loss, pl_module.margin
        stage = self.stage(trainer.current_epoch, trainer.global_step)
        if stage != loss.active:
            loss.active = stage
            policy = ""
            if margin is not None:
                margin.active = stage
                policy = f", margin policy {_described(margin.current)}"
            now = f"step {trainer.global_step}, epoch {trainer.current_epoch}"
            log.info("%s: loss is now %s%s", now, _described(loss.current), policy)
        pl_module.log("train/loss_stage", float(stage))


class _Staged(nn.Module):
    """One of several modules at a time.

    Args:
        stages: the module of each stage, or None; one that stays over several stages is held once.
    """

    def __init__(self, stages: list[nn.Module | None]) -> None:
        super().__init__()
        distinct = list(dict.fromkeys(one for one in stages if one is not None))
        self.stages = nn.ModuleList(distinct)
        self.places = [None if one is None else distinct.index(one) for one in stages]
        self.active = 0

    @property
    def current(self) -> nn.Module | None:
        place = self.places[self.active]
        return None if place is None else self.stages[place]


class _StagedLoss(_Staged, Loss):
    def __init__(self, stages: list[Loss], changes: list[LossChange]) -> None:
        super().__init__(stages)
        self.changes = changes

    @property
    def takes_margin(self) -> bool:
        return self.current.takes_margin

    def asked_margin(self, margin: Tensor | None) -> float | Tensor | None:
        return self.current.asked_margin(margin)

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor | None = None, margin: Tensor | None = None) -> Tensor:
        return self.current(scores, labels, mask, margin)


class _StagedMargin(_Staged, Margin):
    @property
    def wants_embeddings(self) -> bool:
        return self.current is not None and self.current.wants_embeddings

    @property
    def wants_distances(self) -> bool:
        return self.current is not None and self.current.wants_distances

    def forward(self, lists: ScoredLists) -> Tensor | None:
        return None if self.current is None else self.current(lists)


def _with_options(loss: Loss, options: dict[str, Any], number: int) -> Loss:
    """A copy of the loss with other options, tried on one list: a bad value shows now, not in the middle of the run."""
    changed, known = copy.deepcopy(loss), _options(loss)
    for name, value in options.items():
        if name not in known:
            raise _error(number, f"options.{name}: the options of {type(loss).__name__} are {_listed(known) or 'none'}")
        setattr(changed, name, value)
    parts = {name: part for name, part in changed.named_children() if name in inspect.signature(type(loss)).parameters}
    try:
        type(loss)(**_options(changed), **parts)  # its constructor checks them
        value = copy.deepcopy(changed)(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
        if value.ndim or not value.isfinite():
            raise ValueError(f"it must give one finite number, got {value.tolist()}")
    except (ValueError, TypeError, RuntimeError) as error:
        raise _error(number, f"{type(loss).__name__} can't be computed with {_listed(options)}: {error}") from None
    return changed


def _options(module: nn.Module) -> dict[str, Any]:
    """What its constructor was given and it holds."""
    held = vars(module)
    return {name: held[name] for name in inspect.signature(type(module)).parameters if name in held}


def _described(module: nn.Module | None) -> str:
    return "none" if module is None else f"{type(module).__name__}({_listed(_options(module))})"


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _error(number: int, message: str) -> InputError:
    return InputError(f"LossSchedule: changes[{number}]: {message} (option trainer.callbacks.init_args.changes)")
