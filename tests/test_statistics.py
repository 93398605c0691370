"""Intervals and tests, compared with scipy."""

import re
import runpy
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta as scipy_beta
from scipy.stats import binomtest

from shiftbench.statistics import (
    Z95,
    compare_paired,
    differ_for_any_pairing,
    holm,
    mcnemar,
    mean_score,
    wilson,
)

ROOT = Path(__file__).parents[1]
SIMULATION = runpy.run_path(str(ROOT / "benchmarks" / "coverage.py"))
LEAST = SIMULATION["LEAST"]

counts = st.tuples(st.integers(0, 3000), st.integers(0, 3000)).map(sorted).filter(lambda p: p[1])


@given(counts)
@settings(deadline=None)
def test_wilson_equals_scipy(pair: list[int]) -> None:
    successes, n = pair
    score = wilson(successes, n)
    interval = binomtest(successes, n).proportion_ci(method="wilson")
    assert score.value == successes / n
    assert (score.low, score.high) == pytest.approx((interval.low, interval.high), abs=1e-12)
    assert 0 <= score.low <= score.value <= score.high <= 1
    assert score.n == n


@given(st.integers(0, 400), st.integers(0, 400))
@settings(deadline=None)
def test_mcnemar_equals_exact_binomial_test(b: int, c: int) -> None:
    expected = binomtest(b, b + c, 0.5).pvalue if b + c else 1.0
    assert mcnemar(b, c) == pytest.approx(expected, rel=1e-9)
    assert mcnemar(b, c) == mcnemar(c, b)


def test_mcnemar_of_large_counts_does_not_overflow() -> None:
    assert mcnemar(5000, 5200) == pytest.approx(binomtest(5000, 10200, 0.5).pvalue, rel=1e-9)
    assert 0 < mcnemar(0, 1000) < 1e-290


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_paired_comparison_is_antisymmetric_and_contains_its_difference(
    outcomes: list[tuple[bool, bool]],
) -> None:
    first, second = zip(*outcomes, strict=True)
    one, other = compare_paired(first, second), compare_paired(second, first)
    assert one.difference == -other.difference
    assert one.difference == pytest.approx(np.mean(second) - np.mean(first))
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert -1 <= one.low <= one.difference <= one.high <= 1
    assert one.p_value == mcnemar(one.only_first, one.only_second)
    assert (one.only_first, one.only_second) == (other.only_second, other.only_first)


def test_paired_binary_interval_excludes_zero_exactly_if_significant() -> None:
    """Every table of up to 40 images."""
    for n in (1, 5, 12, 25, 40):
        for b, c in product(range(n + 1), repeat=2):
            if b + c <= n:
                first, second = np.zeros(n), np.zeros(n)
                first[:b], second[b : b + c] = 1, 1
                compared = compare_paired(first, second)
                assert compared.is_significant == (compared.low > 0 or compared.high < 0)


def test_paired_interval_has_nominal_coverage() -> None:
    rng = np.random.default_rng(0)
    n, trials, p_first, p_second = 60, 2000, 0.05, 0.15  # correct by one alone
    hits = 0
    for _ in range(trials):
        draw = rng.random(n)
        comparison = compare_paired(draw < p_first, draw > 1 - p_second)
        hits += comparison.low <= p_second - p_first <= comparison.high
    assert 0.93 < hits / trials < 0.98


def test_score_prints_percent_and_compares_by_value() -> None:
    score = wilson(17, 24)
    assert str(score) == "70.8% [50.8, 85.1], n = 24"
    assert float(score) == score.value
    assert f"{score:.3f}" == "0.708"
    assert f"{score}" == str(score)
    assert wilson(16, 24) < score < wilson(18, 24)
    assert 0.7 < score <= 17 / 24
    assert score >= 0.5


fractions = st.lists(st.floats(0, 1), min_size=1, max_size=40)


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_mean_of_binary_outcomes_has_wilson_interval(outcomes: list[bool]) -> None:
    assert mean_score(outcomes) == wilson(sum(outcomes), len(outcomes))


@given(fractions)
def test_mean_is_inside_a_nonempty_interval(outcomes: list[float]) -> None:
    score = mean_score(outcomes)
    assert score.value == pytest.approx(np.mean(outcomes))
    assert 0 <= score.low <= score.value <= score.high <= 1
    assert score.low < score.high
    assert score.n == len(outcomes)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=60))
def test_mean_of_draws_counts_images_not_draws(agreed: list[int]) -> None:
    """The interval is between those of as many images with one draw, and of every draw alone."""
    shares = [count / 5 for count in agreed]
    clustered, n = mean_score(shares), len(agreed)
    p = sum(agreed) / (5 * n)
    width = clustered.high - clustered.low
    assert width <= clopper_pearson_width(p, n) + 1e-9
    if np.var(shares) >= p * (1 - p) / 5 and 0 < p < 1:  # as independent draws, or more
        assert width >= wilson_width(p, 5 * n, Z95) - 1e-9


def clopper_pearson_width(p: float, n: int) -> float:
    """Compute the width of the interval of p n correct images from its formula."""
    low = scipy_beta.ppf(0.025, p * n, n - p * n + 1) if p > 0 else 0.0
    high = scipy_beta.ppf(0.975, p * n + 1, n - p * n) if p < 1 else 1.0
    return float(high - low)


def wilson_width(p: float, n: int, z: float) -> float:
    """Compute the width of Wilson's interval from its formula."""
    z2 = z**2
    return 2 * np.sqrt(z2 * p * (1 - p) / n + z2**2 / (4 * n**2)) / (1 + z2 / n)


@pytest.mark.parametrize("images", [5, 10, 20, 30, 80])
@pytest.mark.parametrize(
    "agreement",  # Beta distributions of the agreement of an image
    [(0.6, 0.2), (1.0, 0.1), (0.5, 0.5), (0.05, 0.01), (5.0, 0.5)],
)
def test_clustered_interval_has_nominal_coverage(
    images: int, agreement: tuple[float, float]
) -> None:
    """With intervals of single draws it is in the first case and 80 images less than 60%."""
    rng = np.random.default_rng(3)
    truth, draws, trials = agreement[0] / sum(agreement), 20, 600
    scores = [
        mean_score(rng.binomial(draws, rng.beta(*agreement, images)) / draws) for _ in range(trials)
    ]
    hits = sum(score.low <= truth <= score.high for score in scores)
    assert hits / trials >= 0.93
    assert hits / trials < 0.995 or images < 80


@pytest.mark.parametrize("n", SIMULATION["SIZES"])
@pytest.mark.parametrize("outcomes", SIMULATION["DISTRIBUTIONS"], ids=lambda one: one.name)
def test_mean_score_interval_covers_skewed_distributions(outcomes: Any, n: int) -> None:
    """Wilson's interval for an effective number of images covered 0.51 of rare changes at n=50."""
    inside, width = SIMULATION["coverage"](outcomes, n, trials=400)
    assert inside >= LEAST - 0.02  # two standard errors of 400 trials
    assert width < 4 / np.sqrt(n)


def test_coverage_table_in_docs_is_valid() -> None:
    text = (ROOT / "docs" / "explanation" / "statistics.md").read_text()
    (sizes,) = {line.count("n=") for line in text.splitlines() if line.startswith("| outcomes |")}
    for outcomes in SIMULATION["DISTRIBUTIONS"]:
        (row,) = (line for line in text.splitlines() if line.startswith(f"| {outcomes.name} |"))
        cells = [float(cell) for cell in re.findall(r"(\d\.\d{3}) \(", row)]
        assert len(cells) == sizes
        assert min(cells) >= LEAST


@pytest.mark.parametrize("n", [10, 25, 120])
def test_paired_interval_excludes_zero_exactly_if_significant(n: int) -> None:
    """Random skewed data whose means differ a little: about half of them significantly."""
    rng = np.random.default_rng(n)
    significant = 0
    for _ in range(500):
        first, effect = rng.beta(0.3, 2.0, n), rng.normal(0, 0.15)
        second = np.clip(first + rng.exponential(0.2, n) - 0.2 + effect, 0, 1)
        one, other = compare_paired(first, second), compare_paired(second, first)
        assert one.is_significant == (one.low > 0 or one.high < 0)
        assert one.low <= one.difference <= one.high
        assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
        assert one.p_value == pytest.approx(other.p_value)
        significant += one.is_significant
    assert 50 < significant < 480


def test_paired_test_of_equal_means_with_skewed_differences_rarely_rejects() -> None:
    """Most differences have one sign: a sign test rejects equal means in nearly every sample."""
    rng, trials, n = np.random.default_rng(4), 600, 120
    rejected = 0
    for _ in range(trials):
        change = rng.exponential(0.02, n) - 0.02
        rejected += compare_paired(np.full(n, 0.4), 0.4 + change).is_significant
    assert rejected / trials < 0.08


def test_paired_equal_fractions_have_a_nonempty_interval() -> None:
    alike = np.full(40, 0.8)
    same = compare_paired(alike, alike)
    assert same.low < 0 < same.high
    assert same.p_value == 1.0
    assert (same.only_first, same.only_second, same.n) == (0, 0, 40)


def test_differ_for_any_pairing_implies_significance_of_every_pairing() -> None:
    """Checked against every table of 30 images: no pairing may be insignificant."""
    n, sure = 30, 0
    for a, b in product(range(n + 1), repeat=2):
        sure_of = differ_for_any_pairing(wilson(a, n), wilson(b, n))
        assert sure_of == differ_for_any_pairing(wilson(b, n), wilson(a, n))
        if sure_of:
            sure += 1
            both = range(max(0, a + b - n), min(a, b) + 1)  # images that both classify correctly
            assert all(mcnemar(a - k, b - k) < 0.05 for k in both)
    assert sure > 100


def test_differ_for_any_pairing_is_false_for_other_means() -> None:
    high, low = mean_score([0.9] * 50), mean_score([0.1] * 50)
    assert not differ_for_any_pairing(high, low)
    assert not differ_for_any_pairing(wilson(50, 50), wilson(0, 40))
    assert not differ_for_any_pairing(wilson(30, 50), wilson(10, 50), tests=10**9)


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        *((partial(wilson, *counts), "successes <= n") for counts in ((0, 0), (3, 2), (-1, 2))),
        (partial(mcnemar, -1, 2), "0 or more"),
        (partial(compare_paired, [True], [True, False]), "same images"),
        *(
            (partial(mean_score, outcomes), r"an outcome in \[0, 1\] per image")
            for outcomes in ([], [0.5, float("nan")], [[1, 0]], [0.5, 1.5])
        ),
    ],
)
def test_statistics_bad_input_raises(compute: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compute()


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_rejects_as_the_step_down_procedure(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    rejecting = True
    for rank, index in enumerate(order):
        rejecting = rejecting and p_values[index] * (len(p_values) - rank) < 0.05
        assert (adjusted[index] < 0.05) == rejecting
        assert p_values[index] <= adjusted[index] <= 1
