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
from ltr.compatibility import check_anchor, check_labels, check_transform
from ltr.datamodules import RankingDataModule
from ltr.errors import InputError
from ltr.losses import Loss
from ltr.margins import Margin
from ltr.module import RankerModule
from ltr.trainer_state import data_of

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

    Example:
        >>> LossChange(step=500, options={"margin": 0.2}).due(epoch=0, step=500)
        True
    """

    epoch: int | None = None
    step: int | None = None
    loss: Loss | None = None
    margin: Margin | None = None
    options: dict[str, bool | int | float | str] | None = None

    def due(self, epoch: int, step: int) -> bool:
        """Whether the change applies at this moment."""
        is_epoch_reached = self.epoch is not None and epoch >= self.epoch
        is_step_reached = self.step is not None and step >= self.step
        return is_epoch_reached or is_step_reached


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
        InputError: if a change does not give exactly one of epoch and step, changes nothing, is out
            of order, or comes at the moment of another. At the start of a run: if the loss lacks an
            option or can't be computed with it, can't use the margin, or can't learn from the
            labels of the data.

    Example:
        >>> from ltr.losses import MarginRankingLoss
        >>> changes = [LossChange(epoch=1, loss=MarginRankingLoss()), LossChange(step=500, options={"margin": 0.2})]
        >>> schedule = LossSchedule(changes)
        >>> [schedule.stage(epoch, step) for epoch, step in ((0, 99), (1, 100), (4, 500))]
        [0, 1, 2]
    """

    def __init__(self, changes: list[LossChange]) -> None:
        self.changes = changes
        lowest = {"epoch": 1, "step": 1}  # the smallest moment that the next change may have
        for number, change in enumerate(changes):
            moments: dict[str, int] = {}
            if change.epoch is not None:
                moments["epoch"] = change.epoch
            if change.step is not None:
                moments["step"] = change.step
            if len(moments) != 1:
                raise _error(
                    number, f"give exactly one of epoch and step, got {_listed(moments) or 'none'}"
                )
            ((name, moment),) = moments.items()
            if change.loss is None and change.margin is None and not change.options:
                raise _error(number, "give at least one of loss, margin and options, got none")
            if moment < lowest[name]:
                why = "changes must be in order, each at a moment of its own"
                if moment < 1:
                    why = "stage 0 would never be used"
                raise _error(number, f"{name} must be at least {lowest[name]}, got {moment}: {why}")
            lowest[name] = moment + 1

    def stage(self, epoch: int, step: int) -> int:
        """The number of the last change that is due, counted from 1; 0 before the first."""
        stage = 0
        for number, change in enumerate(self.changes, start=1):
            if change.due(epoch, step):
                stage = number
        return stage

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # None unless a fit has a data module: the labels of its data must suit every stage.
        self._put_stages_into(pl_module, data_of(trainer) if stage == "fit" else None)

    def check_data(self, pl_module: LightningModule, data: RankingDataModule) -> None:
        """See :meth:`ltr.datamodules.RankingDataModule.check_data`."""
        if data.is_fitting:
            self._put_stages_into(pl_module, data)

    def _put_stages_into(self, pl_module: LightningModule, data: RankingDataModule | None) -> None:
        """Give a module, once, the losses and margins of all stages, which must suit the data."""
        assert isinstance(pl_module, RankerModule)
        if isinstance(pl_module.loss, _StagedLoss):
            if pl_module.loss.changes is self.changes:
                return
            raise InputError("this module was trained under another LossSchedule; build a new one")
        loss = pl_module.loss
        margin = pl_module.margin
        if data is not None:
            # Here, since errors name the loss, and a staged one would be named from then on. Quiet:
            # RankerModule.setup warns.
            check_labels(loss, pl_module.in_batch, data, quiet=True)
            check_transform(pl_module.transform, loss, margin, data)
            check_anchor(pl_module.ranker, loss, pl_module.transform)
        losses = [loss]
        margins = [margin]
        for number, change in enumerate(self.changes):
            # Copies, so that another module under the same schedule starts from the original.
            if change.loss is not None:
                loss = copy.deepcopy(change.loss)
            if change.options:
                loss = _with_options(loss, change.options, number)
            if change.margin is not None:
                margin = copy.deepcopy(change.margin)
            try:
                pl_module.attach_margin(loss, margin)
                if data is not None:
                    is_same = type(loss) is type(losses[-1])
                    check_labels(loss, pl_module.in_batch, data, quiet=is_same)
                    check_transform(pl_module.transform, loss, margin, data)
                    check_anchor(pl_module.ranker, loss, pl_module.transform)
            except InputError as error:
                raise _error(number, error.message) from None
            losses.append(loss)
            margins.append(margin)
        pl_module.loss = _StagedLoss(losses, self.changes)
        # The last stage has a margin if any has: a change can replace it, never remove it.
        if margin is not None:
            pl_module.margin = _StagedMargin(margins)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RankingBatch, batch_idx: int
    ) -> None:
        loss = pl_module.loss
        margin = pl_module.margin
        assert isinstance(loss, _StagedLoss)
        epoch = trainer.current_epoch
        step = trainer.global_step
        stage = self.stage(epoch, step)
        if stage != loss.active:
            loss.enter(stage)
            line = f"step {step}, epoch {epoch}: loss is now {_described(loss.current)}"
            if isinstance(margin, _StagedMargin):
                margin.enter(stage)
                line += f", margin policy {_described(margin.current)}"
            log.info("%s", line)
        pl_module.log("train/loss_stage", float(stage))


class _StagedLoss(Loss):
    """The loss of the active stage."""

    def __init__(self, by_stage: list[Loss], changes: list[LossChange]) -> None:
        super().__init__()
        # Registered for their parameters; `stages` is their name in checkpoints. Each loss once,
        # however many stages it has.
        self.stages = nn.ModuleList(dict.fromkeys(by_stage))
        self.by_stage = tuple(by_stage)
        self.changes = changes
        # The data stays the same in all stages, so its labels must suit the loss of each.
        self.takes_teacher_scores = all(loss.takes_teacher_scores for loss in by_stage)
        self.distinguishes_grades = all(loss.distinguishes_grades for loss in by_stage)
        self.largest_label = min(loss.largest_label for loss in by_stage)
        self.learns_from_one_document = any(loss.learns_from_one_document for loss in by_stage)
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
        # Each policy once, as in _StagedLoss.
        policies = [margin for margin in by_stage if margin is not None]
        self.stages = nn.ModuleList(dict.fromkeys(policies))
        self.by_stage = tuple(by_stage)
        self.enter(0)

    def enter(self, stage: int) -> None:
        self.active = stage
        # The module reads from wants_* of its margin what a batch must bring: here, what the policy
        # of the stage wants.
        self.want_as(self.current)

    @property
    def current(self) -> Margin | None:
        return self.by_stage[self.active]

    def forward(self, lists: ScoredLists) -> Tensor | None:  # type: ignore[override]  # as a module without a policy
        return None if self.current is None else self.current(lists)


def _with_options(loss: Loss, options: dict[str, Any], number: int) -> Loss:
    """A copy of the loss with other options, tried on one list: a bad value fails now."""
    kind = type(loss)
    changed = copy.deepcopy(loss)
    known_options = _options(loss)
    for name, new_value in options.items():
        if name not in known_options:
            raise _error(
                number,
                f"options.{name} is unknown: the options of {kind.__name__} are {_listed(known_options) or 'none'}",
            )
        setattr(changed, name, new_value)
    try:  # setattr checks nothing
        _try_out(changed)
    except (ValueError, TypeError, RuntimeError) as error:
        raise _error(
            number, f"{kind.__name__} can't be computed with {_listed(options)}: {error}"
        ) from None
    return changed


def _try_out(loss: Loss) -> None:
    """Build a loss of the same arguments, whose constructor refuses bad values, and compute a value:
    a ValueError, TypeError or RuntimeError where that fails. The loss stays as it is.
    """
    kind = type(loss)
    arguments = _options(loss)
    # Arguments that are modules themselves are no options, but the constructor may ask for them.
    parts = dict(loss.named_children())
    for name in inspect.signature(kind).parameters:
        if name in parts:
            arguments[name] = parts[name]
    kind(**arguments)
    # On a copy: a loss may learn from what it sees.
    value = copy.deepcopy(loss)(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
    if value.ndim or not value.isfinite():
        raise ValueError(f"it must give one finite number, got {value.tolist()}")


def _options(module: nn.Module) -> dict[str, Any]:
    """The constructor arguments that the module keeps as attributes, but for modules."""
    attributes = vars(module)
    options = {}
    for name in inspect.signature(type(module)).parameters:
        if name in attributes:
            options[name] = attributes[name]
    return options


def _described(module: nn.Module | None) -> str:
    return "none" if module is None else f"{type(module).__name__}({_listed(_options(module))})"


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _error(number: int, message: str) -> InputError:
    return InputError(f"LossSchedule: changes[{number}]: {message}", option="trainer.callbacks")
