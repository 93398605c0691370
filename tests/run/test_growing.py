"""A record grows along every axis, and equals one that was made in one go, image by image."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given
from shard_runs import RECIPE, Net, assert_equal, labeled
from torch import Tensor

from shiftbench.data import Scenes
from shiftbench.errors import RecordError
from shiftbench.metrics import METRICS, Metric
from shiftbench.models import Model
from shiftbench.records.record import Record, read_record, read_records
from shiftbench.records.verify import contradictions
from shiftbench.run.job import Settings, make_job
from shiftbench.run.progress import Estimate, Progress, ProgressCallback
from shiftbench.run.runner import Execution, RunResult, run
from shiftbench.scores import ScoreName

IMAGES = 24
CPU = Execution(device="cpu", batch_size=8)
BASE = Settings(attacks=("crop",), max_shift=1, consistency=(), seed=3)


class Counting(Net):
    """Has coarse logits, often tied, and counts the images it sees."""

    seen = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return (super().forward(images) * 32).round() / 32


@dataclass(frozen=True, eq=False)
class Bench:
    """A model, images that it mostly gets right, and runs of it."""

    network: Counting
    classifier: Model
    images: Scenes

    def run(self, root: Path, settings: Settings, **options: Any) -> RunResult:
        return run(self.classifier, self.images, settings, root, execution=CPU, **options)


@pytest.fixture(scope="module")
def bench() -> Bench:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = Counting().eval()
    images = labeled(network, IMAGES)
    return Bench(network, Model(network, RECIPE, name="counting"), images)


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


@pytest.mark.parametrize("axis", AXES)
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
    # What is there is of no use to a search of another kind.
    fresh_start = axis in ("a wider full grid", "every offset", "an exact search")
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
    bench.run(tmp_path, BASE)
    record = bench.run(tmp_path, replace(BASE, attacks=("integer",), step="1/4")).record
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


SAMPLED = replace(BASE, mode="sampled:2")
FULL = replace(BASE, mode="full_grid")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (BASE, replace(SAMPLED, max_shift=3)),
        (replace(BASE, max_shift=3), FULL),
        (FULL, replace(BASE, max_shift=3)),
        (replace(FULL, max_shift=2, search_limit=5), FULL),
        (BASE, replace(FULL, search_limit=5)),
        (SAMPLED, replace(SAMPLED, mode="sampled:3", limit=5)),
        (SAMPLED, replace(BASE, search_limit=5)),
        (replace(SAMPLED, search_limit=5), replace(SAMPLED, max_shift=3, search_limit=4)),
    ],
)
def test_searches_that_cannot_be_combined_are_refused(
    first: Settings, second: Settings, bench: Bench, tmp_path: Path
) -> None:
    before = bench.run(tmp_path, first).record
    bench.network.seen = 0
    with pytest.raises(RecordError, match=r"adversarial_crop .* cannot be combined.*--output"):
        bench.run(tmp_path, second)
    assert bench.network.seen == 0
    assert before.folder is not None
    assert read_record(before.folder) == before


def test_rings_that_need_no_search_are_added_to_a_finished_record(
    bench: Bench, tmp_path: Path
) -> None:
    """Every image is broken already: nothing is measured, and the record grows all the same."""
    hopeless = Scenes("test", IMAGES)
    labels = [(label + 1) % 12 for label in bench.images.labels]
    vars(hopeless)["labels"] = [x if i % 4 else (x + 5) % 12 for i, x in enumerate(labels)]
    wrong = replace(bench, images=hopeless)
    wrong.run(tmp_path / "grown", BASE)
    bench.network.seen = 0
    grown = wrong.run(tmp_path / "grown", replace(BASE, max_shift=3))
    assert not grown.reused
    assert bench.network.seen == 0
    assert_equal(grown.record, wrong.run(tmp_path / "whole", replace(BASE, max_shift=3)).record)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (
            replace(BASE, max_shift=3, consistency=("integer",), repeats=3),
            replace(BASE, consistency=("integer",)),
        ),
        (WIDE, replace(WIDE, search_limit=4)),
    ],
)
def test_a_stopped_wide_run_does_not_leak_into_a_narrower_record(
    wide: Settings, narrow: Settings, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftbench.run.runner.FIRST_IMAGES", 8)
    with pytest.raises(StopError):
        bench.run(tmp_path / "both", wide, callback=stop_after(8, wide.attacks[-1]))
    record, alone = (bench.run(tmp_path / name, narrow).record for name in ("both", "alone"))
    # A tie beyond the narrow grid stays flagged.
    assert (record.samples()["near_tie"] | ~alone.samples()["near_tie"]).all()
    ties = record.samples()["near_tie"]
    assert_equal(record, replace(alone, table=alone.samples().assign(near_tie=ties)))
    bench.network.seen = 0
    grown = bench.run(tmp_path / "both", wide)
    added, bench.network.seen = bench.network.seen, 0
    assert_equal(grown.record, bench.run(tmp_path / "whole", wide).record)
    assert added < bench.network.seen, "what the stopped run had measured waited for it"
    assert not list((tmp_path / "both").rglob("*/parts"))


class StopError(Exception):
    """Ends a run from outside, as a signal would."""


def stop_after(images: int, metric: str = "") -> ProgressCallback:
    """Ends a run when a metric, of this name if any, has measured so many images."""

    def callback(event: Estimate | Progress) -> None:
        if isinstance(event, Progress) and event.measured >= images and metric in event.metric:
            raise StopError

    return callback


# --- random sequences of requests and kills, against one go


@st.composite
def requests(draw: st.DrawFn) -> Settings:
    """Something that a user may ask for, as small as possible."""
    return replace(
        BASE,
        attacks=draw(st.sampled_from([("crop",), ("integer",), ("crop", "integer"), ()])),
        max_shift=draw(st.integers(0, 2)),
        mode=draw(st.sampled_from(["exhaustive"] * 4 + ["full_grid", "sampled:2"])),
        consistency=draw(st.sampled_from([(), ("integer",), ("crop",)])),
        repeats=draw(st.integers(1, 2)),
        limit=draw(st.sampled_from([None, 6, 13])),
        search_limit=draw(st.sampled_from([None, None, 4, 9])),
    )


def stop_at(event: int) -> ProgressCallback:
    """Ends a run at its n-th event."""
    events = iter(range(1, 10**9))

    def callback(_: Estimate | Progress) -> None:
        if next(events) == event:
            raise StopError

    return callback


def fuzz(bench: Bench, root: Path, steps: list[tuple[Settings, int]]) -> None:
    """Runs requests one after the other, some of them killed, and checks every record."""
    accepted: list[Settings] = []
    for settings, kill in steps:
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("shiftbench.run.runner.FIRST_IMAGES", 7)
                patch.setattr("shiftbench.run.runner.GROWTH", 1)
                bench.run(root, settings, callback=stop_at(kill) if kill else None)
        except StopError:
            continue
        except RecordError as error:
            if "cannot be combined" not in str(error):
                raise
            continue
        accepted.append(settings)
        [record] = read_records([root])
        assert contradictions(record) == []
        flagged = set(record.samples().query("near_tie")["key"])
        for s in accepted:
            if not s.mode.startswith("sampled"):  # an exact search may stop before its ties
                assert flagged.issuperset(_alone(bench, s)[1].query("near_tie").index)
        for name, metric in ((n, info.load()) for n, info in record.metrics.items()):
            assert metric is not None
            asked = [s for s in accepted if name in {m.name for m in _metrics(bench, s)}]
            _assert_as_in_one_go(bench, record, name, asked)


def _metrics(bench: Bench, settings: Settings) -> tuple[Metric, ...]:
    return make_job(bench.classifier, bench.images, settings).metrics


@cache
def _alone(bench: Bench, settings: Settings) -> tuple[Record, pd.DataFrame]:
    """A request in one go."""
    with tempfile.TemporaryDirectory() as folder:
        record = bench.run(Path(folder), settings).record
        return record, record.samples().set_index("key")


def _assert_as_in_one_go(bench: Bench, record: Record, name: str, asked: list[Settings]) -> None:
    """The rows of a metric are, image by image, those of the widest request for that image."""
    info = record.metrics[name]
    grown = record.samples().set_index("key")
    columns = [c for c in METRICS.get(info.kind).load(info.settings).columns if c in grown]
    grown = grown.loc[grown[columns[0]].notna(), columns]
    best: dict[str, tuple[int, pd.Series]] = {}
    for settings in asked:
        alone, rows = _alone(bench, settings)
        metric = alone.metrics[name].load()
        assert metric is not None
        rows = rows[rows[metric.columns[0]].notna()]
        detail = 1000 * (info.settings.get("mode") == metric.settings().get("mode"))
        amounts = rows[metric.columns[0]] if metric.amount is not None else [0] * len(rows)
        for key, amount in zip(rows.index, amounts, strict=True):
            rank = int(amount) + detail
            if key not in best or rank >= best[key][0]:
                best[key] = rank, rows.loc[key].reindex(columns)
    assert set(best) == set(grown.index)
    for key, (_, row) in best.items():
        for column in columns:
            a, b = grown.loc[key, column], row[column]
            if isinstance(a, bytes):
                assert a == b
            elif pd.isna(a) or pd.isna(b):
                assert pd.isna(a)
                assert pd.isna(b)
            else:
                assert a == pytest.approx(b, abs=1e-6), (name, key, column)


# Kills at any event: of the first metric or the last, of the first images or later ones.
KILLS = st.sampled_from([0] * 6 + [2, 8, 12, 17, 25, 40])
STEPS = st.lists(st.tuples(requests(), KILLS), min_size=2, max_size=5)


@given(steps=STEPS)
@hypothesis.settings(
    max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
def test_random_sequences_equal_one_go(
    steps: list[tuple[Settings, int]], bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fuzz(bench, tmp_path_factory.mktemp("fuzz"), steps)


@pytest.mark.slow
@given(steps=STEPS)
@hypothesis.settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_random_sequences_equal_one_go(
    steps: list[tuple[Settings, int]], bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fuzz(bench, tmp_path_factory.mktemp("fuzz"), steps)


@pytest.mark.parametrize("calls", [5, 12, 25])
@pytest.mark.parametrize("grows", [True, False])
def test_a_kill_loses_nothing(
    calls: int, grows: bool, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftbench.run.runner.FIRST_IMAGES", 5)
    monkeypatch.setattr("shiftbench.run.runner.GROWTH", 1)
    first, second = replace(WIDE, limit=9, max_shift=1), replace(WIDE, repeats=2)
    before = bench.run(tmp_path / "grown", first).record if grows else None
    events: list[Estimate | Progress] = []
    stop = stop_at(calls)

    def watch(event: Estimate | Progress) -> None:
        events.append(event)
        stop(event)

    with pytest.raises(StopError):
        bench.run(tmp_path / "grown", second, callback=watch)
    # The old record stands until the new one is whole.
    assert read_records([tmp_path / "grown"]) == ([before] if before else [])
    done = {e.metric: e.done for e in events if isinstance(e, Progress)}
    resumed: list[Estimate | Progress] = []
    grown = bench.run(tmp_path / "grown", second, callback=resumed.append).record
    at_start = {e.metric: e.done for e in reversed(resumed) if isinstance(e, Progress)}
    assert {metric: at_start[metric] for metric in done} == done, "nothing is measured twice"
    assert_equal(grown, bench.run(tmp_path / "whole", second).record)
    assert grown.folder is not None
    names = {path.name for path in grown.folder.iterdir()}
    assert names == {".lock", "record.json", "samples.parquet"}


def test_the_estimate_bounds_the_passes(bench: Bench, tmp_path: Path) -> None:
    events: list[Estimate | Progress] = []
    bench.run(tmp_path, WIDE, callback=events.append)
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
