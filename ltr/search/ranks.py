"""The processes of a run working together, by ``torch.distributed``; a single process needs nothing of it."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed

from ltr.errors import InputError

T = TypeVar("T")


def world_size() -> int:
    """Number of processes."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return distributed.get_rank() if world_size() > 1 else 0


def barrier() -> None:
    """Wait until every process is here."""
    if world_size() > 1:
        on_gpus = distributed.get_backend() == "nccl"
        distributed.barrier(device_ids=[torch.cuda.current_device()] if on_gpus else None)


def by_rank_0(make: Callable[[], T]) -> T:
    """Let rank 0 alone call a function, and return its result on every rank; every rank waits for it.

    Raises:
        InputError, OSError: on every rank, if the function raises it: otherwise the others would wait forever.
    """
    if world_size() == 1:
        return make()
    outcome: list[Any] = [None]
    if rank() == 0:
        try:
            outcome = [make()]
        except (InputError, OSError) as error:
            outcome = [error]
    distributed.broadcast_object_list(outcome)
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]
