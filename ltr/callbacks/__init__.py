"""Callbacks for the trainer."""

from ltr.callbacks.health import Health
from ltr.callbacks.loss_schedule import LossChange, LossSchedule
from ltr.callbacks.mining import HardNegativeMining

__all__ = ["HardNegativeMining", "Health", "LossChange", "LossSchedule"]
