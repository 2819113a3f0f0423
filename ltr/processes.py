"""The processes of a run working together, by ``torch.distributed``; a single process needs nothing
of it.

Each process is a rank, a number from 0.
"""

import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from ltr.errors import InputError
from ltr.spans import spans

T = TypeVar("T")

ROWS_AT_ONCE = 16384  # rows of an array that one all-reduce sums


def world_size() -> int:
    """Number of processes."""
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size()


def rank() -> int:
    """Number of this process, from 0."""
    return distributed.get_rank() if world_size() > 1 else 0


def exchange_device() -> torch.device:
    """Where the tensors lie that the processes exchange."""
    if world_size() > 1 and distributed.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def barrier() -> None:
    """Wait until every process is here."""
    if world_size() == 1:
        return
    if exchange_device().type == "cuda":
        # NCCL would guess the GPU from the rank.
        distributed.barrier(device_ids=[torch.cuda.current_device()])
    else:
        distributed.barrier()


def lost_connection(error: BaseException) -> str | None:
    """What an error says of a process that is gone or can't be reached; None for another error."""
    # What torch raises says more, at length: a path of its source before it, and advice after it.
    text = " ".join(str(error).split())
    if isinstance(error, distributed.DistNetworkError | distributed.DistStoreError):
        return text[:150]
    if isinstance(error, distributed.DistBackendError) and "ncclRemoteError" in text:
        return "NCCL: ncclRemoteError"
    if isinstance(error, RuntimeError) and "gloo/transport" in text:
        return text.partition("] ")[2].partition(". ")[0]
    return None


def by_rank_0(make: Callable[[], T]) -> T:
    """Let rank 0 alone call a function, and return its result on every rank. Every rank waits for
    rank 0.

    Raises:
        InputError, OSError: on every rank, if the function raises it: otherwise the others would
            wait forever.
    """
    if world_size() == 1:
        return make()
    # A list of one, which the broadcast fills in place: the result, or the error to raise.
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
    """A new folder ``NAME-*`` for all processes. Folders of this name that a killed run has left
    are removed first.

    Rank 0 removes the folder at the end without waiting for the others: let them meet at
    a :func:`barrier` before.
    """
    # Rank 0 puts on this stack what is to be done at the end. The stack runs backwards: the folder is
    # removed, then its lock released. At the other ranks it stays empty.
    with ExitStack() as at_end:

        def make() -> Path:
            root.mkdir(parents=True, exist_ok=True)
            for lock in root.glob(f"{name}-*/lock"):
                # A run that is alive holds its lock, so only folders of killed runs are removed.
                with suppress(Timeout), FileLock(lock, timeout=0):
                    shutil.rmtree(lock.parent, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(dir=root, prefix=f"{name}-"))
            at_end.enter_context(FileLock(folder / "lock"))
            at_end.callback(shutil.rmtree, folder, ignore_errors=True)
            return folder

        yield by_rank_0(make)


def by_every_rank(make: Callable[[], T]) -> T:
    """Call a function on every rank, and return this rank's result. Every rank waits for all.

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
    for error_of_rank in gather_objects(error):
        if error_of_rank is not None:
            raise error_of_rank
    return cast(T, result)


def gather_objects(value: T) -> list[T]:
    """The values of all ranks, in the order of ranks. For small objects: they are pickled."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    distributed.all_gather_object(values, value)
    return values


def differences_from_rank_0(facts: Mapping[str, str]) -> str:
    """How the facts of the first process that differs differ from those of rank 0, as a part of
    a sentence; empty where all processes say the same. Every process gets the same answer.
    """
    host = platform.node()
    facts_of_ranks = gather_objects((host, dict(facts)))
    host_0, facts_0 = facts_of_ranks[0]
    for number, (host, facts_of_rank) in enumerate(facts_of_ranks):
        differences = []
        for name in {**facts_0, **facts_of_rank}:
            if facts_of_rank.get(name) != facts_0.get(name):
                differences.append(
                    f"{name} is {facts_0.get(name)} in process 0 (on {host_0}) and {facts_of_rank.get(name)} in process {number} (on {host})"
                )
        if differences:
            more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
            return ", ".join(differences[:3]) + more
    return ""


def gather_at_rank_0(value: T) -> list[T]:
    """The values of all ranks at rank 0, in the order of ranks; at the others an empty list. They
    are pickled, as those of :func:`gather_objects`.
    """
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    distributed.gather_object(value, values if rank() == 0 else None)
    return values if rank() == 0 else []


# By the group of all processes, which may be NCCL's, the same processes as a group of gloo's.
_host_groups: dict[distributed.ProcessGroup, distributed.ProcessGroup] = {}


def host_group(longest_wait: timedelta | None = None) -> distributed.ProcessGroup | None:
    """The group by which all processes send what lies on their hosts: nothing waits for a GPU. None
    where the group of all does so. Every rank must call it.

    Args:
        longest_wait: how long a process waits in it for another one; counts when it is made, by the
            first call. None: 30 minutes.

    Raises:
        InputError: if the hosts don't reach each other.
    """
    if distributed.get_backend() == "gloo":
        return None
    everyone = distributed.group.WORLD
    assert everyone is not None, "the processes have met"
    if everyone not in _host_groups:
        try:
            _host_groups[everyone] = distributed.new_group(backend="gloo", timeout=longest_wait)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0][:150]
            raise InputError(
                f"the hosts of the processes must reach each other by gloo, and don't ({reason}); set GLOO_SOCKET_IFNAME to the network interface by which they do"
            ) from None
    return _host_groups[everyone]


def gather_numbers(numbers: Sequence[int]) -> np.ndarray:
    """``[W, n]`` int64: n whole numbers of each of the W ranks, sent from host to host."""
    return all_gather(torch.tensor(numbers, dtype=torch.int64)).numpy()


def all_gather(tensor: Tensor) -> Tensor:
    """``[W, …]``: the tensors of all W ranks, which must have one shape; without gradient. They all
    lie on hosts, and then go from host to host, or on GPUs.
    """
    gathered = tensor.new_empty(world_size(), *tensor.shape)
    if world_size() > 1:
        group = host_group() if tensor.device.type == "cpu" else None
        distributed.all_gather(list(gathered), tensor.contiguous(), group=group)
    else:
        gathered[0] = tensor.detach()
    return gathered


def sum_over_ranks(array: np.ndarray) -> np.ndarray:
    """Sum the arrays of all ranks, which must have one shape, in place, and return the array."""
    if world_size() > 1:
        for span in spans(len(array), ROWS_AT_ONCE):
            part = torch.from_numpy(array[span]).to(exchange_device())
            distributed.all_reduce(part)
            array[span] = part.cpu().numpy()
    return array


def settle_order_of_sums(model: nn.Module | None) -> None:
    """Before the first step, let the processes agree how they sum the gradients of a model from now
    on. Every rank must call it; other models than those of ``DistributedDataParallel`` stay.

    That one sums gradients in buffers. Behind its first backward pass it lays them out anew, in the
    order in which gradients came. Of three ranks or more the sum of a weight is rounded by its place
    in a buffer, so the first step of a resumed run would be rounded otherwise than the same step of a
    run that went through. Here a backward pass of zeros comes first, whose order is that of the
    weights.
    """
    if not isinstance(model, DistributedDataParallel):
        return
    module = model.module

    # With an argument, even if nothing reads it: on a GPU DistributedDataParallel fails without one.
    def zero(_: None) -> Tensor:
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        return sum((0.0 * weight.sum() for weight in weights), start=torch.zeros(()).to(weights[0]))

    module.forward = zero  # of this object alone: what the model calls
    try:
        model(None).backward()
    finally:
        del module.forward
    module.zero_grad()


def leave_constant_buffers(model: nn.Module | None) -> None:
    """Before the first step, keep the processes from sending each other buffers that training does
    not change. ``DistributedDataParallel`` would send all of them from rank 0 before each forward
    pass.

    What training changes is in the state dict, or a resume would lose it. Where nothing of it is a
    buffer, all buffers are constants of the configuration, such as the positions of a BERT.
    """
    if not isinstance(model, DistributedDataParallel):
        return
    buffers = {name for name, _ in model.module.named_buffers()}
    if buffers.isdisjoint(model.module.state_dict()):
        model.broadcast_buffers = False
