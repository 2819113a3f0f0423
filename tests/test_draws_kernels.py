"""The kernels for GPUs, without one: Triton's interpreter runs them, and its compiler compiles them."""

import importlib.util
import itertools
import re
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import torch

import ltr
from ltr import draws
from ltr.draws import draw_site, keys_at_site, keys_inside
from ltr.dropout import keyed_dropout

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from ltr import draws_kernels  # noqa: E402

WIDTHS = [1, 7, 8, 9, 63, 64, 65, 383, 384, 385, 768, 1000, 1024, 4095, 4096]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def some_keys(*shape):
    return torch.randint(-(2**63), 2**63 - 1, shape)


@pytest.fixture(scope="module")
def kernels():
    """ltr/draws_kernels.py, whose kernels are interpreted: a copy, as Triton decides so for good."""
    from triton.language import bfloat16, float32
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def rounded(data, given, wanted, rounding):
        """The interpreter cuts off what bfloat16 can't hold, and loses its smallest numbers. GPUs
        round to the nearest: a test below sees it in what is compiled.
        """
        if (given, wanted) == (float32, bfloat16):
            numbers = torch.from_numpy(data.copy()).bfloat16()
            return numbers.view(torch.int16).numpy().view(np.uint16)
        if (given, wanted) == (bfloat16, float32):
            numbers = torch.from_numpy(data.view(np.int16).copy()).view(torch.bfloat16)
            return numbers.float().numpy().view(np.uint32)
        return convert(data, given, wanted, rounding)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(triton.knobs.runtime, "interpret", True)
        patched.setattr(interpreter, "_convert_float", rounded)
        spec = importlib.util.find_spec("ltr.draws_kernels")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with np.errstate(all="ignore"):  # of numpy, which computes there
            yield module


def numbers_of_all_sizes(rows, width, dtype):
    """Also zeros of both signs, infinities, NaN, and what is too small or too large for the dtype."""
    x = torch.randn(rows, width) * 10.0 ** torch.randint(-45, 39, (rows, width))
    for special in (-0.0, 0.0, float("inf"), -float("inf"), float("nan")):
        x[torch.rand(rows, width) < 0.05] = special
    return x.to(dtype)


def assert_same_bits(ours, expected):
    assert ours.dtype == expected.dtype and ours.shape == expected.shape
    is_nan = expected.isnan()
    assert torch.equal(ours.isnan(), is_nan)
    integers = torch.int32 if ours.dtype == torch.float32 else torch.int16
    assert torch.equal(ours.view(integers)[~is_nan], expected.view(integers)[~is_nan])


def both_ways(x, p, keys, site):
    """What the definition makes of ``x``, and of a gradient ``x``."""
    leaf = x.clone().requires_grad_()
    y = keyed_dropout(leaf, p, keys, site)
    (gradient,) = torch.autograd.grad(y, leaf, x)
    return y.detach(), gradient


@pytest.mark.parametrize(
    "dtype", [DTYPES[0], *(pytest.param(dtype, marks=pytest.mark.long) for dtype in DTYPES[1:])]
)
def test_dropout_and_its_gradient_equal_the_definition_to_the_bit(kernels, dtype):
    shares = itertools.cycle([0.1, 1 / 256, 0.5, 0.999, 0.3])
    for width, p in zip(WIDTHS, shares, strict=False):
        site = draw_site(width) if width % 2 else None
        x = numbers_of_all_sizes(3, width, dtype)
        keys = some_keys(3)
        cut = min(max(round(256 * p), 1), 255)
        y, gradient = both_ways(x, p, keys, site)
        assert_same_bits(kernels.dropped(x, keys, site, cut, False), y)
        assert_same_bits(kernels.dropped(x, keys, site, cut, True), gradient)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((71, 9), "rows"),  # of more than one program
        ((2, 3, 5, 20), "rows"),
        ((20, 33), "columns"),
        ((1, 40), "expanded"),
        ((7,), "rows"),
        ((0, 4), "rows"),
        ((3, 0), "rows"),
    ],
)
def test_dropout_of_any_shape_and_layout(kernels, shape, layout):
    x = torch.randn(shape)
    keys = some_keys(*shape[:-1])
    if layout == "columns":
        x = x.T.contiguous().T
    if layout == "expanded":  # as the gradient of a sum is
        x = torch.ones(()).expand(shape)
    y = kernels.dropped(x, keys, None, 100, False)
    assert y.is_contiguous()
    assert_same_bits(y, keyed_dropout(x, 100 / 256, keys))


def test_keys_equal_the_definition(kernels):
    keys = some_keys(3)
    for site in (draw_site(0), draw_site(700)):
        for given in (keys, some_keys(600), some_keys(5, 4).T, keys[:0]):
            assert torch.equal(kernels.keys_at_site(given, site), keys_at_site(given, site))
    of_texts = keys[:, None, None]
    for given, numbers in [
        (keys, torch.tensor([0, 2**40, -3])),
        (keys.unsqueeze(1), torch.arange(700)),
        (of_texts, torch.arange(4).unsqueeze(1)),
        (of_texts.expand(3, 4, 1), torch.arange(9)),
        (keys.sum(), torch.arange(6).view(2, 3)),
        (some_keys(2, 3, 4, 1), torch.arange(5)),
        (keys[:0], torch.arange(0)),
    ]:
        assert torch.equal(kernels.keys_inside(given, numbers), keys_inside(given, numbers))


def resources(kernel) -> dict[str, int]:
    """Registers of a thread, and bytes of what doesn't fit them, as the compiler of CUDA says."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(n) for name, n in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}


def compiled(kernel, signature, constants, capability, divisible):
    """A kernel for a GPU of this capability. ``divisible``: arguments that 16 divides."""
    names = list(signature)
    attributes = {}
    for name in divisible & set(names):
        attributes[(names.index(name),)] = [["tt.divisibility", 16]]
    constants_by_name = dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        kernel, signature | constants_by_name, constexprs=constants, attrs=attributes
    )
    options = {"enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


POINTERS = {"x", "keys", "y", "made", "numbers"}  # which torch's allocator aligns


@pytest.fixture
def own_triton_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.long
@pytest.mark.usefixtures("own_triton_cache")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("of_gradient", [False, True])
def test_dropout_compiles_without_spills(capability, dtype, of_gradient):
    """For rows whose width 16 divides, and for others."""
    signature = {"x": f"*{dtype}", "keys": "*i64", "y": f"*{dtype}", "n_rows": "i32"}
    signature |= {"width": "i32", "site": "i64", "cut": "i32", "scale": "fp32"}
    constants = {"HAS_SITE": True, "SCALED_FIRST": of_gradient, "ROWS": 32, "COLUMNS": 16}
    ragged = compiled(draws_kernels._dropped, signature, constants, capability, POINTERS)
    kernel = compiled(
        draws_kernels._dropped, signature, constants, capability, POINTERS | {"width"}
    )
    for each in (ragged, kernel):
        assert resources(each) == resources(each) | {"STACK": 0, "LOCAL": 0}
        assert ".ftz" not in each.asm["ptx"]  # the smallest numbers stay what they are
        if dtype != "fp32":
            assert f"cvt.rn.{dtype.replace('fp', 'f')}" in each.asm["ptx"]  # to the nearest
    # 16 bytes at once.
    assert "ld.global.v4" in kernel.asm["ptx"] and "st.global.v4" in kernel.asm["ptx"]
    # A thread has 32 elements. In half precision a hash serves 8 of them, so there are 4, and 4 of
    # the rows' keys, and one of the column. A hash is two products, and the column has one more.
    # In float32 a thread reads 4 elements beside each other, so a hash serves these.
    n_products = 2 * (4 + 4 + 1) + 1 if dtype != "fp32" else 2 * (8 + 8 + 1) + 1
    assert 0 < kernel.asm["ptx"].count("mul.lo.s64") <= n_products
    assert resources(kernel)["REG"] <= 96


@pytest.mark.usefixtures("own_triton_cache")
@pytest.mark.parametrize("capability", [80, 90])
def test_keys_compile_without_spills(capability):
    at_site = {"keys": "*i64", "made": "*i64", "n_keys": "i32", "site": "i64"}
    inside = {"keys": "*i64", "numbers": "*i64", "made": "*i64"}
    inside |= dict.fromkeys(draws_kernels.NUMBERS, "i32")
    for kernel, signature in (
        (draws_kernels._keys_at_site, at_site),
        (draws_kernels._keys_inside, inside),
    ):
        made = compiled(kernel, signature, {"SIZE": draws_kernels.KEYS}, capability, POINTERS)
        assert resources(made) == resources(made) | {"STACK": 0, "LOCAL": 0}


@pytest.fixture
def first_launch(monkeypatch):
    monkeypatch.setattr(draws, "_faults", [])
    monkeypatch.setattr(draws, "_launchable", set())


SLOWER = "dropout is drawn by many small kernels, which is slower: Triton can't compile or launch its own: "


def assert_the_definition_runs():
    args = (some_keys(4), draw_site(1))
    assert torch.equal(draws._launched("keys_at_site", keys_at_site, args), keys_at_site(*args))


@pytest.mark.usefixtures("first_launch")
def test_where_triton_fails_the_definitions_run_and_a_warning_says_why(monkeypatch, caplog):
    """As on a machine without a C compiler. It is said once, and not tried again."""
    tried = []

    def fail(*args):
        tried.append(args)
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setitem(draws_kernels.LAUNCHES, "keys_at_site", fail)
    for _ in range(2):
        assert_the_definition_runs()
    assert len(tried) == 1
    assert [record.message for record in caplog.records] == [f"{SLOWER}Failed to find C compiler"]


@pytest.mark.usefixtures("first_launch")
def test_so_they_do_where_triton_is_broken(monkeypatch, caplog):
    monkeypatch.delattr(ltr, "draws_kernels")
    monkeypatch.setitem(sys.modules, "ltr.draws_kernels", None)  # can't be imported
    for _ in range(2):
        assert_the_definition_runs()
    (record,) = caplog.records
    assert record.message.startswith(SLOWER) and "draws_kernels" in record.message


@pytest.mark.usefixtures("first_launch")
def test_a_failure_that_passes_slows_one_launch(monkeypatch, caplog):
    """As Triton's own error on a GPU that is full."""
    full = iter([False, True, False])

    def launch(keys, site):
        if next(full):
            raise RuntimeError("Triton Error [CUDA]: out of memory")
        return keys_at_site(keys, site)

    monkeypatch.setitem(draws_kernels.LAUNCHES, "keys_at_site", launch)
    for _ in range(3):
        assert_the_definition_runs()
    assert next(full, None) is None and len(caplog.records) == 1
