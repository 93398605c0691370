"""A record grows along every axis and equals that of a single run, cell by cell."""

from __future__ import annotations

import multiprocessing
import random
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given
from small_runs import (
    BASE,
    CPU,
    IMAGES,
    PREPROCESSING,
    Bench,
    StopError,
    assert_same_tables,
    run_shard,
    sensitive_network,
    stop_at,
)

from shiftbench.errors import RecordError, UsageError
from shiftbench.models import Model
from shiftbench.records.folder import load_record
from shiftbench.records.result import Result
from shiftbench.records.verify import contradictions
from shiftbench.running import runner
from shiftbench.running.job import Settings, make_job
from shiftbench.running.runner import run
from shiftbench.running.shards import Shard

WIDE = replace(BASE, attacks=("crop", "integer"), max_shift=2, consistency=("integer", "crop"))
AXES = {
    "attack": (BASE, replace(BASE, attacks=("integer",))),
    "max shift": (BASE, replace(BASE, max_shift=3)),
    "full grid": (BASE, replace(BASE, full_grid=True)),
    "wider full grid": (replace(BASE, full_grid=True), replace(BASE, full_grid=True, max_shift=2)),
    "consistency": (BASE, replace(BASE, attacks=(), consistency=("half", "crop"))),
    "samples": (
        replace(BASE, attacks=(), consistency=("integer", "crop")),
        replace(BASE, attacks=(), consistency=("integer", "crop"), consistency_samples=3),
    ),
    "images": (replace(WIDE, limit=7), replace(WIDE, limit=15)),
    "all images": (replace(WIDE, limit=7), WIDE),
    "attacked images": (replace(WIDE, attack_limit=5), replace(WIDE, attack_limit=11)),
    "everything": (
        replace(BASE, limit=9, attack_limit=4, consistency=("integer",)),
        replace(WIDE, consistency_samples=2, metrics=("flip", "agreement:4:roll")),
    ),
}


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench.make()


def in_one_run(first: Settings, second: Settings) -> Settings:
    """Return the settings of a single run for both requests."""
    return replace(
        second,
        attacks=tuple(dict.fromkeys((*first.attacks, *second.attacks))),
        consistency=tuple(dict.fromkeys((*first.consistency, *second.consistency))),
    )


def scores(result: Result) -> dict[str, Any]:
    return {str(name): score for name, score in result.scores.items()}


@pytest.mark.parametrize("axis", AXES)
def test_growth_equals_single_run_and_predicts_no_cell_twice(
    axis: str, bench: Bench, tmp_path: Path
) -> None:
    first, second = AXES[axis]
    bench.network.seen = 0
    bench.run(tmp_path / "grown", first)
    grown = bench.result(tmp_path / "grown", second)
    seen, bench.network.seen = bench.network.seen, 0
    whole = bench.result(tmp_path / "whole", in_one_run(first, second))
    for name, score in whole.scores.items():  # probabilities round differently in other batches
        tolerance = 1e-5 if name.family == "change" else 0
        assert grown.scores[name].value == pytest.approx(score.value, rel=0, abs=tolerance)
        assert grown.scores[name].n == score.n
    assert_same_tables(grown.tables, whole.tables)
    overhead = 9  # the comparison of the first image alone and in a batch, once per run
    assert seen <= bench.network.seen + overhead
    assert contradictions(load_record(grown.folder or tmp_path)) == []


def test_growth_keeps_scores_of_more_images(bench: Bench, tmp_path: Path) -> None:
    bench.run(tmp_path, replace(BASE, max_shift=2, attack_limit=6))
    result = bench.result(tmp_path, BASE)
    crop = {name.radius: score.n for name, score in result.scores.items() if name.kind == "crop"}
    assert crop == {0: IMAGES, 1: IMAGES, 2: 6}


@pytest.mark.parametrize(
    "narrower",
    [
        replace(WIDE, max_shift=1),
        replace(WIDE, attacks=("crop",)),
        replace(WIDE, consistency=()),
        replace(WIDE, limit=5),
        replace(WIDE, attack_limit=3),
    ],
)
def test_narrower_request_predicts_nothing_and_keeps_the_record(
    narrower: Settings, bench: Bench, tmp_path: Path
) -> None:
    whole = bench.result(tmp_path, WIDE)
    bench.network.seen = 0
    again = bench.run(tmp_path, narrower)
    assert again.complete
    assert bench.network.seen == 0
    assert again.record is not None
    assert scores(again.record) == scores(whole)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 4}, "seed was 3, is 4"),
        ({"precision": "tf32"}, "precision was fp32, is tf32"),
        ({"crop_pct": "1.0"}, r"geometry\.crop was paper, is 1\.0"),
        ({"pad": "reflect"}, r"geometry\.pad was none, is reflect"),
    ],
)
def test_other_conditions_raise_with_both_values(
    change: dict[str, Any], words: str, bench: Bench, tmp_path: Path
) -> None:
    before = bench.result(tmp_path)
    with pytest.raises(RecordError, match=rf"{words}.*--fresh"):
        bench.run(tmp_path, replace(BASE, attacks=("integer",), **change))
    assert scores(load_record(before.folder or tmp_path)) == scores(before)


def test_fresh_replaces_the_record(bench: Bench, tmp_path: Path) -> None:
    bench.run(tmp_path, WIDE)
    result = bench.result(tmp_path, replace(BASE, seed=4), fresh=True)
    assert result.settings["seed"] == 4
    assert all(name.kind in ("", "crop") for name in result.scores)


def test_fresh_shard_raises(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--fresh with --shard"):
        bench.run(tmp_path, execution=replace(CPU, shard=Shard(1, 2)), fresh=True)


def test_other_weights_under_the_same_name_raise(bench: Bench, tmp_path: Path) -> None:
    bench.run(tmp_path)
    other = Model(sensitive_network(seed=6), PREPROCESSING, name="sensitive")
    with pytest.raises(RecordError, match="weights, logits changed"):
        run(other, bench.images, BASE, tmp_path, execution=CPU)


def test_other_normalization_under_the_same_name_raises(bench: Bench, tmp_path: Path) -> None:
    bench.run(tmp_path)
    other = Model(bench.network, {**PREPROCESSING, "mean": 0.4}, name="sensitive")
    with pytest.raises(RecordError, match=r"mean was \[0\.5, .*, is \[0\.4, "):
        run(other, bench.images, BASE, tmp_path, execution=CPU)


def test_interrupted_run_saves_cells_and_continues(bench: Bench, tmp_path: Path) -> None:
    bench.network.seen = 0
    with pytest.raises(StopError):
        bench.run(tmp_path / "cut", WIDE, callback=stop_at(12))
    result = bench.result(tmp_path / "cut", WIDE)
    seen, bench.network.seen = bench.network.seen, 0
    assert_same_tables(result.tables, bench.result(tmp_path / "whole", WIDE).tables)
    assert seen <= bench.network.seen + 9


@pytest.mark.parametrize("count", [2, 3])
def test_shards_give_one_file_equal_to_a_single_run(
    count: int, bench: Bench, tmp_path: Path
) -> None:
    results = [
        bench.run(tmp_path / "shards", WIDE, execution=replace(CPU, shard=Shard(i + 1, count)))
        for i in range(count)
    ]
    assert [r.record is None for r in results] == [True] * (count - 1) + [False]
    assert results[0].left == IMAGES - len(range(0, IMAGES, count))
    whole = bench.result(tmp_path / "whole", WIDE)
    assert len(list((tmp_path / "shards").rglob("*.parquet"))) == 1
    assert results[-1].record is not None
    assert_same_tables(results[-1].record.tables, whole.tables)


# --- random sequences of requests, shards and interruptions, against a single run


@st.composite
def requests(draw: st.DrawFn) -> Settings:
    return replace(
        BASE,
        attacks=draw(st.sampled_from([("crop",), ("integer",), ("crop", "integer"), ()])),
        max_shift=draw(st.integers(0, 2)),
        full_grid=draw(st.sampled_from([False, False, False, True])),
        consistency=draw(st.sampled_from([(), ("integer",), ("crop",)])),
        consistency_samples=draw(st.integers(1, 2)),
        metrics=draw(st.sampled_from([(), (), ("flip",), ("agreement:2:roll",)])),
        limit=draw(st.sampled_from([None, 6, 13])),
        attack_limit=draw(st.sampled_from([None, None, 4, 9])),
    )


steps = st.lists(
    st.tuples(
        requests(),
        st.integers(0, 30),  # the event at which the run is interrupted; 0: never
        st.sampled_from([1, 1, 2, 3]),  # shards
        st.sampled_from([1, 5, 8]),  # batch size
    ),
    min_size=1,
    max_size=4,
)


@cache
def single_runs() -> tuple[Bench, tempfile.TemporaryDirectory[str], dict[Settings, Result]]:
    return Bench.make(), tempfile.TemporaryDirectory(), {}


def single_run(settings: Settings) -> Result:
    bench, folder, done = single_runs()
    if settings not in done:
        done[settings] = bench.result(Path(folder.name) / str(len(done)), settings)
    return done[settings]


def check_sequence(sequence: list[tuple[Settings, int, int, int]]) -> None:
    bench, _, _ = single_runs()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for settings, stop, shards, batch_size in sequence:
            for index in range(shards):
                shard = Shard(index + 1, shards)
                execution = replace(CPU, batch_size=batch_size, shard=shard)
                callback = stop_at(stop) if stop else None
                try:
                    bench.run(root, settings, execution=execution, callback=callback)
                except StopError:
                    continue
        for settings in dict.fromkeys(settings for settings, *_ in sequence):
            run_result, expected = bench.run(root, settings), single_run(settings)
            result, requested = run_result.record, run_result.requested
            assert result is not None
            assert requested is not None
            assert result.folder is not None
            assert set(requested.scores) == set(expected.scores) <= set(result.scores)
            for score_name, score in expected.scores.items():
                # Probabilities round differently in other batches.
                tolerance = 1e-5 if score_name.family == "change" else 0
                ours_value = requested.scores[score_name].value
                assert ours_value == pytest.approx(score.value, rel=0, abs=tolerance)
                assert requested.scores[score_name].n == score.n <= result.scores[score_name].n
            for request in make_job(bench.model, bench.images, settings).requests:
                keys = expected.tables.keys[: request.images]
                table = request.metric.table
                width = expected.tables.array(table).shape[1] if table != "clean" else 0
                ours, theirs = (
                    t.read(table, width, keys) for t in (result.tables, expected.tables)
                )
                known = theirs.known
                assert (ours.classes[known] == theirs.classes[known]).all()
            assert contradictions(load_record(result.folder)) == []
            assert len(list(result.folder.rglob("*.parquet"))) == 1


@given(steps)
@hypothesis.settings(
    max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
def test_random_sequences_equal_single_runs(sequence: Any) -> None:
    check_sequence(sequence)


@pytest.mark.slow
@given(steps)
@hypothesis.settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_random_sequences_equal_single_runs(sequence: Any) -> None:
    check_sequence(sequence)


def run_processes(root: Path, generator: random.Random, rounds: int, at_once: int) -> None:
    """Start processes on one record, most of which are killed in the middle."""
    context = multiprocessing.get_context("spawn")
    for _ in range(rounds):
        count = generator.randint(1, at_once)
        workers = [
            context.Process(
                target=run_shard, args=(str(root), i + 1, count, generator.randint(1, 60))
            )
            for i in range(count)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


@pytest.mark.parametrize(
    ("rounds", "at_once"), [(1, 2), pytest.param(8, 8, marks=pytest.mark.slow)]
)
def test_killed_processes_lose_nothing(
    rounds: int, at_once: int, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_processes(tmp_path / "killed", random.Random(rounds), rounds, at_once)
    monkeypatch.setattr(runner, "FIRST_SAVE", 0.0)
    result = bench.result(tmp_path / "killed")
    assert_same_tables(result.tables, bench.result(tmp_path / "whole").tables)
    assert len(list((tmp_path / "killed").rglob("*.parquet"))) == 1
