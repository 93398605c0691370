"""The search against the obvious triple loop, and its economy."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

import aft_models
from aft_models.preprocessing import Preprocessing
from shiftbench.errors import DataError, ModelError, UsageError
from shiftbench.grid import ORIGIN, Grid, Offset
from shiftbench.metrics.predictions import Predictions, predict_at
from shiftbench.metrics.search import (
    Trace,
    adversarial_accuracy,
    keyed_integers,
    keyed_sample,
    search,
)
from shiftbench.models.model import Model as LoadedModel
from shiftbench.shifts import ATTACKS, SHIFTS, Views

COUNT, CLASSES, MARGIN, RADIUS = 23, 4, 6, 2
SIZE = (6 + 2 * MARGIN, 7 + 2 * MARGIN)  # of the canvases
PIXEL_ATTACKS = [name for name in ATTACKS if not SHIFTS.get(ATTACKS.get(name).shift).rendered]
every_attack = pytest.mark.parametrize("attack", PIXEL_ATTACKS)

Model = Callable[[Tensor], Tensor]


def numbered_images() -> Tensor:
    """Random images with the image's number in the last channel, where no shift can change it."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(COUNT, 3, *SIZE, generator=generator, dtype=torch.float64)
    # A color of its own and smooth pixels, so that some images survive some shifts.
    color = torch.randn(COUNT, 3, 1, 1, generator=generator, dtype=torch.float64)
    images = torch.nn.functional.avg_pool2d(images, 5, 1, 2, count_include_pad=False) + 0.3 * color
    images[:, 2] = torch.arange(COUNT)[:, None, None]
    return images


def fragile_model(seed: int) -> Model:
    """A random linear classifier of pixels: nothing about it is shift-invariant."""
    weight = torch.randn(
        CLASSES, 2, 6, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return lambda x: torch.einsum("bchw,kchw->bk", x[:, :2], weight)


class Logged:
    """A model that remembers which images it was shown, batch by batch."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.batches: list[list[int]] = []

    def __call__(self, images: Tensor) -> Tensor:
        self.batches.append(images[:, 2, 0, 0].round().long().tolist())
        return self.model(images)

    @property
    def seen(self) -> Counter[int]:
        return Counter(number for batch in self.batches for number in batch)


def prepare(attack: str) -> tuple[Views, Grid]:
    plan = ATTACKS.get(attack)
    return SHIFTS.get(plan.shift).views(numbered_images(), MARGIN), plan.grid(RADIUS)


def labels_for(model: Model, views: Views) -> NDArray[np.int64]:
    """Mostly what the model says unshifted, so that there is something to break."""
    labels: NDArray[np.int64] = model(views(ORIGIN)).argmax(1).numpy().copy()
    labels[::7] = (labels[::7] + 1) % CLASSES
    return labels


def naive(
    model: Model, views: Views, labels: NDArray[np.int64], grid: Grid
) -> list[tuple[float, Offset | None, int]]:
    """Image by image, offset by offset: smallest broken ring, its first offset, and the count."""
    traces = []
    for image in range(COUNT):
        wrong = [o for o in grid if model(views(o)[image : image + 1]).argmax() != labels[image]]
        radius = min((grid.ring(o) for o in wrong), default=math.nan)
        visited = list(grid).index(wrong[0]) + 1 if wrong else len(grid)
        traces.append((radius, wrong[0] if wrong else None, visited))
    return traces


def same(a: Trace, b: Trace) -> bool:
    pairs = ((a.broken_radius, b.broken_radius), (a.dy, b.dy), (a.dx, b.dx))
    return all(np.array_equal(x, y, equal_nan=True) for x, y in pairs)


@every_attack
@pytest.mark.parametrize("seed", [1, 2])
def test_equals_the_triple_loop(attack: str, seed: int) -> None:
    (views, grid), model = prepare(attack), fragile_model(seed)
    labels = labels_for(model, views)
    expected = naive(model, views, labels, grid)
    radii = [radius for radius, _, _ in expected]
    assert len({str(radius) for radius in radii}) > 2, "the case should tell rings apart"
    for batch_size in (1, 4, COUNT, 100):
        logged = Logged(model)
        trace = search(logged, views, labels, grid, batch_size=batch_size)
        assert np.array_equal(trace.broken_radius, radii, equal_nan=True)
        for image, (_, offset, visited) in enumerate(expected):
            if offset is not None:
                assert (trace.dy[image], trace.dx[image]) == (offset.dy, offset.dx)
                wrong = model(views(offset)[image : image + 1]).argmax().item()
                assert trace.prediction[image] == wrong != labels[image]
            else:
                assert np.isnan(trace.dy[image])
                assert np.isnan(trace.dx[image])
            assert trace.passes[image] == logged.seen[image] == visited
        assert trace.forward_passes == sum(map(len, logged.batches))
        assert trace.exact


@every_attack
def test_batches_are_full_while_enough_images_are_left(attack: str) -> None:
    (views, grid), model = prepare(attack), Logged(fragile_model(1))
    labels, size = labels_for(fragile_model(1), views), 5
    trace = search(model, views, labels, grid, batch_size=size)
    left = trace.passes.copy()  # the visits each image has still to make
    for batch in model.batches:
        assert len(batch) == min(size, int((left > 0).sum()))
        assert len(set(batch)) == len(batch)
        left[batch] -= 1
    assert not left.any()


@every_attack
def test_known_unshifted_answers_are_not_asked_again(attack: str) -> None:
    (views, grid), model = prepare(attack), fragile_model(3)
    labels = labels_for(model, views)
    fresh = search(model, views, labels, grid, batch_size=4)
    unshifted = predict_at(model, views, [ORIGIN] * COUNT, batch_size=6)
    shared = search(model, views, labels, grid, batch_size=4, clean=unshifted)
    assert same(fresh, shared)
    assert (shared.passes == fresh.passes - 1).all()


@every_attack
def test_a_full_grid_knows_every_offset(attack: str) -> None:
    (views, grid), model = prepare(attack), fragile_model(4)
    labels = labels_for(model, views)
    full = search(model, views, labels, grid, batch_size=7, mode="full_grid")
    early = search(model, views, labels, grid, batch_size=7)
    assert same(full, early)
    assert np.array_equal(full.near_tie, early.near_tie)
    assert (full.passes == len(grid)).all()
    assert full.correct is not None
    for column, offset in enumerate(grid):
        expected = model(views(offset)).argmax(1).numpy() == labels
        assert np.array_equal(full.correct[:, column], expected)


@every_attack
def test_an_invariant_model_keeps_all(attack: str) -> None:
    views, grid = prepare(attack)

    def by_number(images: Tensor) -> Tensor:
        target = images[:, 2].mean((1, 2)).round().long() % CLASSES
        return torch.nn.functional.one_hot(target, CLASSES).double()

    trace = search(by_number, views, np.arange(COUNT) % CLASSES, grid, batch_size=5)
    assert trace.adversarial_accuracy(RADIUS).value == 1
    assert (trace.passes == len(grid)).all()


# --- sampled offsets ----------------------------------------------------------------------------


@every_attack
def test_samples_give_an_upper_bound_that_says_so(attack: str) -> None:
    (views, grid), model = prepare(attack), fragile_model(1)
    labels = labels_for(model, views)
    exact = search(model, views, labels, grid, batch_size=8)
    for samples in (1, 5, 23):
        trace = search(model, views, labels, grid, batch_size=8, mode=f"sampled:{samples}")
        assert not trace.exact
        assert trace.passes.max() <= samples + 1
        for s in range(RADIUS + 1):
            assert trace.adversarial_accuracy(s) >= exact.adversarial_accuracy(s)
        assert trace.adversarial_accuracy(0) == exact.adversarial_accuracy(0)


def test_as_many_samples_as_offsets_are_the_whole_grid() -> None:
    (views, grid), model = prepare("crop"), fragile_model(1)
    labels = labels_for(model, views)
    trace = search(model, views, labels, grid, batch_size=8, mode="sampled:24")
    assert trace.exact
    assert same(trace, search(model, views, labels, grid, batch_size=8))


def test_samples_follow_the_key_and_the_seed_alone() -> None:
    model = fragile_model(2)
    views, grid = prepare("crop")
    labels, keys = labels_for(model, views), [f"image {i}" for i in range(COUNT)]
    sampled = partial(search, model, grid=grid, mode="sampled:4")
    trace = sampled(views, labels, keys=keys, batch_size=3)
    backwards = SHIFTS.get("crop").views(numbered_images().flip(0), MARGIN)
    again = sampled(backwards, labels[::-1].copy(), keys=keys[::-1], batch_size=11)
    assert np.array_equal(trace.broken_radius, again.broken_radius[::-1], equal_nan=True)
    assert not same(trace, sampled(views, labels, keys=keys, batch_size=3, seed=1))


@pytest.mark.parametrize("mode", ["sampled", "sampled:0", "sampled:-3", "sampled:x", "fast", ""])
def test_refuses_an_unknown_mode(mode: str) -> None:
    views, grid = prepare("crop")
    with pytest.raises(UsageError, match=r"unknown search mode .* sampled:20"):
        search(fragile_model(0), views, [0] * COUNT, grid, batch_size=4, mode=mode)


# --- randomness keyed by image ------------------------------------------------------------------


def test_every_part_of_the_key_matters() -> None:
    keys = [(0, "a", "bc"), (0, "ab", "c"), (1, "a", "bc"), (0, "a", "b"), (0, "", "abc")]
    draws = {tuple(keyed_integers(*key, 2)) for key in keys}
    assert len(draws) == len(keys)


def test_a_draw_is_for_ever() -> None:
    """SHAKE-128 of the documented text: a change here would change every stored result."""
    assert keyed_integers(0, "search", "image", 2) == keyed_integers(0, "search", "image", 5)[:2]
    digest = hashlib.shake_128(b"0:6:search:5:image").digest(8)
    assert keyed_integers(0, "search", "image", 1) == [int.from_bytes(digest, "little")]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 40), st.integers(0, 40), st.text(max_size=5))
def test_samples_are_distinct_and_sorted(a: int, b: int, key: str) -> None:
    count, population = sorted((a, b))
    sample = keyed_sample(0, "test", key, population, count)
    assert len(sample) == count
    assert sample == sorted(set(sample))
    assert set(sample) <= set(range(population))


def test_every_subset_is_equally_likely() -> None:
    trials, subsets = 6000, 10  # pairs out of five
    counts = Counter(tuple(keyed_sample(0, "test", str(i), 5, 2)) for i in range(trials))
    expected = trials / subsets
    chi_square = sum((counts[pair] - expected) ** 2 / expected for pair in counts)
    assert len(counts) == subsets
    assert chi_square < 27.9  # the 99.9% quantile with 9 degrees of freedom


# --- bad answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda x: torch.full((len(x), 4), torch.nan), "expected finite logits, got NaN"),
        (lambda x: torch.full((len(x), 4), torch.inf), "expected finite logits"),
        (lambda x: torch.zeros(len(x)), r"shape \(4, classes\) .* got \(4,\)"),
        (lambda x: torch.zeros(len(x) - 1, 4), r"got \(3, 4\)"),
        (lambda x: torch.zeros(len(x), 1), "at least 2 classes"),
        (lambda x: {"logits": x}, "got dict. Wrap it"),
        (lambda x: torch.zeros(len(x), 2), "knows 2 classes.* label 3 occurs"),
    ],
)
def test_refuses_answers_that_are_no_logits(model: Model, message: str) -> None:
    views, grid = prepare("crop")
    with pytest.raises(ModelError, match=message):
        search(model, views, [3] * COUNT, grid, batch_size=4)


def test_refuses_labels_below_zero_no_images_and_no_batch() -> None:
    views, grid = prepare("crop")
    for labels, size, error, words in (
        ([-1] * COUNT, 4, DataError, "labels of 0 or more, got -1"),
        ([], 4, DataError, "at least one image"),
        ([0] * COUNT, 0, UsageError, "batch size of 1 or more, got 0"),
    ):
        with pytest.raises(error, match=words):
            search(fragile_model(0), views, labels, grid, batch_size=size)


# --- answers and curves -------------------------------------------------------------------------


def test_near_ties_are_noted() -> None:
    views, grid = prepare("crop")

    def torn(images: Tensor) -> Tensor:
        number = images[:, 2].mean((1, 2)).round()
        gap = torch.where(number % 2 == 0, 1e-6, 1e-3)
        return torch.stack((gap, torch.zeros_like(gap)), 1)

    trace = search(torn, views, [0] * COUNT, grid, batch_size=4)
    assert np.array_equal(trace.near_tie, np.arange(COUNT) % 2 == 0)


@pytest.mark.parametrize("as_series", [False, True])
def test_the_curve_follows_from_the_broken_radius(as_series: bool) -> None:
    radius: list[float] = [0, 1, 1, 3, math.nan]
    values = pd.Series(radius).astype("Int64") if as_series else np.array(radius)
    curve = [adversarial_accuracy(values, s).value for s in range(5)]
    assert curve == [0.8, 0.4, 0.4, 0.2, 0.2]


@every_attack
def test_a_search_goes_on_from_its_inner_rings(attack: str) -> None:
    (views, grid), model = prepare(attack), fragile_model(1)
    labels = labels_for(model, views)
    whole = search(model, views, labels, grid, batch_size=4)
    inner = search(model, views, labels, grid.up_to(1), batch_size=4)
    logged = Logged(model)
    grown = search(logged, views, labels, grid, batch_size=4, inner=inner)
    assert same(grown, whole)
    assert np.array_equal(grown.prediction, whole.prediction, equal_nan=True)
    assert (grown.passes == whole.passes - inner.passes).all(), "nothing is visited twice"
    assert sum(map(len, logged.batches)) == grown.forward_passes < whole.forward_passes


def test_ties_are_as_wide_as_the_arithmetic_rounds() -> None:
    logits = torch.tensor([[9.0, 8.99, 0.0], [9.0, 8.0, 0.0]])
    assert Predictions(logits).near_tie.tolist() == [False, False]
    assert Predictions(logits, rounding=2.0**-8).near_tie.tolist() == [True, False]
    assert Predictions(torch.tensor([[1.0, 1.0 - 5e-6]])).near_tie.tolist() == [True]
    views = prepare("crop")[0]
    half = predict_at(lambda x: fragile_model(1)(x).half(), views, [ORIGIN] * 5, batch_size=9)
    assert half.rounding == 2.0**-11


def test_a_model_says_how_it_rounds() -> None:
    (views, grid), model = prepare("crop"), fragile_model(1)

    class Coarse:
        rounding = 0.5

        def __call__(self, images: Tensor) -> Tensor:
            return model(images)

    labels = labels_for(model, views)
    fine = search(model, views, labels, grid, batch_size=4)
    coarse = search(Coarse(), views, labels, grid, batch_size=4)
    assert same(fine, coarse)
    assert coarse.near_tie.sum() > fine.near_tie.sum()


@pytest.mark.parametrize("mode", ["exhaustive", "full_grid", "sampled:9"])
def test_equal_inputs_of_the_network_are_predicted_once(mode: str) -> None:
    """A network that selects a crop of each view sees the same one for many offsets."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
        network(torch.zeros(1, 3, 16, 16))
        canvas = torch.nn.functional.avg_pool2d(torch.rand(12, 3, 34, 34), 3, 1)
    selecting = LoadedModel(aft_models.repair(network, "select:4"), Preprocessing(24), name="net")
    views, grid = SHIFTS.get("crop").views(canvas, 4), Grid(3)
    clean = predict_at(selecting, views, [ORIGIN] * 12, batch_size=5)
    labels = clean.prediction.copy()
    labels[::5] = (labels[::5] + 1) % 5
    every = Logged(lambda x: selecting(x))
    plain = search(every, views, labels, grid, batch_size=5, mode=mode, clean=clean)
    once = Logged(lambda x: selecting(x))
    once.network_input = selecting.shown  # type: ignore[attr-defined]
    trace = search(once, views, labels, grid, batch_size=5, mode=mode, clean=clean)
    assert same(trace, plain)
    assert sum(map(len, once.batches)) == trace.forward_passes < 0.75 * plain.forward_passes
