"""Keys: numbers from which random draws follow, so that they don't depend on which process draws.

A draw that follows from a generator depends on all draws before it, and so on what else a process
holds. A key is a function of the run's seed, the step, and the place of what it belongs to.

Letters of shapes: B lists of a batch.
"""

import numpy as np
import torch
from torch import Tensor

# The odd numbers of SplitMix64, as int64.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
FIRST_FACTOR = 0xBF58476D1CE4E5B9 - 2**64
SECOND_FACTOR = 0x94D049BB133111EB - 2**64


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


def keys_inside(keys: Tensor, numbers: Tensor) -> Tensor:
    """Keys for the parts of something that has a key: of documents in a list, of tokens in a text.

    Args:
        keys: int64, of the wholes.
        numbers: int64, which part of its whole each is; of a shape that broadcasts with ``keys``.
    """
    return mixed(keys + (numbers + 1) * GOLDEN)


def keys_at_site(keys: Tensor, site: int) -> Tensor:
    """Other keys for each layer of a model: ``site`` is its number."""
    return mixed(keys ^ (site + 1) * FIRST_FACTOR % 2**63)
