"""On a CPU an encoder does not check itself; here it is told to, by ``CHECKS_ITSELF``."""

import copy
from functools import partial
from itertools import accumulate

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from transformers import BertForSequenceClassification

from ltr.models.encoder import attention, text_encoder
from ltr.models.encoder.attention import Layout
from ltr.models.encoder.self_check import compare_packed
from ltr.models.encoder.text_encoder import TextEncoder
from tests.world import encoders

LARGER = {"vocab_size": 200, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
bert = partial(encoders.bert, dropout=0.1, std=0.1, attention_probs_dropout_prob=0.1, **LARGER)
modernbert = partial(encoders.modernbert, **LARGER)
texts = partial(encoders.texts, (7, 1, 20, 7), ids=(3, 200))
PRECISIONS = [None, torch.bfloat16, torch.float16]
right = attention._attend_packed


def missing(*args):
    raise NotImplementedError("no kernel image is available\nCUDA_LAUNCH_BLOCKING=1 …")


def failing(*args):
    raise RuntimeError("CUDA error: invalid configuration argument")


def of_other_sign(*args):
    return -right(*args)


def short_ones_joined(query, key, value, layout, *others):
    """Attention in which the two shortest texts see each other."""
    first, second, *sizes = [n for count, n in layout.groups for _ in range(count)]
    sizes = [first + second, *sizes]
    offsets = torch.tensor([0, *accumulate(sizes)])
    joined = Layout(tuple((1, n) for n in sizes), offsets, layout.padding)
    return right(query, key, value, joined, *others)


class WrongBackward(torch.autograd.Function):
    """The right outputs; the gradient of the keys has the other sign."""

    @staticmethod
    def forward(ctx, key):
        return key.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def wrong_backward(query, key, *others):
    return right(query, WrongBackward.apply(key), *others)


def of_nan(*args):
    return right(*args) * float("nan")


def drawing(*args):
    """Right, but it moves the random state."""
    torch.rand(1)
    return right(*args)


WRONG = [of_other_sign, short_ones_joined, wrong_backward, of_nan]


def named(dtype):
    return str(dtype or torch.float32).removeprefix("torch.")


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(text_encoder, "CHECKS_ITSELF", ("cpu",))


def read(encoder, dtype=None):
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        return encoder(texts())


@pytest.mark.parametrize("dtype", PRECISIONS, ids=named)
@pytest.mark.parametrize(
    "build", [bert, modernbert, lambda: bert(BertForSequenceClassification), lambda: bert(std=0.3)]
)
def test_the_right_kernel_passes(build, dtype):
    check = TextEncoder(build()).check_packed(dtype)
    assert check.fault == "" and check.error < (0.1 if dtype else 1e-5)
    assert check.padded_error == 0 if dtype is None else 0 < check.padded_error < 0.2


@pytest.mark.parametrize("dtype", PRECISIONS, ids=named)
@pytest.mark.parametrize("kernel", WRONG)
@pytest.mark.parametrize("build", [bert, modernbert])
def test_a_wrong_kernel_is_found(build, kernel, dtype, monkeypatch):
    encoder = TextEncoder(build())
    monkeypatch.setattr(attention, "_attend_packed", kernel)
    fault = encoder.check_packed(dtype).fault
    assert fault.startswith("give wrong ")
    assert "gradients" in fault or kernel is not wrong_backward


@pytest.mark.parametrize("dtype", PRECISIONS, ids=named)
def test_without_gradients_the_outputs_tell(dtype, monkeypatch):
    encoder = TextEncoder(bert())
    with torch.inference_mode():
        assert encoder.check_packed(dtype).fault == ""
        monkeypatch.setattr(attention, "_attend_packed", short_ones_joined)
        assert "outputs" in encoder.check_packed(dtype).fault
    encoder.requires_grad_(False)
    assert "outputs" in encoder.check_packed(dtype).fault


def test_weights_in_half_precision_are_no_fault():
    assert TextEncoder(bert()).bfloat16().check_packed(None).fault == ""


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=named)
@pytest.mark.parametrize("kernel", [missing, failing, *WRONG])
def test_an_encoder_says_so_once_and_reads_padded_texts_from_then_on(
    kernel, dtype, on_cpu, monkeypatch, caplog
):
    never_packed = TextEncoder(bert()).eval()
    never_packed.reads_packed = False
    never_packed.model.set_attn_implementation("sdpa")
    expected = read(never_packed, dtype)
    encoder = TextEncoder(bert()).eval()
    monkeypatch.setattr(attention, "_attend_packed", kernel)
    assert torch.equal(read(encoder, dtype), expected)
    (record,) = caplog.records
    reasons = {
        missing: "can't be read (NotImplementedError: no kernel image is available)",
        failing: "can't be read (RuntimeError: CUDA error: invalid configuration argument)",
    }
    reason = reasons.get(kernel, "give wrong ")
    assert record.levelname == "WARNING" and "\n" not in record.message
    assert record.message.startswith(f"BertModel on cpu in {named(dtype)}: packed texts {reason}")
    assert record.message.endswith("; from here on texts are padded")
    assert not encoder.reads_packed and encoder.model.config._attn_implementation == "sdpa"
    assert encoder.padding_share(texts()) > 0
    read(encoder, dtype).sum().backward()
    assert len(caplog.records) == 1


def test_each_precision_is_checked_once_with_and_without_gradients(on_cpu, monkeypatch):
    calls = []

    def counted(*args):
        calls.append((args[2], torch.is_grad_enabled()))
        return compare_packed(*args)

    encoder = TextEncoder(bert())
    monkeypatch.setattr(text_encoder, "compare_packed", counted)
    for _ in range(2):
        read(encoder)
        with torch.inference_mode():
            read(encoder, torch.bfloat16)
        read(copy.deepcopy(encoder), torch.bfloat16)
        read(encoder, torch.bfloat16)
    half = torch.bfloat16
    assert calls == [(None, True), (half, False), (half, True), (half, True)]


def test_on_a_cpu_nothing_is_checked(monkeypatch):
    encoder = TextEncoder(bert())
    monkeypatch.setattr(text_encoder, "compare_packed", missing)
    read(encoder)


@pytest.mark.parametrize("kernel", [right, drawing, of_other_sign, missing])
def test_a_check_leaves_no_trace(kernel, monkeypatch):
    """Dropout of 10 % is on: the step after the check draws what it would have drawn."""
    encoder = TextEncoder(bert()).train()
    encoder.model.encoder.layer[0].eval()
    first, *others = encoder.parameters()
    first.grad = torch.ones_like(first)
    modes = [m.training for m in encoder.modules()]
    state = torch.random.get_rng_state()
    with monkeypatch.context() as patch, torch.autocast("cpu", dtype=torch.bfloat16):
        patch.setattr(attention, "_attend_packed", kernel)
        is_wrong = kernel in (of_other_sign, missing)
        assert bool(encoder.check_packed(torch.bfloat16).fault) == is_wrong
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (first.grad == 1).all() and all(p.grad is None for p in others)
    assert [m.training for m in encoder.modules()] == modes
    assert encoder.model.config._attn_implementation == attention.PACKED_ATTENTION["auto"]


@pytest.mark.parametrize("ddp", [False, True])
def test_a_step_with_the_check_is_the_step_without_it(ddp, monkeypatch, tmp_path):
    """Inside autocast and DistributedDataParallel, which waits once for each gradient."""
    store = f"file://{tmp_path}/store"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        found = []
        for devices in ((), ("cpu",)):
            monkeypatch.setattr(text_encoder, "CHECKS_ITSELF", devices)
            encoder = TextEncoder(bert()).train()
            trained = DistributedDataParallel(encoder) if ddp else encoder
            torch.manual_seed(1)
            read(trained, torch.bfloat16).square().sum().backward()
            assert bool(encoder._checked) == bool(devices)
            found.append([torch.random.get_rng_state(), *(p.grad for p in trained.parameters())])
    finally:
        distributed.destroy_process_group()
    assert all(map(torch.equal, *found))


def test_an_error_of_the_padded_path_is_raised(monkeypatch):
    """There is no other path to take."""
    encoder = TextEncoder(bert())
    monkeypatch.setattr("ltr.models.encoder.self_check.padded_chunks", missing)
    with pytest.raises(NotImplementedError, match="no kernel"):
        encoder.check_packed(None)
    assert encoder.model.config._attn_implementation == attention.PACKED_ATTENTION["auto"]


def test_too_little_memory_says_nothing_of_the_kernel(on_cpu, monkeypatch):
    def out_of_memory(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    encoder = TextEncoder(bert())
    monkeypatch.setattr(attention, "_attend_packed", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        read(encoder)
    assert encoder.reads_packed
