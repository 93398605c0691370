"""Random-shift agreement: the draws, and what is made of them."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.metrics.consistency import CONSISTENCIES, ComparedViews, compare_views
from shiftbench.metrics.predictions import predict_clean
from shiftbench.shifts import SHIFTS, Views
from shiftbench.statistics import wilson

COUNT, MARGIN = 19, 3
KEYS = [f"image/{i}" for i in range(COUNT)]
every_kind = pytest.mark.parametrize("kind", CONSISTENCIES.names())


def images() -> Tensor:
    return torch.randn(COUNT, 3, 14, 17, generator=torch.Generator().manual_seed(0)).double()


def prepare(kind: str, canvas: Tensor | None = None) -> tuple[Views, int]:
    entry = CONSISTENCIES.get(kind)
    views = SHIFTS.get(entry.shift).views(images() if canvas is None else canvas, MARGIN)
    return views, entry.span(14 - 2 * MARGIN, 14)


def fragile(x: Tensor) -> Tensor:
    weight = torch.randn(4, *x.shape[1:], generator=torch.Generator().manual_seed(1)).double()
    return torch.einsum("bchw,kchw->bk", x, weight) / 4


@every_kind
def test_equals_the_definition_image_by_image(kind: str) -> None:
    views, span = prepare(kind)
    entry = CONSISTENCIES.get(kind)
    for batch_size in (1, 6, 50):
        found = compare_views(
            fragile, views, KEYS, entry, span=span, batch_size=batch_size, repeats=2, seed=7
        )
        for i, key in enumerate(KEYS):
            for repeat in range(2):
                pair = entry.pair(key, span, seed=7, repeat=repeat)
                first = fragile(views(pair.first)[i : i + 1])[0]
                second = fragile(views(pair.second)[i : i + 1])[0]
                best = first.argmax()
                assert found.consistent[i, repeat] == bool(second.argmax() == best)
                change = (second.softmax(0)[best] - first.softmax(0)[best]).abs().item()
                assert found.change[i, repeat] == pytest.approx(change, abs=1e-12)
        assert found.score.value == found.consistent.mean()
        assert found.score.n == COUNT
        assert 0 < found.score.value < 1, "the case should tell images apart"


@every_kind
def test_draws_do_not_depend_on_order_or_company(kind: str) -> None:
    views, span = prepare(kind)
    backwards, _ = prepare(kind, images().flip(0))
    entry = CONSISTENCIES.get(kind)
    one = compare_views(fragile, views, KEYS, entry, span=span, batch_size=4)
    two = compare_views(fragile, backwards, KEYS[::-1], entry, span=span, batch_size=7)
    assert np.array_equal(one.consistent, two.consistent[::-1])
    np.testing.assert_allclose(one.change, two.change[::-1], atol=1e-12)


@every_kind
def test_images_seeds_and_repeats_draw_their_own(kind: str) -> None:
    entry, span = CONSISTENCIES.get(kind), 32
    draws = [
        entry.pair(key, span, seed=seed, repeat=r)
        for key in KEYS
        for seed, r in ((0, 0), (1, 0), (0, 1))
    ]
    assert len(set(draws)) > 0.95 * len(draws)


@every_kind
def test_a_global_pool_model_is_cyclically_consistent(kind: str) -> None:
    views, span = prepare(kind)
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(2)).double()

    def pooled(x: Tensor) -> Tensor:
        return x.mean((2, 3)) @ weight

    found = compare_views(pooled, views, KEYS, CONSISTENCIES.get(kind), span=span, batch_size=4)
    if CONSISTENCIES.get(kind).shift == "cyclic":
        assert found.score.value == 1
        assert found.change.mean() < 1e-12
    else:
        assert found.change.mean() > 1e-4, "a crop brings new pixels into view"


@every_kind
def test_known_unshifted_answers_save_a_pass_and_change_nothing(kind: str) -> None:
    (views, span), entry = prepare(kind), CONSISTENCIES.get(kind)
    unshifted = predict_clean(fragile, views, COUNT, batch_size=5)
    fresh = compare_views(fragile, views, KEYS, entry, span=span, batch_size=5, repeats=3)
    saved = compare_views(
        fragile, views, KEYS, entry, span=span, batch_size=5, repeats=3, clean=unshifted
    )
    assert np.array_equal(fresh.consistent, saved.consistent)
    assert saved.passes == (3 if entry.from_origin else 6)
    assert fresh.passes == (4 if entry.from_origin else 6)


# --- the draws themselves -----------------------------------------------------------------------


def test_integer_draws_are_uniform_without_the_origin() -> None:
    span, trials = 2, 4800
    kind = CONSISTENCIES.get("integer")
    pairs = [kind.pair(str(i), span) for i in range(trials)]
    assert all(pair.first == ORIGIN for pair in pairs)
    counts = Counter(pair.second for pair in pairs)
    axis = [float(i) for i in range(-span, span + 1)]
    assert set(counts) == {Offset(dy, dx) for dy in axis for dx in axis} - {ORIGIN}
    expected = trials / 24
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 49.7  # the 99.9% quantile with 23 degrees of freedom


def test_half_draws_are_such_integers_plus_a_half() -> None:
    half, trials = CONSISTENCIES.get("half"), 1000
    seconds = {half.pair(str(i), 1).second for i in range(trials)}
    axis = (-0.5, 0.5, 1.5)
    assert seconds == {Offset(dy, dx) for dy in axis for dx in axis} - {Offset(0.5, 0.5)}


@pytest.mark.parametrize(("span", "low", "high"), [(32, -16, 15), (5, -2, 2), (2, -1, 0)])
def test_crop_draws_cover_the_places_of_the_window(span: int, low: int, high: int) -> None:
    kind = CONSISTENCIES.get("crop")
    pairs = [kind.pair(str(i), span) for i in range(1000)]
    places = {v for p in pairs for v in (p.first.dy, p.first.dx, p.second.dy, p.second.dx)}
    assert places == set(range(low, high + 1))
    assert kind.margin(span) == max(-low, high)
    assert any(pair.first != ORIGIN for pair in pairs)


@pytest.mark.parametrize(
    ("kind", "view", "canvas", "span"),
    [
        ("integer", 224, 256, 32),
        ("half", 32, 37, 15),
        ("integer", 3, 3, 1),
        ("crop", 224, 256, 32),
        ("crop", 32, 37, 5),
    ],
)
def test_span(kind: str, view: int, canvas: int, span: int) -> None:
    assert CONSISTENCIES.get(kind).span(view, canvas) == span


@pytest.mark.parametrize(
    ("kind", "view", "canvas"), [("integer", 2, 9), ("half", 1, 9), ("crop", 32, 32)]
)
def test_refuses_images_with_nowhere_else_to_look_from(kind: str, view: int, canvas: int) -> None:
    with pytest.raises(UsageError, match="no other place to look from"):
        CONSISTENCIES.get(kind).span(view, canvas)


def test_refuses_no_repeats() -> None:
    views, span = prepare("integer")
    kind = CONSISTENCIES.get("integer")
    with pytest.raises(UsageError, match="1 or more repeats, got 0"):
        compare_views(fragile, views, KEYS, kind, span=span, batch_size=4, repeats=0)


@every_kind
def test_later_draws_go_on_where_earlier_ones_ended(kind: str) -> None:
    (views, span), entry = prepare(kind), CONSISTENCIES.get(kind)
    whole = compare_views(fragile, views, KEYS, entry, span=span, batch_size=5, repeats=4)
    later = compare_views(fragile, views, KEYS, entry, span=span, batch_size=5, repeats=range(2, 4))
    assert np.array_equal(later.consistent, whole.consistent[:, 2:])


def test_the_draws_of_one_image_are_not_independent() -> None:
    """Images that always agree or never do are worth as much as one draw each."""
    agree = np.repeat(np.arange(40) < 30, 5).reshape(40, 5)
    found = ComparedViews(agree, np.zeros((40, 5)), np.zeros(40, dtype=bool), 5)
    assert found.score == wilson(30, 40)
    mixed = ComparedViews(agree.reshape(5, 40).T, np.zeros((40, 5)), np.zeros(40, dtype=bool), 5)
    assert mixed.score.value == found.score.value
    assert found.score.low < mixed.score.low
