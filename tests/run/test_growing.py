"""A record grows along every axis, and equals one that was made in one go, image by image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from shiftbench.data import Scenes
from shiftbench.errors import RecordError
from shiftbench.models import Classifier, as_classifier
from shiftbench.records.record import Record, ResultStore, read_record
from shiftbench.run.benchmark import Execution, Outcome, run
from shiftbench.run.settings import Settings
from shiftbench.run.worker import Estimate, Progress
from shiftbench.scores import ScoreName

SIDE, IMAGES = 16, 24
RECIPE = {"input_size": SIDE, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
CPU = Execution(device="cpu", batch_size=8)
BASE = Settings(attacks=("crop",), max_shift=1, consistency=(), seed=3)


class Counting(nn.Module):
    """A small, fragile network that counts the images it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 4, stride=4)
        self.head = nn.Linear(16, 12)
        self.seen = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        logits: Tensor = self.head(self.conv(images).relu().amax((2, 3)))
        return logits


@dataclass(frozen=True)
class Bench:
    """A model, images that it mostly gets right, and runs of it."""

    network: Counting
    classifier: Classifier
    images: Scenes

    def run(self, root: Path, settings: Settings, **options: Any) -> Outcome:
        store = ResultStore(root)
        return run(self.classifier, self.images, settings, store, execution=CPU, **options)


@pytest.fixture(scope="module")
def bench() -> Bench:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = Counting().eval()
    images = Scenes("test", IMAGES)
    pixels = images.render(range(IMAGES), SIDE).float() / 255
    with torch.no_grad():
        seen = network((pixels - 0.5) / 0.25).argmax(1).tolist()
    truth = [answer if i % 4 else (answer + 1) % 12 for i, answer in enumerate(seen)]
    vars(images)["labels"] = truth
    return Bench(network, as_classifier(network, RECIPE, name="counting"), images)


def assert_equal(grown: Record, whole: Record) -> None:
    """The same rows, scores and settings; only the cost and the date may differ."""
    order = sorted(whole.samples())
    pd.testing.assert_frame_equal(
        grown.samples()[order], whole.samples()[order], rtol=0, atol=1e-6, check_like=True
    )
    assert set(grown.samples()) == set(whole.samples())
    assert grown.metrics == whole.metrics
    assert grown.settings == whole.settings
    assert grown.data == whole.data
    assert dict(grown.maps) == dict(whole.maps)
    assert set(grown.scores) == set(whole.scores)
    for name, score in whole.scores.items():
        assert vars(grown.scores[name]) == pytest.approx(vars(score), abs=1e-6)


WIDE = replace(BASE, attacks=("crop", "integer"), max_shift=2, consistency=("integer", "crop"))
AXES = {
    "another attack": (BASE, replace(BASE, attacks=("integer",))),
    "a wider grid": (BASE, replace(BASE, max_shift=3)),
    "a wider full grid": (
        replace(BASE, mode="full_grid"),
        replace(BASE, mode="full_grid", max_shift=2),
    ),
    "every offset": (BASE, replace(BASE, mode="full_grid")),
    "an exact search": (replace(BASE, mode="sampled:2"), BASE),
    "consistency": (BASE, replace(BASE, attacks=(), consistency=("half", "crop"))),
    "more repeats": (
        replace(BASE, attacks=(), consistency=("integer", "crop")),
        replace(BASE, attacks=(), consistency=("integer", "crop"), repeats=3),
    ),
    "more images": (replace(WIDE, limit=7), replace(WIDE, limit=15)),
    "all images": (replace(WIDE, limit=7), WIDE),
    "more searched images": (replace(WIDE, search_limit=5), replace(WIDE, search_limit=11)),
    "all images searched": (replace(WIDE, search_limit=5), WIDE),
    "another step": (BASE, replace(BASE, attacks=("integer",), step="1/4")),
    "everything at once": (
        replace(BASE, limit=9, search_limit=4, consistency=("integer",)),
        replace(WIDE, repeats=2),
    ),
}


def in_one_go(first: Settings, second: Settings) -> Settings:
    """What a user would have run to get everything of both at once."""
    return replace(
        second,
        attacks=tuple(dict.fromkeys((*first.attacks, *second.attacks))),
        consistency=tuple(dict.fromkeys((*first.consistency, *second.consistency))),
    )


@pytest.mark.parametrize("axis", [name for name in AXES if name != "another step"])
def test_a_grown_record_equals_one_made_in_one_go(axis: str, bench: Bench, tmp_path: Path) -> None:
    first, second = AXES[axis]
    bench.run(tmp_path / "grown", first)
    bench.network.seen = 0
    grown = bench.run(tmp_path / "grown", second)
    added = bench.network.seen
    bench.network.seen = 0
    whole = bench.run(tmp_path / "whole", in_one_go(first, second))
    assert not grown.reused
    assert_equal(grown.record, whole.record)
    assert read_record(grown.record.folder or tmp_path).scores == grown.record.scores
    fresh_start = axis in ("every offset", "an exact search")  # what is there is of no use to them
    assert added < bench.network.seen or fresh_start
    assert grown.record.forward_passes >= whole.record.forward_passes or not fresh_start


def test_rings_that_only_some_images_were_searched_to_are_scored_on_them_alone(
    bench: Bench, tmp_path: Path
) -> None:
    bench.run(tmp_path / "grown", BASE)
    few = replace(BASE, limit=6, max_shift=3)
    grown = bench.run(tmp_path / "grown", few).record
    alone = bench.run(tmp_path / "alone", few).record
    whole = bench.run(tmp_path / "whole", BASE).record
    crop = ScoreName("adversarial", "crop")
    for radius in range(4):
        expected = whole if radius <= 1 else alone
        point = replace(crop, radius=radius)
        assert grown.scores[point] == expected.scores[point]
        images = grown.metrics[crop.stem].images_of(point)
        assert images == expected.metrics[crop.stem].images_of(point)
    assert grown.metrics[crop.stem].images == IMAGES
    assert list(grown.metrics[crop.stem].parts) == ["adversarial_crop@2", "adversarial_crop@3"]


def test_another_step_is_another_grid(bench: Bench, tmp_path: Path) -> None:
    first, second = AXES["another step"]
    bench.run(tmp_path, first)
    record = bench.run(tmp_path, second).record
    assert [str(name) for name in record.scores.curves()] == [
        "adversarial_integer[1/4]",
        "adversarial_crop",
    ]


def test_only_the_new_rings_of_unbroken_images_are_searched(bench: Bench, tmp_path: Path) -> None:
    before = bench.run(tmp_path, BASE).record
    left = int(before.samples()["crop_broken_radius"].isna().sum())
    assert 0 < left < IMAGES
    grown = bench.run(tmp_path, replace(BASE, max_shift=2)).record
    assert 0 < grown.forward_passes - before.forward_passes <= left * (25 - 9)
    assert grown.seconds > before.seconds


@pytest.mark.parametrize(
    "narrower",
    [
        replace(WIDE, max_shift=1),
        replace(WIDE, attacks=("crop",)),
        replace(WIDE, consistency=()),
        replace(WIDE, limit=5),
        replace(WIDE, search_limit=3),
        replace(WIDE, mode="sampled:2"),
    ],
)
def test_a_narrower_request_is_answered_from_what_is_there(
    narrower: Settings, bench: Bench, tmp_path: Path
) -> None:
    whole = bench.run(tmp_path, WIDE)
    bench.network.seen = 0
    again = bench.run(tmp_path, narrower)
    assert again.reused
    assert again.record == whole.record
    assert bench.network.seen == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 4}, r"settings\.seed was 3, is 4"),
        ({"crop_pct": "1.0"}, r"data\.geometry\.crop"),
        ({"pad": "reflect"}, r"data\.geometry\.pad"),
        ({"engine": "compile"}, r'settings\.engine was "torch", is "compile"'),
    ],
)
def test_other_conditions_are_refused_with_both_values(
    change: dict[str, Any], words: str, bench: Bench, tmp_path: Path
) -> None:
    bench.run(tmp_path, BASE)
    with pytest.raises(RecordError, match=words):
        bench.run(tmp_path, replace(BASE, attacks=("integer",), **change))


class StopError(Exception):
    """Ends a run from outside, as a signal would."""


@pytest.mark.parametrize("calls", [5, 12, 25])
def test_a_kill_while_growing_loses_nothing(
    calls: int, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftbench.run.shard_size.FIRST", 5)
    monkeypatch.setattr("shiftbench.run.shard_size.GROWTH", 1)
    first, second = replace(WIDE, limit=9, max_shift=1), replace(WIDE, repeats=2)
    before = bench.run(tmp_path / "grown", first).record
    events: list[Estimate | Progress] = []

    def watch(event: Estimate | Progress) -> None:
        events.append(event)
        if len(events) == calls:
            raise StopError

    with pytest.raises(StopError):
        bench.run(tmp_path / "grown", second, watch=watch)
    folder = before.folder
    assert folder is not None
    assert read_record(folder) == before, "the old record stands until the new one is whole"
    done = {e.metric: e.done for e in events if isinstance(e, Progress)}
    resumed: list[Estimate | Progress] = []
    grown = bench.run(tmp_path / "grown", second, watch=resumed.append).record
    at_start = {e.metric: e.done for e in reversed(resumed) if isinstance(e, Progress)}
    assert at_start == done, "nothing is measured twice"
    assert_equal(grown, bench.run(tmp_path / "whole", second).record)
    assert not (folder / "parts").exists()


def test_another_request_after_a_kill_uses_what_was_finished(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftbench.run.shard_size.FIRST", 5)
    monkeypatch.setattr("shiftbench.run.shard_size.GROWTH", 1)
    events: list[Estimate | Progress] = []

    def watch(event: Estimate | Progress) -> None:
        events.append(event)
        if len(events) == 20:
            raise StopError

    with pytest.raises(StopError):
        bench.run(tmp_path / "grown", replace(WIDE, max_shift=1), watch=watch)
    grown = bench.run(tmp_path / "grown", WIDE).record
    assert_equal(grown, bench.run(tmp_path / "whole", WIDE).record)


def test_the_estimate_bounds_the_passes(bench: Bench, tmp_path: Path) -> None:
    events: list[Estimate | Progress] = []
    bench.run(tmp_path, WIDE, watch=events.append)
    [estimate] = [event for event in events if isinstance(event, Estimate)]
    passes = bench.run(tmp_path, WIDE).record.forward_passes
    assert passes <= estimate.passes
    assert estimate.passes == IMAGES * (1 + 1 + 2 + 24 + 24)  # (0,0), two draws, two grids
    assert estimate.seconds > 0
    far = [
        e.done + e.under_way
        for e in events
        if isinstance(e, Progress) and e.metric == "adversarial_crop"
    ]
    assert all(0 <= value <= IMAGES for value in far)
    assert len(set(far)) > 3, "it moves within a shard"


def test_a_limit_in_the_library_takes_a_subset(bench: Bench, tmp_path: Path) -> None:
    record = bench.run(tmp_path, replace(BASE, limit=6)).record
    assert record.data.images == 6 == len(record.samples())
    assert record.settings["limit"] == 6


def test_a_larger_run_that_was_stopped_leaves_nothing_in_a_smaller_record(
    bench: Bench, tmp_path: Path
) -> None:
    large, small = WIDE, replace(WIDE, search_limit=4)

    def stop(event: Estimate | Progress) -> None:
        if isinstance(event, Progress) and event.metric == "adversarial_integer" and event.measured:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.run(tmp_path / "both", large, watch=stop)
    assert_equal(
        bench.run(tmp_path / "both", small).record, bench.run(tmp_path / "small", small).record
    )
    bench.network.seen = 0
    grown = bench.run(tmp_path / "both", large)
    added = bench.network.seen
    bench.network.seen = 0
    assert_equal(grown.record, bench.run(tmp_path / "large", large).record)
    assert added < bench.network.seen  # what the stopped run had measured was kept for it
    assert not list((tmp_path / "both").rglob("*/parts"))
