"""Intervals and tests against scipy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from shiftbench.statistics import Score, compare_paired, mcnemar, surely_differ, wilson

counts = st.tuples(st.integers(0, 3000), st.integers(0, 3000)).map(sorted).filter(lambda p: p[1])


@given(counts)
@settings(deadline=None)
def test_wilson_is_scipys(pair: list[int]) -> None:
    successes, n = pair
    score = wilson(successes, n)
    interval = binomtest(successes, n).proportion_ci(method="wilson")
    assert score.value == successes / n
    assert (score.low, score.high) == pytest.approx((interval.low, interval.high), abs=1e-12)
    assert 0 <= score.low <= score.value <= score.high <= 1
    assert score.n == n


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (3, 2), (-1, 2)])
def test_wilson_refuses_what_is_no_fraction(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="successes <= n"):
        wilson(successes, n)


@given(st.integers(0, 400), st.integers(0, 400))
@settings(deadline=None)
def test_mcnemar_is_the_exact_binomial_test(b: int, c: int) -> None:
    expected = binomtest(b, b + c, 0.5).pvalue if b + c else 1.0
    assert mcnemar(b, c) == pytest.approx(expected, rel=1e-9)
    assert mcnemar(b, c) == mcnemar(c, b)


def test_mcnemar_of_a_whole_validation_set_neither_overflows_nor_underflows() -> None:
    assert mcnemar(5000, 5200) == pytest.approx(binomtest(5000, 10200, 0.5).pvalue, rel=1e-9)
    assert 0 < mcnemar(0, 1000) < 1e-290


def test_mcnemar_refuses_negative_counts() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        mcnemar(-1, 2)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_a_paired_comparison_is_antisymmetric_and_holds_its_difference(
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


def test_the_paired_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    n, trials, p_first, p_second = 60, 2000, 0.05, 0.15  # each alone is right
    hits = 0
    for _ in range(trials):
        draw = rng.random(n)
        comparison = compare_paired(draw < p_first, draw > 1 - p_second)
        hits += comparison.low <= p_second - p_first <= comparison.high
    assert 0.93 < hits / trials < 0.98


def test_a_paired_comparison_refuses_other_images() -> None:
    with pytest.raises(ValueError, match="same images"):
        compare_paired([True], [True, False])


def test_scores_read_as_percent_and_compare_by_value() -> None:
    score = wilson(17, 24)
    assert str(score) == "70.8% [50.8, 85.1], n = 24"
    assert float(score) == score.value
    assert wilson(16, 24) < score


@pytest.mark.parametrize("value", [-2.0, 3.25])
def test_means_outside_0_and_1_are_left_to_the_images(value: float) -> None:
    scores = [Score(x, x - 0.1, x + 0.1, 40, "logits") for x in (value, value + 1)]
    assert not surely_differ(*scores)
