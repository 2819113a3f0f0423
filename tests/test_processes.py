"""Processes that work together: what each gets of the others, and errors that reach all (gloo on
CPU).
"""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from torch import distributed, nn
from torch.distributed.utils import _to_kwargs
from torch.multiprocessing import ProcessExitedException
from torch.nn.parallel import DistributedDataParallel

from ltr import processes
from ltr.errors import InputError
from ltr.processes import (
    all_gather,
    barrier,
    by_every_rank,
    by_rank_0,
    exchange_device,
    gather_objects,
    leave_constant_buffers,
    lost_connection,
    rank,
    settle_order_of_sums,
    shared_folder,
    sum_over_ranks,
    world_size,
)
from tests.child_processes import run_ranks


def _refused() -> None:
    raise InputError(f"refused at {rank()}", option="index")


def _refused_at_1() -> None:
    if rank() == 1:
        _refused()


def _join(number: int, root: str, n_ranks: int = 2) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{root}/store", rank=number, world_size=n_ranks
    )


def _work_together(number: int, root: str) -> None:
    _join(number, root)
    assert (rank(), world_size(), exchange_device().type) == (number, 2, "cpu")

    assert by_rank_0(lambda: number + 5) == 5
    assert by_every_rank(lambda: number + 5) == number + 5
    # On both ranks: the other would wait forever.
    with pytest.raises(InputError, match="refused at 0") as caught:
        by_rank_0(_refused)
    assert caught.value.option == "index"
    with pytest.raises(InputError, match="refused at 1"):
        by_every_rank(_refused_at_1)
    with pytest.raises(InputError, match="refused at 0"):  # that of the first rank
        by_every_rank(_refused)

    assert gather_objects("ab"[number]) == ["a", "b"]
    assert all_gather(torch.tensor([number, 7])).tolist() == [[0, 7], [1, 7]]
    # 5 rows in parts of 2: 0 to 4 at rank 0, ten times as much at rank 1.
    processes.ROWS_AT_ONCE = 2
    array = np.arange(5.0) * (1 if number == 0 else 10)
    assert sum_over_ranks(array) is array
    assert array.tolist() == [0, 11, 22, 33, 44]

    with shared_folder(Path(root), "part") as folder:
        (folder / str(number)).touch()
        barrier()
        assert sorted(file.name for file in folder.iterdir()) == ["0", "1", "lock"]
        barrier()
    distributed.destroy_process_group()


def test_two_processes_work_together(tmp_path):
    run_ranks(_work_together, str(tmp_path))
    assert [file.name for file in tmp_path.iterdir() if file.is_dir()] == []


def _wait_for_a_killed_one(number: int, root: str) -> None:
    _join(number, root)
    all_gather(torch.ones(1))
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        all_gather(torch.ones(1))
    except RuntimeError as error:
        Path(root, "told").write_text(str(lost_connection(error)))


def test_an_error_tells_of_a_process_that_was_killed(tmp_path):
    with pytest.raises(ProcessExitedException, match="process 1 terminated with signal SIGKILL"):
        run_ranks(_wait_for_a_killed_one, str(tmp_path), grace=600)
    told = (tmp_path / "told").read_text()  # "closed by peer" or "reset by peer"
    assert "[127.0.0.1]:" in told and "by peer" in told


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (distributed.DistNetworkError("the client has\ntimed out"), "the client has timed out"),
        (distributed.DistStoreError("1/2 clients joined"), "1/2 clients joined"),
        (distributed.DistBackendError("NCCL error: ncclRemoteError: A"), "NCCL: ncclRemoteError"),
        (distributed.DistBackendError("NCCL error: ncclInvalidUsage: Duplicate GPU"), None),
        (
            RuntimeError("[/gloo/transport/tcp/pair.cc:5] Broken pipe [::1]:5. This is"),
            "Broken pipe [::1]:5",
        ),
        (RuntimeError("shapes differ"), None),
        (ValueError("gloo/transport"), None),
    ],
)
def test_only_an_error_of_the_connection_tells_of_another_process(error, told):
    assert lost_connection(error) == told


def test_one_process_needs_no_other():
    array = np.arange(3.0)
    assert (rank(), world_size(), exchange_device().type) == (0, 1, "cpu")
    assert by_rank_0(lambda: 5) == 5
    assert by_every_rank(lambda: 5) == 5
    assert gather_objects("a") == ["a"]
    assert all_gather(torch.tensor([3, 4])).tolist() == [[3, 4]]
    assert not all_gather(torch.ones(2, requires_grad=True)).requires_grad  # as with others
    assert sum_over_ranks(array).tolist() == [0, 1, 2]
    barrier()
    for call in (by_rank_0, by_every_rank):
        with pytest.raises(InputError, match="refused at 0"):
            call(_refused)


def test_a_new_folder_replaces_those_of_killed_runs_alone(tmp_path):
    """A killed run leaves a lock that nobody holds; a folder without a lock is none of ours."""
    alive, killed, of_user, other = (
        tmp_path / name
        for name in ("part-alive", "part-killed", "part-of-the-user", "other-killed")
    )
    for folder in (alive, killed, of_user, other):
        folder.mkdir()
        if folder != of_user:
            (folder / "lock").touch()
    with FileLock(alive / "lock"), shared_folder(tmp_path, "part") as new:
        assert sorted(tmp_path.iterdir()) == sorted([alive, of_user, other, new])
    assert sorted(tmp_path.iterdir()) == sorted([alive, of_user, other])


def test_a_folder_goes_after_an_error_too(tmp_path):
    with pytest.raises(InputError, match="refused"), shared_folder(tmp_path / "new", "part"):
        _refused()
    assert list((tmp_path / "new").iterdir()) == []


class _Chain(nn.Module):
    """Its gradients come in another order than that of its weights, last to first."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        sizes = {"last": 700, "first": 300, "middle": 500}
        for name, size in sizes.items():
            weight = torch.randn(size, generator=generator)
            self.register_parameter(name, nn.Parameter(weight))

    def forward(self, inputs):
        total = torch.zeros(())
        for weight in (self.first, self.middle, self.last):
            total = torch.tanh(total + (weight * inputs[: len(weight)]).sum() / len(weight))
        return total


def _as_on_a_gpu(_: nn.Module, inputs: tuple) -> None:
    """There DistributedDataParallel copies what it is given to the GPU, and takes the first copy."""
    moved, _ = _to_kwargs(inputs, {}, torch.device("cpu"), False)
    assert len(moved[0]) == len(inputs)


def _sum_in_steps(number: int, root: str) -> None:
    _join(number, root, 3)
    inputs = torch.randn(700, generator=torch.Generator().manual_seed(number))
    model = DistributedDataParallel(_Chain())
    model.register_forward_pre_hook(_as_on_a_gpu)
    settle_order_of_sums(model)
    assert all(weight.grad is None for weight in model.parameters())
    gradients = []
    for _ in range(3):
        model.zero_grad()
        model(inputs).backward()
        gradients.append(torch.cat([weight.grad for weight in model.parameters()]))
    assert torch.equal(gradients[0], gradients[1]) and torch.equal(gradients[1], gradients[2])


def test_gradients_of_three_are_rounded_alike_in_every_step(tmp_path):
    """Also in the first one of a resumed run. Without :func:`settle_order_of_sums` the second step of
    the same inputs differs from the first: the buffers were laid out anew.
    """
    run_ranks(_sum_in_steps, str(tmp_path), n_ranks=3)


class _Counter(nn.Module):
    """A weight beside a buffer that every process has written something else into."""

    def __init__(self, in_checkpoints: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.register_buffer("buffer", torch.zeros(()), persistent=in_checkpoints)

    def forward(self) -> torch.Tensor:
        return self.weight + self.buffer


def _buffers(number: int, root: str) -> None:
    _join(number, root, 2)
    for in_checkpoints in (False, True):
        module = _Counter(in_checkpoints)
        model = DistributedDataParallel(module)
        leave_constant_buffers(model)
        module.buffer.fill_(number)
        model()
        assert module.buffer.item() == (0 if in_checkpoints else number)
    leave_constant_buffers(_Counter(False))


def test_only_buffers_that_checkpoints_hold_are_sent_in_every_step(tmp_path):
    """Those of rank 0."""
    run_ranks(_buffers, str(tmp_path))


def _copied_together(number: int, root: str) -> None:
    _join(number, root, 2)
    steps = []
    for options in ({}, {"gradient_as_bucket_view": True, "batched_grad_copy": True}):
        inputs = torch.randn(700, generator=torch.Generator().manual_seed(number))
        model = DistributedDataParallel(_Chain(), **options)
        settle_order_of_sums(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            model(inputs).backward()
            optimizer.step()
        steps.append(torch.cat([weight.detach() for weight in model.parameters()]))
    assert torch.equal(*steps)


def test_gradients_that_are_copied_together_train_alike(tmp_path):
    """As on GPUs. Halves are exact, so of two processes to the bit."""
    run_ranks(_copied_together, str(tmp_path))
