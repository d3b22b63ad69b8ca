"""The random numbers that a loader draws: of each batch by its number, so that any one of them can be drawn again alone.

The generators that the training draws from are left as they were: what a step computes does not depend on how its batch was
found.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy
import torch

_SEED_BYTES = 7


def mixed(seed: int, *names: int | str) -> int:
    """Returns a seed that depends on all of these, and looks like none of them."""
    return _seed_of(repr((seed, *names)).encode())


def seed_of_now() -> int:
    """Returns a seed that depends on the state of torch's generator: the same on ranks that were seeded the same."""
    return _seed_of(torch.get_rng_state().numpy().tobytes())


def set_all(seed: int) -> None:
    """Sets the global generators of torch (the CPU's), python and numpy."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % (1 << 32))


@contextmanager
def drawn_apart(seed: int) -> Iterator[None]:
    """What is drawn inside from the global generators depends on the seed alone; outside nobody notices."""
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state(legacy=True)
    set_all(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        numpy.random.set_state(before[2])


def _seed_of(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=_SEED_BYTES).digest())
