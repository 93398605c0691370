"""Randomness keyed by image."""

import hashlib
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from shiftbench.metrics.draws import keyed_integers, keyed_sample


def test_every_part_of_the_key_matters() -> None:
    keys = [(0, "a", "bc"), (0, "ab", "c"), (1, "a", "bc"), (0, "a", "b"), (0, "", "abc")]
    draws = {tuple(keyed_integers(*key, 2)) for key in keys}
    assert len(draws) == len(keys)


def test_a_draw_is_for_ever() -> None:
    """SHAKE-128 of the documented text: a change here would change every stored result."""
    assert keyed_integers(0, "search", "image", 2) == keyed_integers(0, "search", "image", 5)[:2]
    digest = hashlib.shake_128(b"0:6:search:5:image").digest(8)
    assert keyed_integers(0, "search", "image", 1) == [int.from_bytes(digest, "little")]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 40), st.integers(0, 40), st.text(max_size=5))
def test_samples_are_distinct_and_sorted(a: int, b: int, key: str) -> None:
    count, population = sorted((a, b))
    sample = keyed_sample(0, "test", key, population, count)
    assert len(sample) == count
    assert sample == sorted(set(sample))
    assert set(sample) <= set(range(population))


def test_every_subset_is_equally_likely() -> None:
    trials, subsets = 6000, 10  # pairs out of five
    counts = Counter(tuple(keyed_sample(0, "test", str(i), 5, 2)) for i in range(trials))
    expected = trials / subsets
    chi_square = sum((counts[pair] - expected) ** 2 / expected for pair in counts)
    assert len(counts) == subsets
    assert chi_square < 27.9  # the 99.9% quantile with 9 degrees of freedom
