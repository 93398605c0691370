"""Uncertainty of what is measured: Wilson intervals, and exact McNemar for paired models."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z95 = 1.959963984540054  # the 97.5% quantile of the normal distribution


@dataclass(frozen=True)
class Score:
    """A fraction with its Wilson 95% interval."""

    value: float
    low: float
    high: float
    n: int  # how many images (or draws) it is a fraction of


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
