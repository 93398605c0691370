"""Intervals and tests against scipy."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from shiftbench.statistics import (
    Score,
    compare_paired,
    differ_for_any_pairing,
    mcnemar,
    mean_score,
    wilson,
)

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


fractions = st.lists(st.floats(0, 1), min_size=1, max_size=40)


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_the_mean_of_rights_and_wrongs_has_wilsons_interval(outcomes: list[bool]) -> None:
    assert mean_score(outcomes) == wilson(sum(outcomes), len(outcomes))


@given(fractions)
def test_a_mean_lies_in_its_interval_and_no_sample_is_certain(outcomes: list[float]) -> None:
    score = mean_score(outcomes)
    assert score.value == pytest.approx(np.mean(outcomes))
    assert 0 <= score.low <= score.value <= score.high <= 1
    assert score.low < score.high
    assert score.n == len(outcomes)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=60))
def test_draws_of_one_image_are_not_independent(agreed: list[int]) -> None:
    """The interval lies between those of as many images with one draw, and of every draw alone."""
    shares = [count / 5 for count in agreed]
    clustered, n = mean_score(shares), len(agreed)
    independent = wilson(sum(agreed), 5 * n)
    single = mean_score_of_fraction(sum(agreed) / (5 * n), n)
    assert clustered.high - clustered.low <= single + 1e-9
    spread = np.var(shares) if 0 < sum(agreed) < 5 * n else 0
    p = independent.value
    if spread >= p * (1 - p) / 5 and 0 < p < 1:  # as different as independent draws, or more
        assert clustered.high - clustered.low >= independent.high - independent.low - 1e-9


def mean_score_of_fraction(p: float, n: int) -> float:
    """Width of Wilson's interval, written down from its formula."""
    z2 = 1.959963984540054**2
    return 2 * np.sqrt(z2 * p * (1 - p) / n + z2**2 / (4 * n**2)) / (1 + z2 / n)


def test_the_clustered_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Images differ in how often they agree; intervals of single draws cover far too rarely."""
    rng = np.random.default_rng(0)
    images, draws, trials = 80, 20, 1000
    hits = naive = 0
    for _ in range(trials):
        agrees = rng.beta(0.6, 0.2, images)  # most images always agree, some never do
        agreed = rng.binomial(draws, agrees)
        score = mean_score(agreed / draws)
        hits += score.low <= 0.75 <= score.high
        alone = wilson(int(agreed.sum()), images * draws)
        naive += alone.low <= 0.75 <= alone.high
    assert 0.92 < hits / trials < 0.98
    assert naive / trials < 0.6


def test_other_units_are_resampled_over_images_the_same_at_every_call() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 200)
    score = mean_score(values, unit="logits")
    assert score == mean_score(values, unit="logits")
    assert score.unit == "logits"
    half = 1.96 * values.std() / np.sqrt(200)
    expected = (values.mean() - half, values.mean() + half)
    assert (score.low, score.high) == pytest.approx(expected, abs=0.06)
    assert score.text() == f"{values.mean():.3g}"
    outside = mean_score([0.5, 1.5])
    assert not outside.is_fraction  # nobody reads more than everything in percent
    equal = mean_score([7.3] * 33, unit="px")
    assert equal.low <= equal.value <= equal.high
    small = mean_score([0.001, 0.003], unit="variance")  # within [0, 1], and yet no fraction
    assert small.text() == "0.002"


@pytest.mark.parametrize("outcomes", [[], [0.5, float("nan")], [[1, 0]]])
def test_a_mean_needs_a_finite_outcome_per_image(outcomes: list[float]) -> None:
    with pytest.raises(ValueError, match="finite outcome per image"):
        mean_score(outcomes)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=40))
def test_shares_of_draws_are_compared_by_the_sign_test(pairs: list[tuple[float, float]]) -> None:
    first, second = zip(*pairs, strict=True)
    found = compare_paired(first, second)
    more, less = (sum(sign * (b - a) > 0 for a, b in pairs) for sign in (1, -1))
    assert (found.only_second, found.only_first, found.n) == (more, less, len(pairs))
    expected = binomtest(more, more + less, 0.5).pvalue if more + less else 1.0
    assert found.p_value == pytest.approx(expected)
    assert found.difference == pytest.approx(np.mean(second) - np.mean(first), abs=1e-12)
    assert -1 <= found.low <= found.high <= 1


def test_differences_of_another_unit_do_not_depend_on_its_size() -> None:
    rng = np.random.default_rng(2)
    first = rng.normal(0, 1, 90)
    second = first + rng.normal(0.2, 0.1, 90)
    found = compare_paired(first, second, unit="logits")
    milli = compare_paired(1000 * first, 1000 * second, unit="millilogits")
    assert (milli.low, milli.high) == pytest.approx((1000 * found.low, 1000 * found.high))
    assert found.low < 0.2 < found.high
    assert found.high - found.low < 0.06  # paired: the spread of the first does not matter


def test_far_scores_differ_however_their_images_overlap() -> None:
    """Against every table of 30 images: sure means that no pairing at all is insignificant."""
    n, sure = 30, 0
    for a, b in product(range(n + 1), repeat=2):
        said = differ_for_any_pairing(wilson(a, n), wilson(b, n))
        assert said == differ_for_any_pairing(wilson(b, n), wilson(a, n))
        if said:
            sure += 1
            both = range(max(0, a + b - n), min(a, b) + 1)  # images that both get right
            assert all(mcnemar(a - k, b - k) < 0.05 for k in both)
    assert sure > 100


def test_only_rights_and_wrongs_are_sure_to_differ() -> None:
    high, low = mean_score([0.9] * 50), mean_score([0.1] * 50)
    assert not differ_for_any_pairing(high, low)
    assert not differ_for_any_pairing(wilson(50, 50), wilson(0, 40))
    assert not differ_for_any_pairing(
        mean_score([9.0] * 50, unit="px"), mean_score([1.0] * 50, unit="px")
    )


@pytest.mark.parametrize("value", [-2.0, 3.25])
def test_means_outside_0_and_1_are_left_to_the_images(value: float) -> None:
    scores = [Score(x, x - 0.1, x + 0.1, 40, "logits") for x in (value, value + 1)]
    assert not differ_for_any_pairing(*scores)
