"""The functions of :mod:`ltr.draws` and :mod:`ltr.dropout` as kernels of Triton, equal to the bit.

They are compiled when they are first launched, which wants a C compiler and Python's
headers on the machine.

Letters of shapes: R rows, H elements of a row.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

# As unsigned numbers, which is what kernels compute with.
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
FIRST_FACTOR = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND_FACTOR = tl.constexpr(0x94D049BB133111EB)
BYTES = tl.constexpr(8)  # of a hash, each for an element

# What a program computes: so many hashes of dropout, in so many columns of hashes at most, or so
# many keys. Columns are few, so that rows of 3 × 128 elements leave no thread idle.
HASHES = 512
HASH_COLUMNS = 16
KEYS = 512


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def dropped(x: Tensor, keys: Tensor, site: Tensor | None, cut: int, scaled_first: bool) -> Tensor:
    """See :func:`ltr.dropout.dropped`."""
    x = x.contiguous()
    keys = keys.expand(x.shape[:-1]).contiguous()
    y = torch.empty_like(x)
    if x.numel() == 0:
        return y
    n_hashes = triton.cdiv(x.shape[-1], BYTES.value)
    columns = min(HASH_COLUMNS, triton.next_power_of_2(n_hashes))
    rows = HASHES // columns
    grid = (triton.cdiv(keys.numel(), rows), triton.cdiv(n_hashes, columns))
    with _on(x.device):
        _dropped[grid](
            x,
            keys,
            y,
            keys.numel(),
            x.shape[-1],
            0 if site is None else int(site),  # on the host: no wait
            cut,
            256 / (256 - cut),
            HAS_SITE=site is not None,
            SCALED_FIRST=scaled_first,
            ROWS=rows,
            COLUMNS=columns,
            enable_fp_fusion=False,
        )
    return y


def keys_at_site(keys: Tensor, site: Tensor) -> Tensor:
    """See :func:`ltr.draws.keys_at_site`."""
    keys = keys.contiguous()
    made = torch.empty_like(keys)
    if keys.numel() > 0:
        with _on(keys.device):
            _keys_at_site[(triton.cdiv(keys.numel(), KEYS),)](
                keys, made, keys.numel(), int(site), SIZE=KEYS, enable_fp_fusion=False
            )
    return made


def keys_inside(keys: Tensor, numbers: Tensor) -> Tensor:
    """See :func:`ltr.draws.keys_inside`."""
    keys, numbers = torch.broadcast_tensors(keys, numbers)
    shape = keys.shape
    if keys.ndim > 3:  # the kernel takes three dimensions
        keys = keys.flatten(0, -3)
        numbers = numbers.flatten(0, -3)
    before = (None,) * (3 - keys.ndim)
    keys = keys[before]
    numbers = numbers[before]
    made = torch.empty(shape, dtype=torch.int64, device=keys.device)
    if made.numel() > 0:
        with _on(keys.device):
            _keys_inside[(triton.cdiv(made.numel(), KEYS),)](
                keys,
                numbers,
                made,
                made.numel(),
                *keys.shape[1:],
                *keys.stride(),
                *numbers.stride(),
                SIZE=KEYS,
                enable_fp_fusion=False,
            )
    return made


LAUNCHES: dict[str, Callable[..., Tensor]] = {
    "dropped": dropped,
    "keys_at_site": keys_at_site,
    "keys_inside": keys_inside,
}


@triton.jit
def _mixed(z):  # type: ignore[no-untyped-def]
    """See :func:`ltr.draws.mixed`; z is unsigned."""
    z = (z ^ (z >> 30)) * FIRST_FACTOR
    z = (z ^ (z >> 27)) * SECOND_FACTOR
    return z ^ (z >> 31)


# Numbers that differ from launch to launch must not make Triton compile again. The width of rows
# may: knowing that 16 divides it, a thread reads and writes 16 bytes at once.
@triton.jit(do_not_specialize=["n_rows", "site", "cut"])
def _dropped(  # type: ignore[no-untyped-def]
    x,
    keys,
    y,
    n_rows,
    width,
    site,
    cut,
    scale,
    HAS_SITE: tl.constexpr,
    SCALED_FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    hash_column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    key = tl.load(keys + row, mask=row < n_rows, other=0).to(tl.uint64, bitcast=True)
    if HAS_SITE:
        key = _mixed(key ^ site.to(tl.uint64))
    of_column = _mixed(hash_column.to(tl.uint64) * GOLDEN)
    bits = _mixed(key[:, None] ^ of_column[None, :])
    # [ROWS, COLUMNS, 8]: a thread computes a hash once for the elements of its bytes.
    byte = tl.arange(0, BYTES)
    random_byte = (bits[:, :, None] >> (byte * 8).to(tl.uint64)[None, None, :]).to(tl.uint8)
    column = hash_column[:, None] * BYTES + byte[None, :]
    place = row[:, None, None] * width + column[None, :, :]
    is_inside = (row < n_rows)[:, None, None] & (column < width)[None, :, :]
    value = tl.load(x + place, mask=is_inside, other=0.0)
    # Products, and no choice between value and 0: -0 and NaN are those of the definition.
    keep = (random_byte >= cut).to(tl.float32)
    if SCALED_FIRST:
        scaled = (value.to(tl.float32) * scale).to(value.dtype)
        kept = scaled.to(tl.float32) * keep
    else:
        kept = value.to(tl.float32) * keep * scale
    tl.store(y + place, kept.to(value.dtype), mask=is_inside)


@triton.jit(do_not_specialize=["n_keys", "site"])
def _keys_at_site(keys, made, n_keys, site, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    key = tl.load(keys + place, mask=place < n_keys, other=0).to(tl.uint64, bitcast=True)
    other_key = _mixed(key ^ site.to(tl.uint64))
    tl.store(made + place, other_key.to(tl.int64, bitcast=True), mask=place < n_keys)


NUMBERS = ["n_made", "size_1", "size_2", "k_0", "k_1", "k_2", "n_0", "n_1", "n_2"]


@triton.jit(do_not_specialize=NUMBERS)
def _keys_inside(  # type: ignore[no-untyped-def]
    keys,
    numbers,
    made,
    n_made,
    size_1,
    size_2,
    k_0,
    k_1,
    k_2,
    n_0,
    n_1,
    n_2,
    SIZE: tl.constexpr,
):
    # k and n are the strides of keys and numbers, both of shape [·, size_1, size_2].
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    is_inside = place < n_made
    i_2 = place % size_2
    i_1 = place // size_2 % size_1
    i_0 = place // size_2 // size_1
    key = tl.load(keys + i_0 * k_0 + i_1 * k_1 + i_2 * k_2, mask=is_inside, other=0)
    number = tl.load(numbers + i_0 * n_0 + i_1 * n_1 + i_2 * n_2, mask=is_inside, other=0)
    key = key.to(tl.uint64, bitcast=True)
    number = number.to(tl.uint64, bitcast=True)
    part = _mixed(key + (number + 1) * GOLDEN)
    tl.store(made + place, part.to(tl.int64, bitcast=True), mask=is_inside)
