"""Callbacks for the trainer."""

from ltr.callbacks.health import Health
from ltr.callbacks.loss_schedule import LossChange, LossSchedule

__all__ = ["Health", "LossChange", "LossSchedule"]
