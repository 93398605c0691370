"""Processes exchange values, notice a dead one, and report their progress as one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore

from shiftbench.errors import ShiftbenchError
from shiftbench.run import distributed, progress
from shiftbench.run.distributed import Group, LostProcessError, Shard
from shiftbench.run.progress import Estimate, GroupProgress, Progress

BEFORE = 10  # images that an earlier run has measured
SHARE = (30, 30, 29)  # images that each of three processes has to measure


def groups(count: int = 3) -> list[Group]:
    store = HashStore()
    for rank in range(count):
        store.set(f"alive/{rank}", "joined")
    return [Group(rank, count, store=store) for rank in range(count)]


# --- exchange


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_processes_and_shards_share_images_without_gaps_or_duplicates(size: int) -> None:
    images = list(range(23))
    for sharing in (
        [Group(r, size) for r in range(size)],
        [Shard(i + 1, size) for i in range(size)],
    ):
        assert sorted(image for one in sharing for image in one.share(images)) == images


def test_every_process_gets_what_all_have_in_order() -> None:
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):  # exchanges do not mix
            ranks = groups()
            seen = list(pool.map(lambda group: group.gather(group.rank * 10), ranks))
            assert seen == [[0, 10, 20]] * 3


def test_an_error_of_one_is_raised_by_all() -> None:
    def work(group: Group) -> str:
        try:
            with group.raise_on_all_ranks():
                if group.rank == 1:
                    raise ShiftbenchError("mine")
        except ShiftbenchError as error:
            return str(error)
        return "nothing"

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, groups())) == ["mine"] * 3


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("measuring", [False, True])
def test_a_silent_process_is_taken_for_dead(
    rank: int, measuring: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one that waits for it, and by one that has hours of its own work left."""
    monkeypatch.setattr(distributed, "SILENCE", 0.3)
    monkeypatch.setattr(progress, "INTERVAL", 0.05)
    group = groups(2)[rank]
    report, began = GroupProgress(group, None), time.monotonic()

    def work() -> None:
        while time.monotonic() - began < 30:
            report(Progress("crop", 1, 9))
            time.sleep(0.02)

    with pytest.raises(ShiftbenchError, match=rf"process {1 - rank} of the run has died.*same com"):
        work() if measuring else group.gather("here")


def test_a_slow_process_that_shows_life_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "SILENCE", 0.5)
    monkeypatch.setattr(distributed, "HEARTBEAT", 0.1)
    first, second = groups(2)
    stop = threading.Event()
    assert second.store is not None
    life = threading.Thread(target=distributed._show_life, args=(second.store, 1, stop))
    life.start()
    late = threading.Timer(1.5, second.gather, args=["late"])
    late.start()
    assert first.gather("early") == ["early", "late"]
    stop.set()
    life.join()


def test_processes_that_do_not_appear_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "JOIN_TIMEOUT", distributed.timedelta(seconds=1))
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "0")
    with (
        pytest.raises(ShiftbenchError, match=r"not all of the 2 processes .* within 1 s"),
        distributed.joined("cpu"),
    ):
        pass


WORKER = """
import os, sys, time
from shiftbench.run.distributed import end_with_launcher
end_with_launcher()
print("ready", flush=True)
time.sleep(300)
"""
LAUNCHER = """
import os, subprocess, sys, time
os.environ["SHIFTBENCH_LAUNCHER"] = str(os.getpid())
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(300)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no parent process to watch")
def test_a_worker_ends_with_its_launcher() -> None:
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, WORKER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    launcher.stdout.close()
    for _ in range(200):
        if not _runs(pid):
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the worker outlived its launcher by 20 s")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class Gone(HashStore):
    """The store of a process that has died."""

    def set(self, *_: object) -> None:
        raise torch.distributed.DistNetworkError("Connection reset by peer")

    check = get = set


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_is_gone_is_one_sentence_for_progress_too(rank: int) -> None:
    group = Group(rank, 2, store=Gone())
    for exchange in (group.gather, GroupProgress(group, None)):
        with pytest.raises(LostProcessError, match=r"the first process of the run has died"):
            exchange(Progress("crop", 1, 2))  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("victim", [0, 1])
def test_the_survivor_of_two_nodes_ends_with_one_sentence(victim: int, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ["-m", "xcit_pico_6_p8.scenes", "-a", "crop", "--max-shift", "6", "-b", "4", "-q"]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "shiftbench_cli", "run", *words, "-o", str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    for _ in range(3000):
        if list(tmp_path.rglob("*.parquet")):
            break
        time.sleep(0.1)
    nodes[victim].kill()
    nodes[victim].communicate()
    _, said = nodes[1 - victim].communicate(timeout=300)
    assert nodes[1 - victim].returncode == 1
    [sentence] = said.strip().splitlines()
    assert "has died or cannot be reached: finished parts are kept" in sentence


# --- progress


class Ranks:
    """Three processes; only the first has a callback."""

    def __init__(self) -> None:
        self.events: list[Estimate | Progress] = []
        self.ranks = [
            GroupProgress(group, self.events.append if group.rank == 0 else None)
            for group in groups()
        ]

    def report(self, rank: int, measured: int, *, metric: str = "crop", **more: float) -> Progress:
        """A process reports how far it is; returns the last event of the callback."""
        event = Progress(metric, BEFORE + measured, BEFORE + SHARE[rank], measured=measured)
        self.ranks[rank](replace(event, **more))  # type: ignore[arg-type]
        last = self.events[-1] if self.events else event
        assert isinstance(last, Progress)
        return last


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    monkeypatch.setattr(progress, "INTERVAL", -1.0)  # every event is exchanged
    return Ranks()


def test_the_first_adds_up_what_all_have_done(ranks: Ranks) -> None:
    first = ranks.report(0, 5, passes=50, under_way=0.5)
    assert (first.done, first.total, first.measured) == (15, 40, 5)  # the others said nothing yet
    ranks.report(1, 7, passes=70, under_way=0.25)
    ranks.report(2, 9, passes=90)
    ranks.report(1, 8, metric="half")
    event = ranks.report(0, 6, passes=60)
    assert event.total == BEFORE + sum(SHARE)
    assert event.done == BEFORE + 6 + 7 + 9
    assert (event.measured, event.passes, event.under_way) == (22, 220, 0.25)
    for rank, share in enumerate(SHARE[1:], start=1):
        ranks.report(rank, share)
    finished = ranks.report(0, SHARE[0])
    assert finished.done == finished.total == BEFORE + sum(SHARE)


def test_all_passes_are_estimated_and_the_time_is_that_of_one(ranks: Ranks) -> None:
    for rank in ranks.ranks:
        rank(Estimate(passes=100, seconds=7.0))
    assert ranks.events == [Estimate(passes=300, seconds=7.0)]


def test_counts_are_exchanged_now_and_then_and_when_all_is_done(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 3600.0)
    monkeypatch.setattr(distributed, "SILENCE", 1e9)
    now = [10_000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    ranks.report(1, 1)
    ranks.report(1, 2)
    assert ranks.report(0, 0).measured == 1  # the second event came too soon
    now[0] += 3601
    ranks.report(1, SHARE[1])
    assert ranks.report(0, 0).measured == SHARE[1]
