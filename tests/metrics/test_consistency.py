"""Random-shift agreement: the draws, and what is made of them."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.metrics.base import ImageBatch, score_rows
from shiftbench.metrics.consistency import CONSISTENCIES, Consistency
from shiftbench.metrics.predictions import Model

COUNT, MARGIN = 19, 3
KEYS = [f"image/{i}" for i in range(COUNT)]
NOTHING = pd.DataFrame(index=range(COUNT))
every_kind = pytest.mark.parametrize("kind", list(CONSISTENCIES))


def prepare(model: Model, batch_size: int = 6) -> ImageBatch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(COUNT, 3, 14, 17, generator=generator).double()
    labels = np.zeros(COUNT, dtype=np.int64)
    return ImageBatch.predict(model, images, MARGIN, KEYS, labels, batch_size=batch_size)


def metric(kind: str, repeats: int = 1, seed: int = 0) -> Consistency:
    return Consistency(kind, CONSISTENCIES.get(kind).span(14 - 2 * MARGIN, 14), repeats, seed)


def fragile(x: Tensor) -> Tensor:
    weight = torch.randn(4, *x.shape[1:], generator=torch.Generator().manual_seed(1)).double()
    return torch.einsum("bchw,kchw->bk", x, weight) / 4


@every_kind
def test_equals_the_definition_image_by_image(kind: str) -> None:
    drawn, entry = metric(kind, repeats=2, seed=7), CONSISTENCIES.get(kind)
    batch = prepare(fragile)
    views, rows = batch.views(entry.shift), drawn.measure(batch, NOTHING)
    for i, key in enumerate(KEYS):
        agreed, changes = 0, []
        for repeat in range(2):
            pair = entry.pair(key, drawn.span, seed=7, repeat=repeat)
            first, second = (fragile(views(offset)[i : i + 1])[0] for offset in pair)
            best = first.argmax()
            agreed += bool(second.argmax() == best)
            changes.append((second.softmax(0)[best] - first.softmax(0)[best]).abs().item())
        assert rows[f"agreed_{kind}"][i] == agreed
        assert rows[f"change_{kind}"][i] == pytest.approx(np.mean(changes), abs=1e-12)
    [share, _] = score_rows([drawn], rows).values()
    assert share.value == rows[f"agreed_{kind}"].mean() / 2
    assert 0 < share.value < 1, "the case should tell images apart"
    assert (rows["passes"] == (2 if entry.from_origin else 4)).all()


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
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(2)).double()
    rows = metric(kind).measure(prepare(lambda x: x.mean((2, 3)) @ weight), NOTHING)
    if CONSISTENCIES.get(kind).shift == "cyclic":
        assert rows[f"consistent_{kind}"].all()
        assert rows[f"change_{kind}"].mean() < 1e-12
    else:
        assert rows[f"change_{kind}"].mean() > 1e-4, "a crop brings new pixels into view"


@every_kind
def test_later_draws_continue_where_earlier_ones_ended(kind: str) -> None:
    """Of any number for each image."""
    batch = prepare(fragile)
    whole = metric(kind, repeats=4).measure(batch, NOTHING)
    parts = [metric(kind, repeats=r).measure(batch, NOTHING) for r in (1, 3)]
    before = pd.concat([parts[0].iloc[:5], parts[1].iloc[5:12]]).reindex(range(COUNT))
    grown = metric(kind, repeats=4).measure(batch, before)
    pd.testing.assert_frame_equal(grown.drop(columns="passes"), whole.drop(columns="passes"))
    left = [3] * 5 + [1] * 7 + [4] * 7
    assert (grown["passes"] * 4 == whole["passes"] * left).all()


# --- the draws themselves -----------------------------------------------------------------------


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
