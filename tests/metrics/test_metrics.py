"""Every metric against a slow, obvious loop, and properties over the registry."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from shiftbench.errors import UsageError
from shiftbench.geometry import Geometry
from shiftbench.grid import ORIGIN, Offset
from shiftbench.metrics import METRICS, Cells, Metric, plan_metrics, score
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.metrics.base import kind_of, read_cells, remaining_passes, score_names
from shiftbench.metrics.consistency import DRAWS, Consistency
from shiftbench.running.job import Settings
from shiftbench.running.predict import predict_tables
from shiftbench.scores import ScoreName
from shiftbench.shifts import ATTACKS, SHIFTS
from shiftbench.tables import Tables

COUNT, VIEW, MARGIN, CLASSES = 9, 12, 9, 7
KEYS = [f"image {i}" for i in range(COUNT)]
SETTINGS = Settings(max_shift=2, consistency_samples=2, seed=1)
GEOMETRY = Geometry(VIEW, VIEW + 2 * MARGIN, MARGIN, "none")
ON_PIXELS = [name for name in ATTACKS if not SHIFTS.get(ATTACKS.get(name).shift).digitizes]
ARGUMENTS = {  # of the metrics that have several; camera needs data that can be rendered
    "adversarial": ON_PIXELS,
    **{name: ["crop", "integer"] for name in ("detected", "segmented", "swing")},
    "consistency": list(DRAWS),
    "agreement": ["3", "3:roll"],
}
EVERY = [f"{name}:{a}".rstrip(":") for name in METRICS for a in ARGUMENTS.get(name, [""])]
WEIGHT = torch.randn(CLASSES, 3, VIEW, VIEW, generator=torch.Generator().manual_seed(1)).double()
every_metric = pytest.mark.parametrize("text", EVERY)
every_kind = pytest.mark.parametrize("kind", list(DRAWS))


def plan(text: str, settings: Settings = SETTINGS) -> Metric:
    (metric,) = plan_metrics([text], settings, GEOMETRY)
    return metric


def images() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    side = VIEW + 2 * MARGIN
    noise = torch.randn(COUNT, 3, side, side, generator=generator, dtype=torch.float64)
    return torch.nn.functional.avg_pool2d(noise, 9, 1, 4)


def sensitive(x: Tensor) -> Tensor:
    return torch.einsum("bchw,kchw->bk", x, WEIGHT)


def labels() -> list[int]:
    """Return labels that are correct for most of the images."""
    clean = sensitive(images()[..., MARGIN:-MARGIN, MARGIN:-MARGIN]).argmax(1).tolist()
    return [(c + 1) % CLASSES if i % 4 == 0 else c for i, c in enumerate(clean)]


def measured(
    *metrics: Metric, network: Callable[[Tensor], Tensor] = sensitive, batch_size: int = 4
) -> Tables:
    options = {"keys": KEYS, "margin": MARGIN, "batch_size": batch_size}
    return predict_tables(network, images(), labels(), metrics, **options)


def cells_of(metric: Metric, network: Callable[[Tensor], Tensor] = sensitive) -> Cells:
    return read_cells(measured(metric, network=network), metric, KEYS)


def slow_class(image: int, shift: str, offset: Offset) -> int:
    """Predict one view of one image."""
    views = SHIFTS.get(shift).views(images()[image : image + 1], MARGIN)
    return int(sensitive(views(offset))[0].argmax())


# --- properties over the registry


@every_metric
def test_metric_cells_equal_single_predictions(text: str) -> None:
    metric = plan(text)
    cells = cells_of(metric)
    for image, key in enumerate(KEYS):
        for column, view in enumerate(metric.views(key), start=1):
            if cells.known[image, column]:
                expected = slow_class(image, view.shift, view.offset)
                assert cells.classes[image, column] == expected


@every_metric
def test_metric_scores_are_fractions_of_all_images(text: str) -> None:
    metric = plan(text)
    cells = cells_of(metric)
    assert not metric.needed(cells).any()
    scores = score(metric, cells)
    assert list(scores) == score_names(metric)
    assert all(s.n == COUNT and 0 <= s.low <= s.value <= s.high <= 1 for s in scores.values())


@every_metric
def test_metric_score_unknown_while_any_image_is(text: str) -> None:
    metric = plan(text)
    cells = cells_of(metric)
    blank = replace(cells, classes=cells.classes.copy(), probabilities=cells.probabilities.copy())
    blank.classes[3], blank.probabilities[3] = -1, -1
    assert not score(metric, blank)
    assert metric.needed(blank)[3].any()


@every_metric
def test_metric_rows_independent_of_batch_size(text: str) -> None:
    metric = plan(text)
    first = cells_of(metric)
    for batch_size in (1, 5, 100):
        other = read_cells(measured(metric, batch_size=batch_size), metric, KEYS)
        np.testing.assert_array_equal(first.classes, other.classes)
        np.testing.assert_allclose(first.probabilities, other.probabilities, atol=1e-6)


@every_metric
def test_metric_smaller_request_is_prefix_of_larger(text: str) -> None:
    larger = replace(SETTINGS, max_shift=3, consistency_samples=4)
    small, large = plan(text), plan(text, larger)
    assert small.table == large.table
    for key in KEYS:
        views = list(small.views(key))
        assert list(large.views(key))[: len(views)] == views


@every_metric
def test_metric_settings_bring_it_back(text: str) -> None:
    metric = plan(text)
    assert METRICS.get(kind_of(metric))(**vars(metric)) == metric
    assert metric.name not in {plan(other).name for other in EVERY if other != text}


@every_metric
def test_metric_passes_are_bounded(text: str) -> None:
    seen = 0

    def counting(x: Tensor) -> Tensor:
        nonlocal seen
        seen += len(x)
        return sensitive(x)

    metric, empty = plan(text), Tables(KEYS)
    bound = COUNT + remaining_passes(metric, read_cells(empty, metric, KEYS))
    tables = measured(metric, network=counting, batch_size=1)
    seen -= 3  # the comparison of the first image alone and in a batch
    assert seen == tables.predictions() <= bound


@every_metric
def test_metric_reference_precedes_the_view(text: str) -> None:
    for column, view in enumerate(plan(text).views("x"), start=1):
        assert view.reference is None or view.reference <= column


def test_metrics_share_the_clean_predictions() -> None:
    metrics = [plan(text) for text in EVERY]
    tables = measured(*metrics)
    cells = sum(a.size for n, a in tables.arrays.items() if n in {m.table for m in metrics})
    assert tables.predictions() <= cells
    for metric in metrics:
        alone = cells_of(metric)
        together = read_cells(tables, metric, KEYS)
        np.testing.assert_array_equal(np.where(alone.known, together.classes, -1), alone.classes)


# --- adversarial accuracy


@pytest.mark.parametrize("full", [False, True])
def test_adversarial_equals_exhaustive_loop(full: bool) -> None:
    metric = plan("adversarial:crop", replace(SETTINGS, full_grid=full))
    assert isinstance(metric, Adversarial)
    cells, truth = cells_of(metric), labels()
    correct = np.array(
        [[slow_class(i, "crop", o) == truth[i] for o in metric.grid] for i in range(COUNT)]
    )
    rings = np.array(metric.grid.rings)
    outcomes = metric.outcomes(cells)
    average = outcomes.pop(ScoreName("average", "crop"), None)
    assert (average is not None) == full
    if average is not None:
        np.testing.assert_allclose(average, correct.mean(1))
    for name, values in outcomes.items():
        expected = correct[:, rings <= name.radius].all(1)
        np.testing.assert_array_equal(values, expected)
    first = np.where(correct.all(1), -1, correct.argmin(1))
    np.testing.assert_array_equal(metric.first_wrong(cells), first)
    assert 0 < np.mean([v.mean() for v in outcomes.values()]) < 1
    if full:
        assert cells.known.all()
        by_offset = metric.accuracy_by_offset(cells)
        assert [s.value for s in by_offset.values()] == correct.mean(0).tolist()
    else:
        after = np.cumsum(cells.wrong, axis=1) - cells.wrong > 0
        assert not (cells.known & after).any(), "nothing is predicted after the first failure"


def test_adversarial_search_continues_from_inner_rings() -> None:
    inner, outer = (plan("adversarial:crop", replace(SETTINGS, max_shift=s)) for s in (1, 3))
    tables = measured(inner)
    before = tables.predictions()
    cells = read_cells(tables, outer, KEYS)
    todo = outer.needed(cells)
    assert not todo[:, : len(inner.views("")) + 1].any()
    failed = cells.wrong.any(1)
    assert set(failed) == {True, False}
    assert not todo[failed].any()
    assert todo[~failed].sum() == (~failed).sum()
    assert before < measured(outer).predictions()


def test_adversarial_step_of_its_own_is_named() -> None:
    metric = plan("adversarial:bilinear:1/4")
    assert metric.name == metric.table == "adversarial_bilinear[1/4]"
    assert plan("adversarial:bilinear", replace(SETTINGS, step="1/4")) == metric


# --- consistency, agreement, flip


@every_kind
def test_consistency_equals_the_definition_image_by_image(kind: str) -> None:
    metric = plan(f"consistency:{kind}")
    assert isinstance(metric, Consistency)
    cells, draws = cells_of(metric), DRAWS.get(kind)
    agree, change = metric.outcomes(cells).values()
    views = SHIFTS.get(draws.shift).views(images(), MARGIN)
    for image, key in enumerate(KEYS):
        offsets = [view.offset for view in metric.views(key)]
        if draws.per_draw == 1:
            pairs = [(ORIGIN, offset) for offset in offsets]
        else:
            pairs = list(zip(offsets[::2], offsets[1::2], strict=True))
        assert len(pairs) == 2
        same, moved = [], []
        for pair in pairs:
            first, second = (sensitive(views(o)[image : image + 1])[0] for o in pair)
            best = first.argmax()
            same.append(bool(second.argmax() == best))
            moved.append((second.softmax(0)[best] - first.softmax(0)[best]).abs().item())
        assert agree[image] == np.mean(same)
        assert change[image] == pytest.approx(np.mean(moved), abs=1e-6)
    assert 0 < agree.mean() < 1


@every_kind
def test_consistency_of_a_global_pool_model_is_cyclic_only(kind: str) -> None:
    weight = torch.randn(3, CLASSES, generator=torch.Generator().manual_seed(2)).double()
    metric = plan(f"consistency:{kind}")
    agree, change = metric.outcomes(cells_of(metric, lambda x: x.mean((2, 3)) @ weight)).values()
    if DRAWS.get(kind).per_draw == 1:
        assert agree.all()
        assert change.max() < 1e-6
    else:
        assert change.mean() > 1e-4, "a crop contains new pixels"


@pytest.mark.parametrize("text", ["agreement:3", "agreement:3:roll"])
def test_agreement_equals_all_views_have_one_class(text: str) -> None:
    metric = plan(text)
    (values,) = metric.outcomes(cells_of(metric)).values()
    for image, key in enumerate(KEYS):
        views = metric.views(key)
        assert len(views) == 3
        assert values[image] == (len({slow_class(image, v.shift, v.offset) for v in views}) == 1)


def test_agreement_shares_the_views_of_consistency() -> None:
    consistency, agreement = plan("consistency:integer"), plan("agreement:2:roll")
    assert not agreement.needed(read_cells(measured(consistency), agreement, KEYS)).any()


def test_flip_equals_the_mean_of_changes_between_frames() -> None:
    metric = plan("flip")
    (values,) = metric.outcomes(cells_of(metric)).values()
    for image in range(COUNT):
        frames = [slow_class(image, "crop", Offset(0.0, float(x))) for x in range(-7, 9)]
        assert values[image] == np.mean([a != b for a, b in itertools.pairwise(frames)])
    assert 0 < values.mean() < 1


def test_flip_large_views_have_the_frames_of_imagenet_p() -> None:
    (metric,) = plan_metrics(["flip"], SETTINGS, Geometry(224, 256, 0, "none"))
    assert (metric.margin(), len(metric.views(""))) == (20, 41)


@pytest.mark.parametrize("text", ["agreement:1", "agreement:many", "agreement:5:flip", "flip:3"])
def test_metric_wrong_argument_raises(text: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        plan(text)


# --- random draws


@every_kind
def test_draws_differ_between_images_seeds_and_samples(kind: str) -> None:
    drawn = [
        tuple(view.offset for view in Consistency(kind, 32, 2, seed).views(str(key)))
        for key in range(19)
        for seed in (0, 1)
    ]
    offsets = [offset for offsets in drawn for offset in offsets]
    assert len(set(offsets)) > 0.9 * len(offsets)


def first_draws(kind: str, span: int, count: int) -> list[tuple[Offset, ...]]:
    metric = Consistency(kind, span)
    return [tuple(v.offset for v in metric.views(str(i))) for i in range(count)]


def test_integer_draws_are_uniform_without_the_origin() -> None:
    span, trials = 2, 4800
    counts = Counter(offset for (offset,) in first_draws("integer", span, trials))
    axis = [float(i) for i in range(-span, span + 1)]
    assert set(counts) == {Offset(dy, dx) for dy in axis for dx in axis} - {ORIGIN}
    expected = trials / 24
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 49.7  # the 99.9% quantile with 23 degrees of freedom


def test_half_draws_are_integer_draws_plus_a_half() -> None:
    offsets = {offset for (offset,) in first_draws("half", 1, 1000)}
    axis = (-0.5, 0.5, 1.5)
    assert offsets == {Offset(dy, dx) for dy in axis for dx in axis} - {Offset(0.5, 0.5)}


@pytest.mark.parametrize(("span", "low", "high"), [(32, -16, 15), (5, -2, 2), (2, -1, 0)])
def test_crop_draws_cover_every_position(span: int, low: int, high: int) -> None:
    pairs = first_draws("crop", span, 1000)
    positions = {v for pair in pairs for offset in pair for v in (offset.dy, offset.dx)}
    assert positions == set(range(low, high + 1))
    assert Consistency("crop", span).margin() == max(-low, high)


@pytest.mark.parametrize(
    ("kind", "view", "resize", "span"),
    [
        ("integer", 224, 256, 32),
        ("half", 32, 37, 15),
        ("integer", 3, 3, 1),
        ("crop", 224, 256, 32),
        ("crop", 32, 37, 5),
    ],
)
def test_span_follows_from_the_geometry(kind: str, view: int, resize: int, span: int) -> None:
    assert DRAWS.get(kind).span(Geometry(view, resize, 0, "none")) == span


@pytest.mark.parametrize(
    ("kind", "view", "resize"), [("integer", 2, 9), ("half", 1, 9), ("crop", 32, 32)]
)
def test_span_of_too_small_images_raises(kind: str, view: int, resize: int) -> None:
    with pytest.raises(UsageError, match="larger than the view"):
        DRAWS.get(kind).span(Geometry(view, resize, 0, "none"))
