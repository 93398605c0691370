"""Uncertainty: intervals with images as the units, and paired tests that agree with them.

Rights and wrongs are counted: Wilson's interval, McNemar's exact test. Shares of several draws have
Wilson's interval for as many images as give the same standard error. Every other mean may be skewed
and has the interval of Hall (1992), which transforms Student's t by the sample's skewness; a paired
difference has a p-value by the same transformation. For every comparison p < 0.05 exactly when the
95% interval excludes 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FRACTION = "fraction"
SIGNIFICANCE = 0.05
Z95 = 1.959963984540054  # the 97.5% quantile of the normal distribution
FEWEST_IMAGES = 10  # a mean of fewer unbounded outcomes has no interval: any would be a guess


@dataclass(frozen=True)
class Score:
    """A mean over images, most often a fraction, with its 95% interval.

    >>> score = wilson(9, 10)
    >>> score > 0.5, f"{score:.2f}", score > wilson(8, 10)
    (True, '0.90', True)
    """

    value: float
    low: float  # minus infinity where no interval is given
    high: float  # infinity where no interval is given
    n: int  # how many images it is a mean of
    unit: str = FRACTION  # a fraction is shown in percent; "" is a plain number

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
        unit = "%" if self.is_fraction else f" {self.unit}".rstrip()
        return f"{self.text()}{unit} {self.interval()}, n = {self.n}"

    @property
    def is_fraction(self) -> bool:
        """Whether people read it in percent.

        >>> wilson(9, 10).is_fraction
        True
        """
        return self.unit == FRACTION

    @property
    def has_interval(self) -> bool:
        """Whether there are enough images for an interval.

        >>> mean_score([1.5] * 9, unit="px").has_interval
        False
        """
        return math.isfinite(self.high)

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
        if not self.has_interval:
            return f"[none: n < {FEWEST_IMAGES}]"
        return f"[{self._number(self.low)}, {self._number(self.high)}]"

    def _number(self, value: float) -> str:
        return f"{100 * value:.1f}" if self.is_fraction else f"{value:.3g}"


def wilson(successes: float, n: int) -> Score:
    """The Wilson score interval of `successes` out of `n`.

    Images that succeed in part may count so: the interval is then on the safe side.

    >>> score = wilson(9, 10)
    >>> round(score.low, 3), round(score.high, 3)
    (0.596, 0.982)
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"expected 0 <= successes <= n and n > 0, got {successes} of {n}")
    return _wilson(successes / n, n, n)


def _wilson(p: float, n: int, effective: float, z: float = Z95) -> Score:
    """Wilson's interval of a fraction `p` of `n` images that count as `effective` many."""
    z2 = z**2
    center = (p + z2 / (2 * effective)) / (1 + z2 / effective)
    spread = math.sqrt(p * (1 - p) / effective + z2 / (4 * effective * effective))
    half = z / (1 + z2 / effective) * spread
    # The interval holds its value and touches 0 or 1 exactly, however the ends are rounded.
    return Score(p, min(p, max(0.0, center - half)), max(p, min(1.0, center + half)), n)


def mean_score(outcomes: ArrayLike, *, unit: str = FRACTION) -> Score:
    """The mean of one outcome per image, with an interval that treats images as the units.

    Outcomes of 0 and 1 give the Wilson interval. Outcomes between them, such as the share of an
    image's random draws that agree, give Wilson's with the number of images that has the same
    standard error, and Student's quantile: the draws of one image are not independent. Their
    variance counts one more image, of a single draw, so that images which happen to be equal are
    not taken for certainty. Outcomes of another unit have Hall's interval, and none where there are
    fewer than `FEWEST_IMAGES`.

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
        low, high = _SkewedMean.of(values).interval()
        return Score(mean, low, high, n, "" if unit == FRACTION else unit)
    if _is_binary(values):
        return wilson(int(values.sum()), n)
    single = mean * (1 - mean)  # the variance of single draws
    ratio = float(values.var()) / single if single else 1.0
    return _wilson(mean, n, n * (n + 1) / (n * ratio + 1), _student_quantile(n))


@dataclass(frozen=True)
class _SkewedMean:
    """A mean whose distribution leans as its sample does: Hall's transformation of Student's t.

    For t = (mean - truth) / error and k = skewness / sqrt(n), the increasing function
    t + k t^2 / 3 + k^2 t^3 / 27 + k / 6 is nearer to Student's distribution than t is. It has a
    closed inverse, so that interval and p-value come from one formula.
    """

    mean: float
    error: float  # standard error; 0 where all outcomes are equal
    k: float  # skewness / sqrt(n)
    freedom: int  # degrees of freedom of Student's distribution; 0: too few images for anything

    @classmethod
    def of(cls, values: NDArray[np.float64], single: float | None = None) -> _SkewedMean:
        """The mean of an outcome per image.

        `single`, for shares of draws, is the variance of a single draw: one more image counts with
        it, so that images which happen to be equal are not taken for certainty.
        """
        n, mean = len(values), float(values.mean())
        apart = values - mean
        if single is None:
            freedom = n - 1 if n >= FEWEST_IMAGES else 0
            variance = float((apart**2).sum()) / max(n - 1, 1)
        else:
            freedom, variance = n, (float((apart**2).sum()) + single) / (n + 1)
        if variance <= (1e-12 * float(np.abs(values).max())) ** 2:  # equal, but for rounding
            return cls(mean, 0.0, 0.0, freedom)
        deviation = math.sqrt(variance)
        skewness = float(((apart / deviation) ** 3).mean())
        return cls(mean, deviation / math.sqrt(n), skewness / math.sqrt(n), freedom)

    def interval(self) -> tuple[float, float]:
        """The 95% interval; unbounded where there are too few images."""
        if not self.freedom:
            return -math.inf, math.inf
        quantile = _student_quantile(self.freedom)
        low, high = (self.mean - self.error * self._student_t(q) for q in (quantile, -quantile))
        # It holds the mean, since |k| <= 1, however its ends are rounded.
        return min(self.mean, low), max(self.mean, high)

    def _student_t(self, transformed: float) -> float:
        """The inverse of the transformation."""
        if abs(self.k) < 1e-9:
            return transformed
        root = float(np.cbrt(1 + self.k * (transformed - self.k / 6)))
        return 3 * (root - 1) / self.k

    def p_value(self) -> float:
        """Two-sided, of a true mean of 0: below 5% exactly when the interval excludes 0."""
        if not self.freedom:
            return 1.0
        if self.error == 0:
            return float(self.mean == 0)
        from scipy.special import stdtr  # here: only means of other outcomes than 0 and 1 need it

        t, k = self.mean / self.error, self.k
        transformed = t + k * t**2 / 3 + k**2 * t**3 / 27 + k / 6
        return 2 * float(stdtr(self.freedom, -abs(transformed)))


def _student_quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided p-value of the exact McNemar test.

    If two models are equally good, each image that exactly one of them gets right is a fair coin:
    `only_first` were right by the first model alone, `only_second` by the second.

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
    p_value: float  # two-sided: exact McNemar for rights and wrongs, otherwise of the mean
    only_first: int  # images where the first alone is right, or has the larger outcome
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

    Rights and wrongs: the exact McNemar test, and Agresti and Min's interval (2005): Wald's, after
    half an image is added to each of the four cells of the table, which keeps its coverage near 95%
    for few images and few differences, and up to 0 unless the test rejects equality. All other
    outcomes: Hall's interval of the mean difference, and the p-value of the same transformation.

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
    bounded = unit == FRACTION and is_bounded(a, b)
    if bounded and _is_binary(a) and _is_binary(b):
        center = float(change.sum()) / (n + 2)
        spread = (float((change**2).sum()) + 1) / (n + 2) - center**2
        half = Z95 * math.sqrt(spread / (n + 2))
        low, high = center - half, center + half
        p_value = mcnemar(only_first, only_second)
        if p_value >= SIGNIFICANCE:  # the exact test is the stricter one
            low, high = min(low, 0.0), max(high, 0.0)
    else:
        single = float(sum(x.mean() * (1 - x.mean()) for x in (a, b))) if bounded else None
        skewed = _SkewedMean.of(change, single)
        (low, high), p_value = skewed.interval(), skewed.p_value()
    return PairedComparison(
        difference=float(change.mean()),
        low=max(-1.0, low) if bounded else low,
        high=min(1.0, high) if bounded else high,
        p_value=p_value,
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
    if not 0 <= less <= more <= n or sorted((first, second)) != [wilson(less, n), wilson(more, n)]:
        return False
    difference = more - less
    discordant = 2 * min(more, n - less) - difference  # at most, and fewer lower the p-value
    # Hoeffding: p <= 2 exp(-difference^2 / (2 discordant)).
    return difference**2 > 2 * discordant * math.log(2 / SIGNIFICANCE)


def _is_binary(values: NDArray[np.float64]) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def is_bounded(*outcomes: NDArray[np.float64]) -> bool:
    """Whether all outcomes lie in [0, 1]."""
    return all(values.min() >= 0 and values.max() <= 1 for values in outcomes)
