"""Uncertainty: intervals with images as the units, and exact tests for paired models."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FRACTION = "fraction"
SIGNIFICANCE = 0.05
Z95 = 1.959963984540054  # the 97.5% quantile of the normal distribution


@dataclass(frozen=True, order=True)
class Score:
    """A mean over images, most often a fraction, with its 95% interval."""

    value: float
    low: float
    high: float
    n: int  # how many images it is a mean of
    unit: str = FRACTION  # a fraction is shown in percent; "" is a plain number

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        unit = "%" if self.is_fraction else f" {self.unit}".rstrip()
        return f"{self.text()}{unit} {self.interval()}, n = {self.n}"

    @property
    def is_fraction(self) -> bool:
        """Whether people read it in percent.

        >>> wilson(9, 10).is_fraction
        True
        """
        return self.unit == FRACTION

    def text(self) -> str:
        """The value for people: a fraction in percent, anything else as it is.

        >>> wilson(9, 10).text()
        '90.0'
        """
        return self._number(self.value)

    def interval(self) -> str:
        """The interval for people.

        >>> wilson(9, 10).interval()
        '[59.6, 98.2]'
        """
        return f"[{self._number(self.low)}, {self._number(self.high)}]"

    def _number(self, value: float) -> str:
        return f"{100 * value:.1f}" if self.is_fraction else f"{value:.3g}"


def wilson(successes: int, n: int) -> Score:
    """The Wilson score interval of `successes` out of `n`.

    >>> score = wilson(9, 10)
    >>> round(score.low, 3), round(score.high, 3)
    (0.596, 0.982)
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"expected 0 <= successes <= n and n > 0, got {successes} of {n}")
    return _wilson(successes / n, n, n)


def _wilson(p: float, n: int, effective: float) -> Score:
    """Wilson's interval of a fraction `p` of `n` images that count as `effective` many."""
    z2 = Z95**2
    center = (p + z2 / (2 * effective)) / (1 + z2 / effective)
    spread = math.sqrt(p * (1 - p) / effective + z2 / (4 * effective * effective))
    half = Z95 / (1 + z2 / effective) * spread
    # The interval holds its value and touches 0 or 1 exactly, however the ends are rounded.
    return Score(p, min(p, max(0.0, center - half)), max(p, min(1.0, center + half)), n)


def mean_score(outcomes: ArrayLike, *, unit: str = FRACTION) -> Score:
    """The mean of one outcome per image, with an interval that treats images as the units.

    Outcomes of 0 and 1 give the Wilson interval. Outcomes between them, such as the share of an
    image's random draws that agree, give Wilson's with the number of images that has the same
    standard error: the draws of one image are not independent. Their variance counts one more
    image, of a single draw, so that images which happen to be equal are not taken for certainty.
    Outcomes of another unit have a bootstrap interval over images, the same one at every call.

    >>> mean_score([1, 1, 0, 1]) == wilson(3, 4)
    True
    >>> mean_score([0.5, 1.0, 0.5, 1.0]).low > mean_score([0.0, 1.0, 1.0, 1.0]).low
    True
    """
    values = np.asarray(outcomes, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
        raise ValueError(f"expected a finite outcome per image, got shape {values.shape}")
    n, mean = len(values), float(values.mean())
    if unit != FRACTION or not is_bounded(values):
        return _bootstrap(values, "" if unit == FRACTION else unit)
    if np.isin(values, (0.0, 1.0)).all():
        return wilson(int(values.sum()), n)
    single = mean * (1 - mean)  # the variance of single draws
    ratio = float(values.var()) / single if single else 1.0
    return _wilson(mean, n, n * (n + 1) / (n * ratio + 1))


def _bootstrap(values: NDArray[np.float64], unit: str, rounds: int = 2000) -> Score:
    """Percentile interval of the mean over resampled images, a few rounds at a time."""
    generator = np.random.default_rng(0)
    n, block = len(values), max(1, 2_000_000 // len(values))
    means = np.concatenate(
        [
            values[generator.integers(n, size=(min(block, rounds - done), n))].mean(1)
            for done in range(0, rounds, block)
        ]
    )
    low, high = np.quantile(means, [0.025, 0.975])
    mean = float(values.mean())  # equal values: rounding must not push it out of its interval
    return Score(mean, min(mean, float(low)), max(mean, float(high)), n, unit)


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided p-value of the exact McNemar test.

    If two models are equally good, each image that exactly one of them gets right is a fair coin.

    Args:
        only_first: How many images the first model alone gets right.
        only_second: How many the second alone.

    >>> mcnemar(0, 5)
    0.0625
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
    """Two models on the same images.

    >>> compare_paired([1, 0, 1], [1, 0, 1]).is_significant
    False
    """

    difference: float  # mean outcome of the second minus that of the first
    low: float  # 95% interval of the difference
    high: float
    p_value: float  # exact McNemar, two-sided; for outcomes between 0 and 1, the exact sign test
    only_first: int  # images where the first alone is right, or the better
    only_second: int
    n: int

    @property
    def is_significant(self) -> bool:
        """Whether equally good models would differ so much in less than 5% of cases."""
        return self.p_value < SIGNIFICANCE


def compare_paired(
    first: ArrayLike, second: ArrayLike, *, unit: str = FRACTION
) -> PairedComparison:
    """Compares two models by their outcomes on the same images in the same order.

    The interval is Agresti and Min's (2005): Wald's, after half an image is added to each of the
    four cells of the table, which keeps its coverage near 95% for few images and few differences.
    Outcomes of another unit than fractions have a bootstrap interval over images.
    The p-value counts the images on which one model is better: right and wrong answers give
    McNemar's test, shares of draws the sign test, of which it is the special case.

    >>> compared = compare_paired([1, 1, 1, 0], [1, 0, 0, 0])
    >>> compared.difference, compared.only_first, compared.p_value
    (-0.5, 2, 0.5)
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1 or len(a) == 0:
        raise ValueError(
            f"expected two lists of outcomes on the same images, got {a.shape} and {b.shape}"
        )
    change, n = b - a, len(a)
    only_first, only_second = int((change < 0).sum()), int((change > 0).sum())
    if unit == FRACTION and is_bounded(a, b):
        center = float(change.sum()) / (n + 2)
        spread = (float((change**2).sum()) + 1) / (n + 2) - center**2
        half = Z95 * math.sqrt(spread / (n + 2))
        low, high = max(-1.0, center - half), min(1.0, center + half)
    else:
        resampled = _bootstrap(change, unit)
        low, high = resampled.low, resampled.high
    return PairedComparison(
        difference=float(change.mean()),
        low=low,
        high=high,
        p_value=mcnemar(only_first, only_second),
        only_first=only_first,
        only_second=only_second,
        n=n,
    )


def differ_for_any_pairing(first: Score, second: Score) -> bool:
    """Whether McNemar's test is significant however the images of two scores overlap.

    The test needs the images; where scores lie far enough apart they alone decide. False where
    they do not, and for means of anything but right and wrong answers.

    >>> differ_for_any_pairing(wilson(95, 100), wilson(60, 100))
    True
    >>> differ_for_any_pairing(wilson(9, 10), wilson(8, 10))
    False
    """
    if not (first.is_fraction and second.is_fraction and first.n == second.n):
        return False
    n, less, more = first.n, *sorted(round(score.value * score.n) for score in (first, second))
    if first.n != second.n or not 0 <= less <= more <= n:
        return False
    if sorted((first, second)) != [wilson(less, n), wilson(more, n)]:
        return False
    difference = more - less
    discordant = 2 * min(more, n - less) - difference  # at most, and fewer lower the p-value
    # Hoeffding: p <= 2 exp(-difference^2 / (2 discordant)).
    return difference**2 > 2 * discordant * math.log(2 / SIGNIFICANCE)


def is_bounded(*outcomes: NDArray[np.float64]) -> bool:
    """Whether all outcomes lie in [0, 1]."""
    return all(values.min() >= 0 and values.max() <= 1 for values in outcomes)
