"""Uncertainty of what is measured: Wilson intervals, and exact McNemar for paired models."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

Z95 = 1.959963984540054  # the 97.5% quantile of the normal distribution


@dataclass(frozen=True, order=True)
class Score:
    """A fraction with its Wilson 95% interval."""

    value: float
    low: float
    high: float
    n: int  # how many images (or draws) it is a fraction of

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        low, high = 100 * self.low, 100 * self.high
        return f"{100 * self.value:.1f}% [{low:.1f}, {high:.1f}], n = {self.n}"


def wilson(successes: int, n: int) -> Score:
    """The Wilson score interval of `successes` out of `n`."""
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"expected 0 <= successes <= n and n > 0, got {successes} of {n}")
    p = successes / n
    z2 = Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    # At the ends the interval touches 0 or 1 exactly; rounding must not push it inside.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Score(value=p, low=low, high=high, n=n)


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided p-value of the exact McNemar test.

    If two models are equally good, each image that exactly one of them gets right is a fair coin.

    Args:
        only_first: How many images the first model alone gets right.
        only_second: How many the second alone.
    """
    if only_first < 0 or only_second < 0:
        raise ValueError(f"expected counts of 0 or more, got {only_first} and {only_second}")
    n = only_first + only_second
    # Python integers are exact, and dividing two of them rounds once, however large they are.
    ways, tail = 1, 0
    for i in range(min(only_first, only_second) + 1):
        tail += ways
        ways = ways * (n - i) // (i + 1)
    p_value: float = 2 * tail / 2**n
    return min(1.0, p_value)


@dataclass(frozen=True)
class PairedComparison:
    """Two models on the same images."""

    difference: float  # the fraction the second gets right minus the fraction the first does
    low: float  # 95% interval of the difference
    high: float
    p_value: float  # exact McNemar, two-sided
    only_first: int  # images the first alone gets right
    only_second: int
    n: int


def compare_paired(first: ArrayLike, second: ArrayLike) -> PairedComparison:
    """Compares two models by their outcomes, right or wrong, on the same images in the same order.

    The interval is Agresti and Min's (2005): Wald's, after half an image is added to each of the
    four cells of the table, which keeps its coverage near 95% for few images and few differences.
    """
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if a.shape != b.shape or a.ndim != 1 or len(a) == 0:
        raise ValueError(
            f"expected two lists of outcomes on the same images, got {a.shape} and {b.shape}"
        )
    only_first, only_second, n = int((a & ~b).sum()), int((b & ~a).sum()), len(a)
    centre = (only_second - only_first) / (n + 2)
    spread = (only_first + only_second + 1) / (n + 2) - centre**2
    half = Z95 * math.sqrt(spread / (n + 2))
    return PairedComparison(
        difference=(only_second - only_first) / n,
        low=max(-1.0, centre - half),
        high=min(1.0, centre + half),
        p_value=mcnemar(only_first, only_second),
        only_first=only_first,
        only_second=only_second,
        n=n,
    )
