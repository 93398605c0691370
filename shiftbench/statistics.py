"""Uncertainty: intervals with images as the units, and paired tests that are consistent with them.

Correct and misclassified images are counted: Wilson's interval, McNemar's exact test. Other
outcomes per image, such as the change of a probability, have an interval for means of bounded
variables, and their paired differences have Student's t. For every comparison p < 0.05 exactly when
the 95% interval excludes 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

SIGNIFICANCE = 0.05
Z95 = 1.959963984540054  # the 97.5% quantile of the normal distribution


@dataclass(frozen=True)
class Score:
    """A fraction of images, or a mean of fractions per image, with its 95% interval.

    >>> score = wilson(9, 10)
    >>> score > 0.5, f"{score:.2f}", score > wilson(8, 10)
    (True, '0.90', True)
    >>> print(score)
    90.0% [59.6, 98.2], n = 10
    """

    value: float
    low: float
    high: float
    n: int  # number of images

    def __float__(self) -> float:
        return self.value

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else str(self)

    def __lt__(self, other: Score | float) -> bool:
        return self.value < float(other)

    def __le__(self, other: Score | float) -> bool:
        return self.value <= float(other)

    def __gt__(self, other: Score | float) -> bool:
        return self.value > float(other)

    def __ge__(self, other: Score | float) -> bool:
        return self.value >= float(other)

    def __str__(self) -> str:
        return f"{self.text()}% {self.interval()}, n = {self.n}"

    def text(self) -> str:
        """Return the value in percent.

        >>> wilson(9, 10).text()
        '90.0'
        """
        return f"{100 * self.value:.1f}"

    def interval(self) -> str:
        """Return the interval in percent.

        >>> wilson(9, 10).interval()
        '[59.6, 98.2]'
        """
        return f"[{100 * self.low:.1f}, {100 * self.high:.1f}]"


def wilson(successes: float, n: int) -> Score:
    """Compute the Wilson score interval of `successes` out of `n`.

    Successes may be fractional: the interval is then conservative.

    >>> score = wilson(9, 10)
    >>> round(score.low, 3), round(score.high, 3)
    (0.596, 0.982)
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"expected 0 <= successes <= n and n > 0, got {successes} of {n}")
    return _wilson(successes / n, n)


def _wilson(p: float, n: int) -> Score:
    """Compute Wilson's interval of a fraction `p` of `n` images."""
    z2 = Z95**2
    center = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return _around(p, center - half, center + half, n)


def _around(value: float, low: float, high: float, n: int) -> Score:
    """Build a score whose interval contains its value, however the ends are rounded."""
    return Score(value, min(value, max(0.0, low)), max(value, min(1.0, high)), n)


def mean_score(outcomes: ArrayLike) -> Score:
    """Compute the mean of one outcome in [0, 1] per image, with images as the units.

    Outcomes of 0 and 1 give the Wilson interval. Outcomes between them, such as the change of a
    probability, may be skewed: a few images that change much may all be missing from a small
    sample. Their interval is the bound of Gaffke (2005) for means of bounded variables. The upper
    end is a quantile of the mean under random (Dirichlet) weights after one image with an outcome
    of 1 is added; the lower end, after one with 0 is added. The distribution of that mean is
    approximated by the Beta distribution of equal mean and variance, which is exact for outcomes of
    0 and 1: Clopper and Pearson's interval. `benchmarks/coverage.py` measures the coverage.

    >>> mean_score([1, 1, 0, 1]) == wilson(3, 4)
    True
    >>> mean_score([0.5, 1.0] * 20).low > mean_score([0.0, 1.0, 1.0, 1.0] * 10).low
    True
    """
    values = np.asarray(outcomes, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"expected an outcome in [0, 1] per image, got {values!r:.80}")
    n, mean = len(values), float(values.mean())
    if _is_binary(values):
        return wilson(int(values.sum()), n)
    variance = float(values.var())
    # By symmetry the lower end is the upper end of 1 - outcome.
    return _around(mean, 1 - _upper_end(1 - mean, variance, n), _upper_end(mean, variance, n), n)


def _upper_end(mean: float, variance: float, n: int) -> float:
    """Return the upper end of Gaffke's 95% interval, with a Beta approximation."""
    from scipy.special import betaincinv

    count = n + 1  # with the added outcome of 1
    center = (n * mean + 1) / count
    spread = (n * (variance + mean**2) + 1) / count - center**2
    if center >= 1 or spread <= 0:  # by rounding, for outcomes next to 1
        return 1.0
    weight = center * (1 - center) / (spread / (count + 1)) - 1
    return float(betaincinv(center * weight, (1 - center) * weight, 0.975))


def _student_quantile(freedom: int) -> float:
    """Return the 97.5% quantile of Student's distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def _student_p_value(mean: float, error: float, freedom: int) -> float:
    """Return the two-sided p-value of a true mean of 0."""
    if error == 0:
        return float(mean == 0)
    from scipy.special import stdtr

    return 2 * float(stdtr(freedom, -abs(mean / error)))


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of the exact McNemar test.

    If two models are equally good, each image that exactly one of them classifies correctly is a
    fair coin.

    Args:
        only_first: Images that only the first model classifies correctly.
        only_second: Images that only the second model classifies correctly.

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
    p_value: float  # two-sided: exact McNemar for outcomes of 0 and 1, otherwise of the mean
    only_first: int  # images where the outcome of the first is larger
    only_second: int
    n: int

    @property
    def is_significant(self) -> bool:
        """True if equally good models differ as much in less than 5% of cases."""
        return self.p_value < SIGNIFICANCE


def compare_paired(first: ArrayLike, second: ArrayLike) -> PairedComparison:
    """Compare two models by their outcomes on the same images in the same order.

    Outcomes of 0 and 1: the exact McNemar test, and the interval of Agresti and Min (2005): Wald's,
    after half an image is added to each of the four cells of the table, which makes its coverage
    near 95% for few images and few differences. It includes 0 unless the test rejects equality.
    Other outcomes: Student's interval of the mean difference and its p-value; the variance counts
    one more image, of a single draw.

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
    if _is_binary(a) and _is_binary(b):
        center = float(change.sum()) / (n + 2)
        spread = (float((change**2).sum()) + 1) / (n + 2) - center**2
        half = Z95 * math.sqrt(spread / (n + 2))
        low, high = center - half, center + half
        p_value = mcnemar(only_first, only_second)
        if p_value >= SIGNIFICANCE:  # the exact test is the stricter one
            low, high = min(low, 0.0), max(high, 0.0)
    else:
        mean, single = float(change.mean()), float(sum(x.mean() * (1 - x.mean()) for x in (a, b)))
        error = math.sqrt((float(((change - mean) ** 2).sum()) + single) / (n + 1) / n)
        half = error * _student_quantile(n)
        low, high, p_value = mean - half, mean + half, _student_p_value(mean, error, n)
    return PairedComparison(
        difference=float(change.mean()),
        low=max(-1.0, low),
        high=min(1.0, high),
        p_value=p_value,
        only_first=only_first,
        only_second=only_second,
        n=n,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's method.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def differ_for_any_pairing(first: Score, second: Score, tests: float = 1) -> bool:
    """Return True if McNemar's test rejects equality however the correct images overlap.

    Scores that are far enough apart need no outcomes per image. False for other means than
    fractions of correct images.

    Args:
        first: A score.
        second: A score of the same images.
        tests: Factor of the p-value, of a correction for several tests.

    >>> differ_for_any_pairing(wilson(95, 100), wilson(60, 100))
    True
    >>> differ_for_any_pairing(wilson(9, 10), wilson(8, 10))
    False
    """
    if first.n != second.n:
        return False
    n, less, more = first.n, *sorted(round(score.value * score.n) for score in (first, second))
    if not 0 <= less <= more <= n or sorted((first, second)) != [wilson(less, n), wilson(more, n)]:
        return False
    difference = more - less
    discordant = 2 * min(more, n - less) - difference  # at most, and fewer lower the p-value
    # Hoeffding: p <= 2 exp(-difference^2 / (2 discordant)).
    return difference**2 > 2 * discordant * math.log(2 * tests / SIGNIFICANCE)


def _is_binary(values: NDArray[np.float64]) -> bool:
    return bool(((values == 0) | (values == 1)).all())
