"""Randomness keyed by image: a draw depends on its key alone, never on batch, order or process."""

from __future__ import annotations

import hashlib


def keyed_integers(seed: int, purpose: str, key: str, count: int) -> list[int]:
    """Returns `count` uniform 64-bit integers that follow from (seed, purpose, key).

    A hash instead of a generator: its output is fixed by a standard (FIPS 202), where the streams
    of `random` and `numpy.random` may change between versions. Reducing modulo n has a bias of
    n / 2**64, far below anything that can be measured.
    """
    # The lengths keep ("a", "bc") and ("ab", "c") apart.
    text = f"{seed}:{len(purpose)}:{purpose}:{len(key)}:{key}"
    digest = hashlib.shake_128(text.encode()).digest(8 * count)
    return [int.from_bytes(digest[i : i + 8], "little") for i in range(0, 8 * count, 8)]


def keyed_sample(seed: int, purpose: str, key: str, population: int, count: int) -> list[int]:
    """Returns `count` distinct integers of range(population), sorted, uniform over all subsets."""
    assert 0 <= count <= population
    # Floyd's algorithm: as many draws as samples, and no list of the whole population.
    chosen: set[int] = set()
    numbers = keyed_integers(seed, purpose, key, count)
    for top, number in zip(range(population - count, population), numbers, strict=True):
        candidate = number % (top + 1)
        chosen.add(top if candidate in chosen else candidate)
    return sorted(chosen)
