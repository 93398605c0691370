"""Coverage and width of the 95% intervals of scores, in a simulation.

    python benchmarks/coverage.py [--trials 10000]

A score is a mean of one outcome in [0, 1] per image. For each distribution of outcomes and each
number of images, samples are drawn, and the fraction of intervals that contain the true mean is
counted, beside their median width. The table is part of docs/explanation/statistics.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shiftbench.statistics import mean_score

SIZES = (10, 20, 50, 200, 1000)
LEAST = 0.93  # coverage that every cell must have
Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


@dataclass(frozen=True)
class Outcomes:
    """A distribution of outcomes per image."""

    name: str
    mean: float
    draw: Draw  # of a generator and a number of images


def beta(a: float, b: float) -> Outcomes:
    """Return a Beta distribution."""
    return Outcomes(f"Beta({a:g}, {b:g})", a / (a + b), lambda rng, n: rng.beta(a, b, n))


def two_point(rare: float, low: float, high: float) -> Outcomes:
    """Return a distribution of two values, of which `high` has the probability `rare`."""
    return Outcomes(
        f"{high:g} for {rare:.0%}, else {low:g}",
        rare * high + (1 - rare) * low,
        lambda rng, n: np.where(rng.random(n) < rare, high, low),
    )


def zero_inflated(zeros: float, a: float, b: float) -> Outcomes:
    """Return a distribution of zeros and a Beta distribution."""
    return Outcomes(
        f"0 for {zeros:.0%}, else Beta({a:g}, {b:g})",
        (1 - zeros) * a / (a + b),
        lambda rng, n: np.where(rng.random(n) < zeros, 0.0, rng.beta(a, b, n)),
    )


DISTRIBUTIONS = (
    beta(2, 2),
    beta(0.5, 5),
    beta(0.1, 2),
    beta(20, 1),
    two_point(0.02, 0.001, 0.9),
    two_point(0.1, 0.01, 0.5),
    two_point(0.5, 0.25, 0.75),
    zero_inflated(0.5, 1, 3),
    zero_inflated(0.9, 1, 4),
    zero_inflated(0.98, 5, 2),
)


def coverage(outcomes: Outcomes, n: int, trials: int, seed: int = 0) -> tuple[float, float]:
    """Return the fraction of intervals that contain the mean, and their median width."""
    rng = np.random.default_rng([seed, n, *outcomes.name.encode()])
    scores = [mean_score(outcomes.draw(rng, n)) for _ in range(trials)]
    inside = [score.low <= outcomes.mean <= score.high for score in scores]
    return float(np.mean(inside)), float(np.median([s.high - s.low for s in scores]))


def table(trials: int) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| outcomes | {' | '.join(f'n={n:,}' for n in SIZES)} |"
    yield f"| --- |{' ---: |' * len(SIZES)}"
    for outcomes in DISTRIBUTIONS:
        cells = (coverage(outcomes, n, trials) for n in SIZES)
        row = " | ".join(f"{inside:.3f} ({100 * width:.1f})" for inside, width in cells)
        yield f"| {outcomes.name} | {row} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Coverage of 95% intervals.")
    parser.add_argument("--trials", type=int, default=10_000)
    for line in table(parser.parse_args().trials):
        print(line, flush=True)


if __name__ == "__main__":
    main()
