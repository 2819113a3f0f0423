"""Another loss, margin or option of the loss, from a given epoch or step on."""

import copy
import inspect
import logging
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from ltr.batch import RankingBatch, ScoredLists
from ltr.errors import InputError
from ltr.losses import Loss
from ltr.margins import Margin
from ltr.module import RankerModule

log = logging.getLogger(__name__)


@dataclass
class LossChange:
    """What changes, and when: exactly one of epoch and step, and at least one of the others.

    Args:
        epoch: epochs before the change.
        step: optimiser steps before the change.
        loss: replaces the loss.
        margin: replaces the margin policy.
        options: new values for options of the loss, such as ``{margin: 0.2}``.
    """

    epoch: int | None = None
    step: int | None = None
    loss: Loss | None = None
    margin: Margin | None = None
    options: dict[str, bool | int | float | str] | None = None

    def due(self, epoch: int, step: int) -> bool:
        """Whether the change applies at this moment."""
        return (self.epoch is not None and epoch >= self.epoch) or (
            self.step is not None and step >= self.step
        )


class LossSchedule(Callback):
    """Changes the loss, its options or the margin policy of a :class:`ltr.module.RankerModule`
    during training.

    Stage 0 is the module's own loss and margin; each change makes the next stage from the one
    before. The last change that is due is active. Only (epoch, step) decide, so a resumed run is in
    the right stage. All stages belong to the module from the start: the optimiser has all their
    parameters, and every checkpoint holds each of them once. ``validate`` and ``test`` need the
    same schedule to read such a checkpoint.

    The stage is logged as ``train/loss_stage``. Where a stage does not use a learnable loss or
    margin, several processes need ``--trainer.strategy ddp_find_unused_parameters_true``.

    Args:
        changes: in the order of their epochs and steps.

    Raises:
        InputError: if a change does not give exactly one of epoch and step, changes nothing, or is
            out of order. At the start of a run: if the loss lacks an option or can't be computed
            with it, or can't use the margin.

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
                raise _error(
                    number, f"give exactly one of epoch and step, got {_listed(moments) or 'none'}"
                )
            if change.loss is None and change.margin is None and not change.options:
                raise _error(number, "give at least one of loss, margin and options, got none")
            ((name, at),) = moments.items()
            if at < last[name]:
                order = "stage 0 would never be used" if at < 1 else "changes must be in order"
                raise _error(number, f"{name} must be at least {last[name]}, got {at}: {order}")
            last[name] = at

    def stage(self, epoch: int, step: int) -> int:
        """The number of the last change that is due, counted from 1; 0 before the first."""
        return max(
            (number for number, change in enumerate(self.changes, 1) if change.due(epoch, step)),
            default=0,
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, RankerModule)
        if isinstance(pl_module.loss, _StagedLoss):
            if pl_module.loss.changes is self.changes:
                return
            raise InputError("this module was trained under another LossSchedule; build a new one")
        losses = [pl_module.loss]
        margins = [pl_module.margin]
        for number, change in enumerate(self.changes):
            # Copies, so that another module under the same schedule starts from the original.
            loss = losses[-1] if change.loss is None else copy.deepcopy(change.loss)
            losses.append(_with_options(loss, change.options, number) if change.options else loss)
            margins.append(margins[-1] if change.margin is None else copy.deepcopy(change.margin))
            try:
                pl_module.check_margin(losses[-1], margins[-1])
            except InputError as error:
                raise _error(number, error.message) from None
        pl_module.loss = _StagedLoss(losses, self.changes)
        if margins[-1] is not None:
            pl_module.margin = _StagedMargin(margins)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RankingBatch, batch_idx: int
    ) -> None:
        loss = pl_module.loss
        margin = pl_module.margin
        policy = ""
        assert isinstance(loss, _StagedLoss)
        stage = self.stage(trainer.current_epoch, trainer.global_step)
        if stage != loss.active:
            loss.enter(stage)
            if isinstance(margin, _StagedMargin):
                margin.enter(stage)
                policy = f", margin policy {_described(margin.current)}"
            now = f"step {trainer.global_step}, epoch {trainer.current_epoch}"
            log.info("%s: loss is now %s%s", now, _described(loss.current), policy)
        pl_module.log("train/loss_stage", float(stage))


class _StagedLoss(Loss):
    """The loss of the active stage."""

    def __init__(self, by_stage: list[Loss], changes: list[LossChange]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(dict.fromkeys(by_stage))  # each loss once
        self.by_stage = tuple(by_stage)
        self.changes = changes
        self.enter(0)

    def enter(self, stage: int) -> None:
        self.active = stage
        self.takes_margin = self.by_stage[stage].takes_margin

    @property
    def current(self) -> Loss:
        return self.by_stage[self.active]

    def asked_margin(self, margin: Tensor | None) -> float | Tensor | None:
        return self.current.asked_margin(margin)

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        margin: Tensor | None = None,
    ) -> Tensor:
        return self.current(scores, labels, mask, margin)


class _StagedMargin(Margin):
    """The margin policy of the active stage; None where the stage has none."""

    def __init__(self, by_stage: list[Margin | None]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            dict.fromkeys(margin for margin in by_stage if margin is not None)
        )
        self.by_stage = tuple(by_stage)
        self.enter(0)

    def enter(self, stage: int) -> None:
        self.active = stage
        self.want_as(self.current)

    @property
    def current(self) -> Margin | None:
        return self.by_stage[self.active]

    def forward(self, lists: ScoredLists) -> Tensor | None:  # type: ignore[override]  # as a module without a policy
        return None if self.current is None else self.current(lists)


def _with_options(loss: Loss, options: dict[str, Any], number: int) -> Loss:
    """A copy of the loss with other options, tried on one list: a bad value fails now, not in the
    middle of the run.
    """
    changed = copy.deepcopy(loss)
    known = _options(loss)
    for name, value in options.items():
        if name not in known:
            has = f"the options of {type(loss).__name__} are {_listed(known) or 'none'}"
            raise _error(number, f"options.{name} is unknown: {has}")
        setattr(changed, name, value)
    parts: dict[str, Any] = dict(changed.named_children())
    asked = _options(changed) | {
        name: parts[name] for name in inspect.signature(type(loss)).parameters if name in parts
    }
    try:
        type(loss)(**asked)  # its constructor checks them
        value = copy.deepcopy(changed)(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
        if value.ndim or not value.isfinite():
            raise ValueError(f"it must give one finite number, got {value.tolist()}")
    except (ValueError, TypeError, RuntimeError) as error:
        raise _error(
            number, f"{type(loss).__name__} can't be computed with {_listed(options)}: {error}"
        ) from None
    return changed


def _options(module: nn.Module) -> dict[str, Any]:
    """The constructor arguments that the module keeps as attributes."""
    held = vars(module)
    return {name: held[name] for name in inspect.signature(type(module)).parameters if name in held}


def _described(module: nn.Module | None) -> str:
    return "none" if module is None else f"{type(module).__name__}({_listed(_options(module))})"


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _error(number: int, message: str) -> InputError:
    return InputError(f"LossSchedule: changes[{number}]: {message}", option="trainer.callbacks")
