"""The processes of a run working together, by ``torch.distributed``; a single process needs nothing
of it.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor, distributed

from ltr.errors import InputError
from ltr.spans import spans

T = TypeVar("T")

SUMMED = 16384  # rows of an array that are summed at once


def world_size() -> int:
    """Number of processes."""
    return (
        distributed.get_world_size()
        if distributed.is_available() and distributed.is_initialized()
        else 1
    )


def rank() -> int:
    """Number of this process, from 0."""
    return distributed.get_rank() if world_size() > 1 else 0


def device() -> torch.device:
    """Where the tensors lie that the processes exchange."""
    on_gpus = world_size() > 1 and distributed.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpus else torch.device("cpu")


def barrier() -> None:
    """Wait until every process is here."""
    if world_size() > 1:
        distributed.barrier(
            device_ids=[torch.cuda.current_device()] if device().type == "cuda" else None
        )


def by_rank_0(make: Callable[[], T]) -> T:
    """Let rank 0 alone call a function, and return its result on every rank; every rank waits for
    it.

    Raises:
        InputError, OSError: on every rank, if the function raises it: otherwise the others would
            wait forever.
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


@contextmanager
def shared_folder(root: Path, name: str) -> Iterator[Path]:
    """A new folder ``NAME-*`` for all processes; those that killed processes left are removed first.

    The first process removes it at the end without waiting for the others: let them meet at a
    :func:`barrier` before.
    """
    with ExitStack() as at_end:  # the lock and the clean-up at rank 0; empty at the others

        def make() -> Path:
            root.mkdir(parents=True, exist_ok=True)
            for left in root.glob(f"{name}-*/lock"):
                with suppress(Timeout), FileLock(left, timeout=0):
                    shutil.rmtree(left.parent, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(dir=root, prefix=f"{name}-"))
            at_end.enter_context(
                FileLock(folder / "lock")
            )  # as long as it is held, its makers are alive
            at_end.callback(shutil.rmtree, folder, ignore_errors=True)
            return folder

        yield by_rank_0(make)


def together(make: Callable[[], T]) -> T:
    """Call a function on every rank, and return this rank's result; every rank waits for all.

    Raises:
        InputError, OSError: on every rank, if the function raises it on any: that of the first such
            rank.
    """
    result = None
    error = None
    try:
        result = make()
    except (InputError, OSError) as raised:
        error = raised
    for first in filter(None, of_all(error)):
        raise first
    return cast(T, result)


def of_all(value: T) -> list[T]:
    """The values of all ranks, in their order; for small ones, which are pickled."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    distributed.all_gather_object(values, value)
    return values


def all_gather(own: Tensor) -> Tensor:
    """``[W, …]``: the tensors of all W ranks, which must have one shape; without gradient."""
    whole = own.new_empty(world_size(), *own.shape)
    if world_size() > 1:
        distributed.all_gather(list(whole), own.contiguous())
    else:
        whole[0] = own
    return whole


def summed(own: np.ndarray) -> np.ndarray:
    """The array itself, with the sum over all ranks in it; they must have one shape."""
    if world_size() > 1:
        for span in spans(len(own), SUMMED):
            part = torch.from_numpy(own[span]).to(device())
            distributed.all_reduce(part)
            own[span] = part.cpu().numpy()
    return own
