"""Keys: numbers from which random draws follow, so that they don't depend on which process draws.

A draw that follows from a generator depends on all draws before it, and so on what else a process
holds. A key is a function of the run's seed, the step, and the place of what it belongs to.

These functions and those of :mod:`ltr.dropout` define the numbers. On a GPU the kernels of
:mod:`ltr.draws_kernels` compute the same.

Letters of shapes: B lists of a batch.
"""

import functools
import importlib.util
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger(__name__)

Definition = TypeVar("Definition", bound=Callable[..., Tensor])

# Triton comes with torch for CUDA, but for Windows.
HAS_TRITON = importlib.util.find_spec("triton") is not None
# Keeps the ops of in_one_kernel registered.
OPS = torch.library.Library("ltr", "FRAGMENT")

# The odd numbers of SplitMix64, as int64.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
FIRST_FACTOR = 0xBF58476D1CE4E5B9 - 2**64
SECOND_FACTOR = 0x94D049BB133111EB - 2**64


def takes_kernel(x: Tensor) -> bool:
    """Whether one kernel draws for these elements, or makes keys of these: on a GPU, with Triton.
    There is none for float64.
    """
    return x.is_cuda and HAS_TRITON and x.dtype != torch.float64


def in_one_kernel(definition: Definition) -> Definition:
    """The function of this definition, by one kernel where :func:`takes_kernel` says so of its first
    argument.

    There it is an op of torch, ``ltr::NAME``, which torch.compile passes on as it is, and a count of
    launches sees as one. On a GPU the op is the kernel of this name in :mod:`ltr.draws_kernels`, on
    a CPU the definition. It gives contiguous tensors, and has no gradient.
    """
    name = definition.__name__

    def defined(*args: Any) -> Tensor:
        return definition(*args).contiguous()

    def launched(*args: Any) -> Tensor:
        return _launched(name, defined, args)

    OPS.define(name + torch.library.infer_schema(definition, mutates_args=()))
    OPS.impl(name, defined, "CPU")
    OPS.impl(name, launched, "CUDA")
    torch.library.register_fake(f"ltr::{name}", defined, lib=OPS)
    op = getattr(torch.ops.ltr, name).default

    @functools.wraps(definition)
    def chosen(*args: Any) -> Tensor:
        return op(*args) if takes_kernel(args[0]) else definition(*args)

    return cast(Definition, chosen)


def _launched(name: str, definition: Callable[..., Tensor], args: tuple[Any, ...]) -> Tensor:
    """What the kernel of this name computes of these arguments, which are on a GPU.

    Where it can't be compiled or launched the definition computes it, and a warning says why. No
    kernel is tried again where the first launch of one has failed.
    """
    if not _faults:
        try:
            from ltr import draws_kernels  # imports Triton

            made = draws_kernels.LAUNCHES[name](*args)
        except torch.OutOfMemoryError:
            raise
        except Exception as fault:  # of Triton, of the C compiler, of a folder that is read-only…
            if name not in _launchable:
                _faults.append(fault)
            log.warning(
                "dropout is drawn by many small kernels, which is slower: Triton can't compile or launch its own: %s",
                fault,
            )
        else:
            _launchable.add(name)
            return made
    return definition(*args)


def kernel_fault() -> Exception | None:
    """Why no kernel is launched; None where none has failed."""
    return _faults[0] if _faults else None


_launchable: set[str] = set()  # names of kernels that were launched: what fails then may pass
_faults: list[Exception] = []  # of the first launch of a kernel, if it failed


def mixed(x: Tensor) -> Tensor:
    """A pseudo-random int64 for each int64, and another one for each other: SplitMix64's last step.

    References:
        Steele, Lea & Flood (2014), Fast splittable pseudorandom number generators.
    """
    x = (x ^ _shifted(x, 30)) * FIRST_FACTOR
    x = (x ^ _shifted(x, 27)) * SECOND_FACTOR
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """The int64 as unsigned numbers, shifted to the right."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def seed_of_step(seed: int, epoch: int, step: int) -> int:
    """A number of 63 bits for each step of a run.

    Args:
        seed: of the run.
        epoch, step: counted from 0; the step within the epoch.
    """
    bits = np.random.SeedSequence([seed, epoch, step]).generate_state(1, np.uint64)[0]
    return int(bits >> 1)


def keys_of_lists(seed: int, places: Tensor) -> Tensor:
    """``[B]`` int64, a key for each list of a training step.

    Args:
        seed: of the step.
        places: ``[B]`` int64, which lists of the step, over all processes, these are.
    """
    return keys_inside(torch.full_like(places, seed), places)


@in_one_kernel
def keys_inside(keys: Tensor, numbers: Tensor) -> Tensor:
    """Keys for the parts of something that has a key: of documents in a list, of tokens in a text.

    Args:
        keys: int64, of the wholes.
        numbers: int64, which part of its whole each is; of a shape that broadcasts with ``keys``.
    """
    return mixed(keys + (numbers + 1) * GOLDEN)


def draw_site(number: int) -> Tensor:
    """Bits ``[]`` int64 that stand for a layer of a model, by its number there.

    A tensor, and not a number: torch.compile would compile each layer anew for its own. It stays on
    the host, from where it is an argument of a kernel.
    """
    return torch.tensor((number + 1) * FIRST_FACTOR % 2**63, device="cpu")


@in_one_kernel
def keys_at_site(keys: Tensor, site: Tensor) -> Tensor:
    """Other keys for each layer of a model: ``site`` is its :func:`draw_site`."""
    return mixed(keys ^ site)
