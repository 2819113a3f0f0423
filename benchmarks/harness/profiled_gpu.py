"""A GPU that is there, counted as harness/pretended_gpu.py counts one that is not: kernels and copies
by torch's profiler, waits by the warnings of torch's ``set_sync_debug_mode``.
"""

import warnings
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from harness.pretended_gpu import Counts, relative


class ProfiledGPU:
    """Inside the block what runs is counted, but for the bytes that are moved.

    Attributes:
        counts: as of :class:`harness.pretended_gpu.PretendedGPU`.
    """

    def __init__(self) -> None:
        self._counts: Counts | None = None
        self._watching = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.counts = None

    @property
    def counts(self) -> Counts | None:
        return self._counts

    @counts.setter
    def counts(self, counts: Counts | None) -> None:
        self._watching.close()
        self._counts = counts
        if counts is not None:
            self._watching.callback(self._watch(counts))

    def _watch(self, counts: Counts) -> Any:
        """Begin to count; what is returned ends it."""
        torch.cuda.synchronize()
        caught = warnings.catch_warnings(record=True)
        said = caught.__enter__()
        warnings.simplefilter("always")
        kernels = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        kernels.__enter__()
        torch.cuda.set_sync_debug_mode("warn")

        def end() -> None:
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
            kernels.__exit__(None, None, None)
            caught.__exit__(None, None, None)
            events = on_device(kernels.events() or [])
            counts.launches += Counter(event.name for event in events)
            counts.busy += sum(event.time_range.elapsed_us() for event in events) / 1e6
            counts.waits += waits_in(said or [])

        return end


def on_device(events: Iterable[Any]) -> list[Any]:
    """Kernels and copies on the device, among the events of a profile."""
    return [
        event
        for event in events
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    ]


def waits_in(said: Iterable[warnings.WarningMessage]) -> Counter[tuple[str, str]]:
    """The lines that waited for the device, among warnings."""
    return Counter(
        ("synchronises", f"{relative(warning.filename)}:{warning.lineno}")
        for warning in said
        if "synchronizing CUDA operation" in str(warning.message)
    )
