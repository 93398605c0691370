"""Shards of a run: any of them may be killed, repeated or late, and the record stays the same."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path

import pytest
import shard_runs
from shard_runs import FULL, SETTINGS, assert_equal, images, measure, network

from shiftbench.data import load_dataset
from shiftbench.errors import RecordError, UsageError
from shiftbench.records.record import Record, read_record
from shiftbench.run import folder
from shiftbench.run.distributed import Shard, shard_of_environment
from shiftbench.run.progress import Progress
from shiftbench.run.runner import Execution, run

NAME = "net--scenes"


def assert_whole(record: Record | None, whole: Record) -> None:
    """The same record, and no file besides it."""
    assert record is not None
    assert record.folder is not None
    assert_equal(record, whole)
    names = {path.name for path in record.folder.iterdir()} - {".lock"}
    assert names == {"record.json", "samples.parquet"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Record:
    record = measure(tmp_path_factory.mktemp("whole"), None).record
    assert record is not None
    return record


# --- one after the other


@pytest.mark.parametrize("order", [("1/3", "2/3", "3/3"), ("3/3", "1/3", "2/3")])
def test_the_last_shard_writes_the_record(
    order: tuple[str, ...], whole: Record, tmp_path: Path
) -> None:
    results = [measure(tmp_path, shard) for shard in order]
    assert [result.left for result in results] == [32, 16, 0]
    assert [result.record is None for result in results] == [True, True, False]
    assert_whole(results[-1].record, whole)
    assert results[-1].record is not None
    assert results[-1].record.forward_passes == whole.forward_passes
    again = measure(tmp_path, order[0])
    assert again.reused
    assert_whole(again.record, whole)


def test_the_progress_of_a_shard_is_that_of_its_share(tmp_path: Path) -> None:
    events: list[Progress] = []
    measure(tmp_path, "2/4", callback=lambda e: events.append(e) if type(e) is Progress else None)
    assert {(e.metric, e.total) for e in events if e.metric == "accuracy"} == {("accuracy", 12)}
    assert max(e.done for e in events) == 12


def test_the_same_command_without_shard_finishes_the_rest(whole: Record, tmp_path: Path) -> None:
    measure(tmp_path, "2/4")
    assert_whole(measure(tmp_path, None).record, whole)


def test_a_process_has_few_files_however_long_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftbench.run.runner.FIRST_IMAGES", 1)
    monkeypatch.setattr("shiftbench.run.runner.GROWTH", 1)
    monkeypatch.setattr(folder, "FIRST_SAVE", -1.0)
    monkeypatch.setattr(folder, "LAST_SAVE", -1.0)
    monkeypatch.setattr(folder, "MERGED_FILES", 4)
    parts, most = tmp_path / NAME / "parts", 0

    def watch(event: object) -> None:
        nonlocal most
        most = max(most, len(list(parts.glob("accuracy/*.parquet"))))

    measure(tmp_path, "1/2", callback=watch)
    assert most == 3
    assert len(list(parts.glob("accuracy/*.parquet"))) == 1


def test_shards_grow_a_record(whole: Record, tmp_path: Path) -> None:
    few = replace(SETTINGS, limit=20, consistency=())
    for shard in ("1/2", "2/2"):
        measure(tmp_path, shard, settings=few)
    for shard in ("1/2", "2/2"):
        grown = measure(tmp_path, shard)
    assert_whole(grown.record, whole)


def test_unreadable_images_of_another_shard_are_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "0"
    folder.mkdir(parents=True)
    for i in range(6):
        (folder / f"{i}.png").write_bytes(b"no image")
    from PIL import Image

    for i in (1, 2, 4):
        Image.new("RGB", (32, 32), (40 * i, 9, 9)).save(folder / f"{i}.png")
    data = load_dataset(f"folder:{tmp_path / 'data'}")
    settings = replace(SETTINGS, skip_bad=True)

    def go(shard: Shard | None) -> Record | None:
        execution = Execution(device="cpu", workers=0, shard=shard)
        return run(network(), data, settings, tmp_path / "runs", execution=execution).record

    assert go(Shard(1, 2)) is None
    record = go(Shard(2, 2))
    assert record is not None
    assert (record.data.images, record.data.skipped) == (3, 3)
    assert go(Shard(1, 2)) is not None, "what another shard could not read is not left"


# --- a stop at every file operation


class StopError(BaseException):
    """The process is gone."""


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Stops at the n-th write, rename, link or removal, for good: nothing can be cleaned up."""
    count = [0, 10**9]

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def operation(*args: object, **options: object) -> object:
            count[0] += 1
            if count[0] >= count[1]:
                raise StopError
            return call(*args, **options)

        return operation

    for name in ("write_bytes", "replace", "unlink", "rmdir"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    monkeypatch.setattr(os, "link", counted(os.link))

    def start(limit: int) -> list[int]:
        count[:] = [0, limit]
        return count

    return start


@pytest.mark.parametrize("start", range(4))
def test_a_stop_at_any_file_operation_loses_nothing(
    start: int, stop_at: Callable[[int], list[int]], whole: Record, tmp_path: Path
) -> None:
    count = stop_at(10**9)
    measure(tmp_path / "count", "1/2")
    measure(tmp_path / "count", "2/2")
    operations = count[0]
    assert operations > 30
    for place in range(1 + start, operations, 8):
        root = tmp_path / str(place)
        stop_at(place)
        with suppress(StopError):
            measure(root, "1/2")
            measure(root, "2/2")
        stop_at(10**9)
        measure(root, "1/2")
        assert_whole(measure(root, "2/2").record, whole)


# --- at the same time


needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")


@pytest.fixture(scope="module")
def start() -> Callable[..., multiprocessing.Process]:
    """Starts processes that share one import of torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["shard_runs"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()

    def begin(*args: object, **options: object) -> multiprocessing.Process:
        made = context.Process(target=shard_runs.process, args=args, kwargs=options)
        made.start()
        return made  # type: ignore[return-value]

    return begin


def wait(processes: list[multiprocessing.Process]) -> list[int | None]:
    for process in processes:
        process.join(300)
    return [process.exitcode for process in processes]


@needs_posix
def test_eight_disturbed_shards_give_the_undisturbed_record(
    start: Callable[..., multiprocessing.Process], whole: Record, tmp_path: Path
) -> None:
    draw = random.Random(0)
    names = [f"{i}/8" for i in range(1, 9)]
    kills = {1: draw.randrange(5, 25), 4: draw.randrange(5, 25), 7: draw.randrange(5, 25)}
    first = [start(tmp_path, name, kill_at=kills.get(i, 0)) for i, name in enumerate(names)]
    first.append(start(tmp_path, "3/8"))  # twice at the same time, by mistake
    codes = wait(first)
    assert [codes[i] for i in kills] == [-9, -9, -9]
    assert sum(codes[i] or 0 for i in range(9) if i not in kills) == 0
    assert not (tmp_path / NAME / "record.json").exists()
    damaged = tmp_path / NAME / "parts" / "accuracy"
    (damaged / f"{'9' * 19}-half.parquet").write_bytes(b"PAR1 half")
    (damaged / ".x.parquet.abc.tmp").write_bytes(b"half")
    full = start(tmp_path, "2/8", disk=512)
    assert wait([full]) == [FULL]
    again = [start(tmp_path, names[1]), start(tmp_path, names[4], clock=60.0)]
    assert wait([*again, start(tmp_path, names[7])]) == [0, 0, 0]
    assert_whole(read_record(tmp_path / NAME), whole)


@needs_posix
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_shards_killed_at_random_and_started_again(
    seed: int, start: Callable[..., multiprocessing.Process], whole: Record, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    names = [f"{i}/4" for i in range(1, 5)]
    for _ in range(4):
        wait([start(tmp_path, name, kill_at=draw.randrange(60)) for name in names * 2])
    wait([start(tmp_path, name) for name in names * 2])
    assert_whole(read_record(tmp_path / NAME), whole)


# --- what is refused


def test_shards_of_other_work_are_refused_with_both_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(tmp_path, "1/2")
    other = Execution(device="cpu", shard=Shard(2, 2))
    with pytest.raises(RecordError, match="weights, logits changed"):
        run(network(seed=6), images(), SETTINGS, tmp_path, execution=other)
    with pytest.raises(RecordError, match=r"fingerprint was .*, is "):
        run(network(), images(47), SETTINGS, tmp_path, execution=other)
    with pytest.raises(RecordError, match=r"seed was 0, is 1"):
        measure(tmp_path, "2/2", settings=replace(SETTINGS, seed=1))
    with pytest.raises(RecordError, match=r"parts of 2 shards, and 3 were.*--shard i/2, or finish"):
        measure(tmp_path, "3/3")
    with pytest.raises(UsageError, match="--fresh would remove"):
        measure(tmp_path, "2/2", fresh=True)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9")
    with pytest.raises(RecordError, match=r'shiftbench was "0.1.0", is "9.9"'):
        measure(tmp_path, "2/2")


def test_a_run_that_failed_before_its_first_rows_leaves_no_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise UsageError("no")

    with monkeypatch.context() as patch:
        patch.setattr("shiftbench.run.runner.Engine", fail)
        with pytest.raises(UsageError):
            measure(tmp_path, "1/2")
    measure(tmp_path, "1/3", settings=replace(SETTINGS, seed=1))


@pytest.mark.parametrize("text", ["5/4", "0/4", "4", "a/b", "1/0", "-1/2", "1/2/3"])
def test_shards_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match="expected a shard i/N"):
        Shard.parse(text)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ("", None),
        ("SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_TASK_COUNT=4 SLURM_ARRAY_TASK_MIN=0", "1/4"),
        ("SLURM_ARRAY_TASK_ID=4 SLURM_ARRAY_TASK_COUNT=4 SLURM_ARRAY_TASK_MIN=1", "4/4"),
        ("PBS_ARRAY_INDEX=2 PBS_ARRAY_COUNT=3", "2/3"),
        ("PBS_ARRAYID=2 PBS_ARRAY_COUNT=3", "2/3"),
        ("LSB_JOBINDEX=2 LSB_JOBINDEX_END=3", "2/3"),
        ("LSB_JOBINDEX=0 LSB_JOBINDEX_END=0", None),
    ],
)
def test_job_arrays_imply_shards(environment: str, expected: str | None) -> None:
    implied = shard_of_environment(dict(word.split("=") for word in environment.split()))
    assert (implied and str(implied[0])) == expected


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ("PBS_ARRAY_INDEX=2", "does not say of how many"),
        (
            "SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=3 "
            "SLURM_ARRAY_TASK_MAX=7",
            "with gaps",
        ),
    ],
)
def test_arrays_that_do_not_say_enough(environment: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        shard_of_environment(dict(word.split("=") for word in environment.split()))
