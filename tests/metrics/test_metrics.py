"""Every metric against a slow, obvious loop, and laws over the registry."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.metrics import METRICS, Metric, MetricOptions, score_rows
from shiftbench.metrics import plan_metric as plan
from shiftbench.metrics.agreement import Agreement
from shiftbench.metrics.base import NEAR_TIE_COLUMN, PASSES, ImageBatch
from shiftbench.metrics.consistency import CONSISTENCIES
from shiftbench.shifts import ATTACKS, SHIFTS

COUNT, VIEW, MARGIN, CLASSES = 9, 12, 9, 7
OPTIONS = MetricOptions(max_shift=2, repeats=2, seed=1)
PIXEL_ONLY = [
    f"{name}:{argument}" if argument else name
    for name in METRICS
    for argument in METRICS.get(name).entries()
    if argument != "camera"  # needs a scene; test_run covers it
]


def plan_metric(text: str, **changes: Any) -> Metric:
    return plan(text, replace(OPTIONS, **changes), view=VIEW, resize=VIEW + 2 * MARGIN)


every_metric = pytest.mark.parametrize("text", PIXEL_ONLY)
every_kind = pytest.mark.parametrize("kind", list(CONSISTENCIES))


def images() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    side = VIEW + 2 * MARGIN
    noise = torch.randn(COUNT, 3, side, side, generator=generator, dtype=torch.float64)
    return torch.nn.functional.avg_pool2d(noise, 3, 1, 1)


WEIGHT = torch.randn(CLASSES, 3, VIEW, VIEW, generator=torch.Generator().manual_seed(1)).double()


def fragile(x: Tensor) -> Tensor:
    return torch.einsum("bchw,kchw->bk", x, WEIGHT)


def features(x: Tensor) -> Tensor:
    return torch.nn.functional.avg_pool2d(x, 3).flatten(1)


class Featured:
    """A model that exposes features and passes them on to `head`."""

    def __init__(self, head: Callable[[Tensor], Tensor] = fragile) -> None:
        self.head = head

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(x)

    def features(self, x: Tensor) -> Tensor:
        if self.head is not fragile:
            self.head(x)  # counted
        return features(x)


def shard(batch_size: int = 4, model: Callable[[Tensor], Tensor] | None = None) -> ImageBatch:
    canvas = images()
    labels = fragile(canvas[..., MARGIN:-MARGIN, MARGIN:-MARGIN]).argmax(1).numpy().copy()
    labels[::4] = (labels[::4] + 1) % CLASSES
    keys = [f"image {i}" for i in range(COUNT)]
    model = Featured() if model is None else Featured(model)
    return ImageBatch.predict(model, canvas, MARGIN, keys, labels, batch_size=batch_size)


def nothing(count: int = COUNT) -> pd.DataFrame:
    return pd.DataFrame(index=range(count))


def view(image: int, dy: int, dx: int) -> Tensor:
    """One crop, cut by hand."""
    top, left = MARGIN + dy, MARGIN + dx
    return images()[image : image + 1, :, top : top + VIEW, left : left + VIEW]


# --- laws over the registry


@every_metric
def test_rows_have_the_declared_columns_and_scores_and_lack_nothing(text: str) -> None:
    metric = plan_metric(text)
    assert not metric.answered(nothing()).any()
    rows = metric.measure(shard(), nothing())
    assert set(rows) - {NEAR_TIE_COLUMN, PASSES} <= set(metric.columns)
    assert len(rows) == COUNT
    assert rows[metric.columns[0]].notna().all(), "the first column is never empty"
    scores = score_rows([metric], rows)
    assert set(scores) == set(metric.score_names())
    assert all(s.n == COUNT and s.low <= s.value <= s.high for s in scores.values())
    assert metric.answered(rows).all()
    half = rows.loc[:4].reindex(range(COUNT))  # empty cells for the others
    assert metric.answered(half).tolist() == [True] * 5 + [False] * 4
    pd.testing.assert_frame_equal(metric.as_asked(rows), rows)
    assert metric.as_measured(rows) == metric
    table = rows.assign(label=shard().labels, prediction=shard().clean.prediction)
    assert not any(bad.any() for bad in metric.contradictions(table).values())


@every_metric
def test_batches_and_company_change_nothing(text: str) -> None:
    metric = plan_metric(text)
    expected = metric.measure(shard(), nothing())
    whole = metric.measure(shard(batch_size=100), nothing())
    parts = [metric.measure(shard().take([i]), nothing(1)) for i in range(COUNT)]
    for rows in (whole, pd.concat(parts, ignore_index=True)):
        pd.testing.assert_frame_equal(rows, expected, rtol=1e-9, atol=1e-9)


@every_metric
def test_passes_are_counted_and_bounded(text: str) -> None:
    seen = 0

    def counting(x: Tensor) -> Tensor:
        nonlocal seen
        seen += len(x)
        return fragile(x)

    prepared = shard(model=counting)
    metric, before = plan_metric(text), seen
    rows = metric.measure(prepared, nothing())
    asked = 0 if text == "accuracy" else int(rows[PASSES].sum())  # the pass at (0, 0) is its own
    assert asked == seen - before <= metric.passes(nothing())


@every_metric
def test_settings_bring_the_metric_back_and_names_do_not_collide(text: str) -> None:
    metric, (kind, _, attack) = plan_metric(text), text.partition(":")
    again = METRICS.get(kind).load(metric.settings())
    assert (again, again.name) == (metric, metric.name)
    others = [plan_metric(other) for other in PIXEL_ONLY if other != text]
    assert not set(metric.columns) & {c for other in others for c in other.columns}
    assert metric.name not in {other.name for other in others}
    if METRICS.get(kind).searched:  # a changed kind of shift would be noticed
        assert SHIFTS.get(ATTACKS.get(attack).shift) in metric.code()


# --- slow references


def test_flip_is_the_mean_of_changes_from_frame_to_frame() -> None:
    metric: Metric = plan_metric("flip")
    assert metric.settings() == {"first": -7, "last": 8}
    rows = metric.measure(shard(), nothing())
    for image in range(COUNT):
        frames = [fragile(view(image, 0, i - 7))[0] for i in range(16)]
        changed = [int(a.argmax() != b.argmax()) for a, b in itertools.pairwise(frames)]
        assert rows["flips"][image] == pytest.approx(sum(changed) / 15)
        moved = [slow_distance(a, b) for a, b in itertools.pairwise(frames)]
        assert rows["top5_distance"][image] == pytest.approx(sum(moved) / 15)
    assert 0 < rows["flips"].mean() < 1


def slow_distance(first: Tensor, second: Tensor) -> int:
    """The sum over the five best classes of the places in 1..5 that lie between their ranks."""
    places = sorted(range(CLASSES), key=lambda k: -second[k])
    total = 0
    for i, best in enumerate(sorted(range(CLASSES), key=lambda k: -first[k])[:5], start=1):
        j = places.index(best) + 1
        total += sum(1 <= k - 1 <= 5 for k in range(min(i, j) + 1, max(i, j) + 1))
    return total


def test_large_views_have_the_frames_of_imagenet_p() -> None:
    metric = plan("flip", OPTIONS, view=224, resize=256)
    assert (metric.settings()["first"], metric.settings()["last"], metric.margin()) == (-20, 20, 20)


def test_jitter_is_the_variance_along_the_diagonal() -> None:
    seen = shard()
    rows = plan_metric("jitter").measure(seen, nothing())
    for image, label in enumerate(seen.labels):
        answers = [fragile(view(image, d, d))[0] for d in range(-5, 5)]
        logits = [float(a[label]) for a in answers]
        chances = [float(a.softmax(0)[label]) for a in answers]
        for name, values in (("logit", logits), ("probability", chances)):
            mean = sum(values) / 10
            expected = sum((value - mean) ** 2 for value in values) / 10
            assert rows[f"jitter_{name}"][image] == pytest.approx(expected)


@pytest.mark.parametrize("text", ["agreement:4", "agreement:4:roll"])
def test_agreement_means_that_all_views_agree(text: str) -> None:
    metric, seen = plan_metric(text), shard()
    assert isinstance(metric, Agreement)
    rows = metric.measure(seen, nothing())
    shift = SHIFTS.get("crop" if text == "agreement:4" else "cyclic")
    views = shift.views(images(), MARGIN)
    agree = []
    for image, key in enumerate(seen.keys):
        drawn = metric.offsets(key)
        assert len(drawn) == 4
        answers = {int(fragile(views(offset)[image : image + 1]).argmax()) for offset in drawn}
        agree.append(len(answers) == 1)
    assert rows[metric.columns[0]].tolist() == agree


@pytest.mark.parametrize("text", ["agreement:1", "agreement:many", "agreement:5:flip", "flip:3"])
def test_arguments_that_do_not_fit_are_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected|takes nothing"):
        plan_metric(text)


def test_the_worst_margin_is_the_smallest_over_the_grid() -> None:
    metric = plan_metric("adversarial:crop", mode="full_grid")
    seen = shard()
    rows = metric.measure(seen, nothing())
    for image, label in enumerate(seen.labels):
        smallest = math.inf
        for dy in range(-2, 3):
            for dx in range(-2, 3):
                logits = fragile(view(image, dy, dx))[0]
                others = torch.cat([logits[:label], logits[label + 1 :]])
                smallest = min(smallest, float(logits[label] - others.max()))
        assert rows["crop_worst_margin"][image] == pytest.approx(smallest)
    survivors = rows["crop_worst_margin"] > 0
    assert survivors.tolist() == rows["crop_broken_radius"].isna().tolist()
    scores = score_rows([metric], rows)
    assert scores.find("worst-confidence_crop").unit == "logits"


# --- consistency


@every_kind
def test_consistency_equals_the_definition_image_by_image(kind: str) -> None:
    drawn, entry, batch = plan_metric(f"consistency:{kind}"), CONSISTENCIES.get(kind), shard()
    views, rows = batch.views(entry.shift), drawn.measure(batch, nothing())
    for i, key in enumerate(batch.keys):
        agreed, changes = 0, []
        for repeat in range(2):
            pair = entry.pair(key, drawn.settings()["span"], seed=1, repeat=repeat)
            first, second = (fragile(views(offset)[i : i + 1])[0] for offset in pair)
            best = first.argmax()
            agreed += bool(second.argmax() == best)
            changes.append((second.softmax(0)[best] - first.softmax(0)[best]).abs().item())
        assert rows[f"agreed_{kind}"][i] == agreed
        assert rows[f"change_{kind}"][i] == pytest.approx(sum(changes) / 2, abs=1e-12)
    [share, _] = score_rows([drawn], rows).values()
    assert share.value == rows[f"agreed_{kind}"].mean() / 2
    assert 0 < share.value < 1, "the case should tell images apart"
    assert (rows["passes"] == (2 if entry.from_origin else 4)).all()


@every_kind
def test_a_global_pool_model_is_cyclically_consistent(kind: str) -> None:
    weight = torch.randn(3, CLASSES, generator=torch.Generator().manual_seed(2)).double()
    batch = shard(model=lambda x: x.mean((2, 3)) @ weight)
    rows = plan_metric(f"consistency:{kind}").measure(batch, nothing())
    if CONSISTENCIES.get(kind).from_origin:
        assert rows[f"consistent_{kind}"].all()
        assert rows[f"change_{kind}"].mean() < 1e-12
    else:
        assert rows[f"change_{kind}"].mean() > 1e-4, "a crop brings new pixels into view"


@every_kind
def test_later_draws_continue_where_earlier_ones_ended(kind: str) -> None:
    """Of any number for each image."""
    batch = shard()

    def draw(repeats: int, before: pd.DataFrame) -> pd.DataFrame:
        return plan_metric(f"consistency:{kind}", repeats=repeats).measure(batch, before)

    whole, one, three = (draw(repeats, nothing()) for repeats in (4, 1, 3))
    grown = draw(4, pd.concat([one.iloc[:3], three.iloc[3:6]]).reindex(range(COUNT)))
    pd.testing.assert_frame_equal(grown.drop(columns="passes"), whole.drop(columns="passes"))
    assert (grown["passes"] * 4 == whole["passes"] * ([3] * 3 + [1] * 3 + [4] * 3)).all()


@every_kind
def test_images_seeds_and_repeats_draw_their_own(kind: str) -> None:
    draws = [
        CONSISTENCIES.get(kind).pair(str(key), 32, seed=seed, repeat=repeat)
        for key in range(19)
        for seed, repeat in ((0, 0), (1, 0), (0, 1))
    ]
    assert len(set(draws)) > 0.95 * len(draws)


def test_integer_draws_are_uniform_without_the_origin() -> None:
    span, trials = 2, 4800
    kind = CONSISTENCIES.get("integer")
    pairs = [kind.pair(str(i), span) for i in range(trials)]
    assert all(first == ORIGIN for first, _ in pairs)
    counts = Counter(second for _, second in pairs)
    axis = [float(i) for i in range(-span, span + 1)]
    assert set(counts) == {Offset(dy, dx) for dy in axis for dx in axis} - {ORIGIN}
    expected = trials / 24
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 49.7  # the 99.9% quantile with 23 degrees of freedom


def test_half_draws_are_such_integers_plus_a_half() -> None:
    half, trials = CONSISTENCIES.get("half"), 1000
    seconds = {half.pair(str(i), 1)[1] for i in range(trials)}
    axis = (-0.5, 0.5, 1.5)
    assert seconds == {Offset(dy, dx) for dy in axis for dx in axis} - {Offset(0.5, 0.5)}


@pytest.mark.parametrize(("span", "low", "high"), [(32, -16, 15), (5, -2, 2), (2, -1, 0)])
def test_crop_draws_cover_the_places_of_the_window(span: int, low: int, high: int) -> None:
    kind = CONSISTENCIES.get("crop")
    pairs = [kind.pair(str(i), span) for i in range(1000)]
    places = {v for pair in pairs for offset in pair for v in (offset.dy, offset.dx)}
    assert places == set(range(low, high + 1))
    assert kind.margin(span) == max(-low, high)
    assert any(first != ORIGIN for first, _ in pairs)


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
