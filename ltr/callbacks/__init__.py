"""Lightning callbacks."""

from ltr.callbacks.last_checkpoint import LastCheckpoint
from ltr.callbacks.loss_schedule import LossChange, LossSchedule
from ltr.callbacks.run_writer import RunWriter

__all__ = ["LastCheckpoint", "LossChange", "LossSchedule", "RunWriter"]
