"""Lightning callbacks."""

from ltr.callbacks.health import Health
from ltr.callbacks.last_checkpoint import LastCheckpoint
from ltr.callbacks.loss_schedule import LossChange, LossSchedule
from ltr.callbacks.run_writer import RunWriter

__all__ = ["Health", "LastCheckpoint", "LossChange", "LossSchedule", "RunWriter"]
