"""What a user says of the checkpoints of a run: which weights are best, how often the last ones are
written.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ltr.errors import InputError
from ltr.metrics import MEASURES, bare_name


@dataclass
class BestOptions:
    """Which weights are kept as the best ones.

    Args:
        monitor: What says how good weights are: a metric of the validation, such as
            ``val/nDCG@10``. None keeps no best ones.
        save_top_k: How many of the best are kept: ``best.ckpt``, and beside it, where they are
            several, ``step=N.ckpt`` for each. -1 keeps those of every validation, 0 none.
        save_weights_only: Whether they are kept without the state of the optimiser: a third of the
            size, but no resume.
    """

    monitor: str | None = "val/nDCG@10"
    save_top_k: int = 1
    save_weights_only: bool = False

    def __post_init__(self) -> None:
        if self.save_top_k < -1:
            raise InputError(
                f"save_top_k must be at least -1 (all), got {self.save_top_k}",
                option="best.save_top_k",
            )

    @property
    def metric(self) -> str:
        """What is monitored, as ``metrics.json`` names it; empty where nothing is."""
        return (self.monitor or "").removeprefix("val/")

    @property
    def sign(self) -> float:
        """-1 for a metric whose lowest value is the best, else 1. Weights have a score, the value of
        the metric times this sign: higher is better.
        """
        name = bare_name(self.metric)
        if name in MEASURES and MEASURES[name].lower_is_better:
            return -1.0
        return 1.0


def best_first(scores: Mapping[int, float]) -> list[int]:
    """The steps of scores, the highest score first; of equal scores the earlier step first."""
    return sorted(scores, key=lambda step: (-scores[step], step))


@dataclass
class LastOptions:
    """How often ``last.ckpt`` is written.

    Args:
        every_n_steps: Optimiser steps between two writes. It is also written at the end of the run,
            with new best weights, and at Ctrl-C, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP. At the end
            of an epoch or a validation it is written, too, unless the last write was so recent that
            writing would take more than a twentieth of the time.
    """

    every_n_steps: int = 500

    def __post_init__(self) -> None:
        if self.every_n_steps < 1:
            raise InputError(
                f"every_n_steps must be at least 1, got {self.every_n_steps}",
                option="last.every_n_steps",
            )
