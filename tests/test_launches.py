"""What a training step asks of a GPU stays within its budget. Counted on a CPU that pretends to be
one, by models of few dimensions: the number of launches follows from layers, not from width.
"""

import warnings
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from ltr.data.windows import mean_of_windows
from ltr.models.encoder.loading.pooling import pool
from ltr.models.encoder.loading.pretrained import load_tokenizer

# Launches, and waits of the host, by the rows of benchmarks/launches.py. Whoever lowers one writes
# the lower number here.
BUDGETS = {
    "cross-encoder, MiniLM": (409, 0),
    "the same, `dropout: none`": (383, 0),
    "the same, ListMLE, lists of 8": (438, 0),
    "the same in float32": (422, 0),
    "cross-encoder, BERT-base": (731, 0),
    "cross-encoder, ModernBERT, 6 layers": (425, 0),
    "dual encoder, MiniLM, own lists": (472, 0),
    "dual encoder, MiniLM, other queries": (472, 0),
    "the same, batch-hard": (512, 0),
    "dual encoder, Qwen3, 6 layers": (596, 1),
    "the same with LoRA, r 16": (1006, 1),
    "encoding, MiniLM": (94, 1),
}
# One of each kind of ranker, and of encoding.
EVERY_DAY = {
    "cross-encoder, MiniLM",
    "dual encoder, MiniLM, other queries",
    "encoding, MiniLM",
}


@pytest.fixture
def pretended(benchmark) -> ModuleType:
    return benchmark("harness.pretended_gpu")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name not in EVERY_DAY)) for name in BUDGETS],
)
def test_a_step_stays_within_its_budget(
    name, benchmark, pretended, backbone, collection_folder, monkeypatch
):
    tokenizer = load_tokenizer(backbone)
    launches_py = benchmark("launches")
    monkeypatch.setattr(launches_py, "new_gpu", pretended.PretendedGPU)  # where there is a GPU, too
    parts = launches_py.count(name, tokenizer, str(collection_folder), narrow=True)
    launches = sum(counts.launches.total() for counts in parts.values())
    waits = sum(counts.waits.total() for counts in parts.values())
    most_launches, most_waits = BUDGETS[name]
    of_part = {part: counts.launches.most_common() for part, counts in parts.items()}
    assert launches <= most_launches, of_part
    assert waits <= most_waits, [counts.waits for counts in parts.values()]


def test_every_row_has_a_budget(benchmark):
    launches = benchmark("launches")
    assert BUDGETS.keys() == launches.STEPS.keys() | {launches.ENCODED}


def counted(pretended, work, *numbers):
    """What a function asks of a GPU, of tensors that are there."""
    gpu = pretended.PretendedGPU()
    with gpu:
        on_device = [x.to("cuda", non_blocking=True) for x in numbers]
        gpu.counts = counts = pretended.Counts()
        work(*on_device)
        gpu.counts = None
    return counts


def test_views_are_no_launches_and_products_are_no_elementwise_work(pretended):
    """x of [2, 3] float32: 24 bytes. x + 1 reads and writes 48; the product of x and its transpose
    is a kernel, too; a sum of four numbers reads 16 bytes and writes 4.
    """
    counts = counted(pretended, lambda x: (x + 1, (x @ x.t()).view(-1).sum()), torch.ones(2, 3))
    assert counts.launches == {"add": 1, "mm": 1, "sum": 1}
    assert counts.moved == {"add": 48, "sum": 20}
    assert not counts.waits


def test_a_gradient_is_counted_by_its_kernels(pretended):
    """Of sum(w²): the gradient of the sum is a view of ones; that of a power 2 is 2 · w · g."""
    gpu = pretended.PretendedGPU()
    with gpu:
        weight = torch.ones(3).to("cuda").requires_grad_()
        loss = weight.pow(2).sum()
        gpu.counts = counts = pretended.Counts()
        loss.backward()
        gpu.counts = None
        assert weight.grad.tolist() == [2.0, 2.0, 2.0]
    assert counts.launches == {"ones_like": 1, "pow": 1, "mul": 2}


WAITS = {
    "a number": lambda x: x.sum().item(),
    "a truth value": lambda x: bool((x > 0).all()),
    "a list": lambda x: x.tolist(),
    "a copy for the host": lambda x: x.cpu(),
    "a copy for numpy": lambda x: x.detach().numpy(),
    "a copy by its device": lambda x: x.to("cpu"),
    "a boolean index": lambda x: x[x > 0],
    "a boolean index that is written": lambda x: x.clone().__setitem__(x > 2, x.new_zeros(1)),
    "an index of the host": lambda x: x[torch.tensor([0, 1])],
    "places": lambda x: x.nonzero(),
    "a selection": lambda x: x.masked_select(x > 1),
    "distinct numbers": lambda x: x.unique(),
    "repeats of unknown sum": lambda x: x.repeat_interleave(x.long()),
    "numbers of Python": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "a tensor from pageable memory": lambda x: torch.ones(3).to(x.device),
    "comparison of two": lambda x: x.equal(x + 1),
    "lengths that are checked": lambda x: torch.segment_reduce(x, "max", lengths=x.long()[:2]),
}
FREE = {
    "a larger number for each": lambda x: torch.where(x > 0, x, 0.0),
    "an index of the device": lambda x: x[torch.arange(2, device=x.device)],
    "repeats of known sum": lambda x: x.repeat_interleave(x.long(), output_size=6),
    "a pinned copy": lambda x: torch.ones(3).to(x.device, non_blocking=True),
    "another precision": lambda x: x.to(torch.bfloat16).float(),
    "numbers of the host alone": lambda x: torch.ones(3).tolist(),
    "a number of the host": lambda x: x * torch.tensor(2.0),
    "the same device": lambda x: x.to(x.device),
    "the mean of windows": lambda x: mean_of_windows(x, x.long()[:2]),
    "the maximum of tokens": lambda x: pool(x.unsqueeze(1), x.long()[:2], "max"),
}


@pytest.mark.parametrize("work", WAITS.values(), ids=WAITS)
def test_the_host_waits_once_at_this_line(work, pretended):
    waits = counted(pretended, work, torch.tensor([1.0, 2.0, 3.0])).waits
    assert waits.total() == 1
    ((_, line),) = waits
    assert line == f"tests/test_launches.py:{work.__code__.co_firstlineno}"


@pytest.mark.parametrize("work", FREE.values(), ids=FREE)
def test_the_host_does_not_wait(work, pretended):
    assert not counted(pretended, work, torch.tensor([1.0, 2.0, 3.0])).waits


def test_the_pretended_gpu_computes_as_the_cpu_and_says_where_it_is(pretended):
    """Three steps of AdamW on a net with LayerNorm, and its weights."""

    def trained(device: str) -> list[list[float]]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 1))
        x = torch.randn(5, 3).to(device)
        net.to(device)
        assert x.device.type == next(net.parameters()).device.type == device
        assert x.is_cuda == (device == "cuda")
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        return [weight.detach().tolist() for weight in net.parameters()]

    with pretended.PretendedGPU():
        on_gpu = trained("cuda")
    assert on_gpu == trained("cpu")


def test_kernels_over_lists_are_cut_by_tensors_and_by_chunks(pretended):
    """With four lists a launch takes 36 tensors, or 320 chunks of 65,536 numbers."""
    cut = pretended.kernels_over_lists
    assert cut([1] * 36, 4) == 1
    assert cut([1] * 37, 4) == 2
    assert cut([1] * 110, 1) == 1
    assert cut([320 * 65536], 4) == 1
    assert cut([320 * 65536 + 1], 4) == 2
    assert cut([319 * 65536, 1, 1], 4) == 2
    assert cut([0, 0], 4) == 0


def test_a_profile_of_a_gpu_is_read(benchmark):
    """Two kernels and a copy on the device; the operator that launched them ran on the CPU."""
    profiled = benchmark("harness.profiled_gpu")
    cuda = torch.autograd.DeviceType.CUDA
    cpu = torch.autograd.DeviceType.CPU
    events = [
        SimpleNamespace(name="aten::mm", device_type=cpu, is_user_annotation=False),
        SimpleNamespace(name="gemm", device_type=cuda, is_user_annotation=False),
        SimpleNamespace(name="gemm", device_type=cuda, is_user_annotation=False),
        SimpleNamespace(name="Memcpy HtoD", device_type=cuda, is_user_annotation=False),
        SimpleNamespace(name="training_step", device_type=cuda, is_user_annotation=True),
    ]
    launched = [event.name for event in profiled.on_device(events)]
    assert launched == ["gemm", "gemm", "Memcpy HtoD"]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("another thing", stacklevel=1)
    ((what, line),) = profiled.waits_in(said)
    assert what == "synchronises"
    assert line == f"tests/test_launches.py:{said[0].lineno}"
