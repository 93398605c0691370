"""One process speaks for all of them: counts add up, whatever the others have told so far."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shiftbench.run import shared_progress
from shiftbench.run.distributed import Group
from shiftbench.run.progress import Estimate, Progress
from shiftbench.run.shared_progress import SharedProgress

BEFORE = 10  # images that an earlier run has measured
SHARE = (30, 30, 29)  # images that each of three processes has to measure


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_progress, "INTERVAL", -1.0)  # every event is told


class Ranks:
    """Three processes, each with what it has been told; only the first has a listener."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[Estimate | Progress] = []
        self.ranks = [
            SharedProgress(folder, Group(rank, 3), self.heard.append if rank == 0 else None)
            for rank in range(3)
        ]

    def tell(self, rank: int, measured: int, *, metric: str = "crop", **more: float) -> Progress:
        """A process tells how far it is; returns what the listener was told last."""
        tally = Progress(metric, BEFORE + measured, BEFORE + SHARE[rank], measured=measured)
        self.ranks[rank](replace(tally, **more))  # type: ignore[arg-type]
        last = self.heard[-1]
        assert isinstance(last, Progress)
        return last


def test_the_first_adds_up_what_all_have_done(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    first = ranks.tell(0, 5, passes=50, under_way=0.5)
    assert (first.done, first.total, first.measured) == (15, 40, 5)  # the others said nothing yet
    ranks.tell(1, 7, passes=70, under_way=0.25)
    ranks.tell(2, 9, passes=90)
    told = ranks.tell(0, 6, passes=60)
    assert told.total == BEFORE + sum(SHARE)
    assert told.done == BEFORE + 6 + 7 + 9
    assert (told.measured, told.passes, told.under_way) == (22, 220, 0.25)
    for rank, share in enumerate(SHARE[1:], start=1):
        ranks.tell(rank, share)
    finished = ranks.tell(0, SHARE[0])
    assert finished.done == finished.total == BEFORE + sum(SHARE)


def test_metrics_are_counted_apart(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    ranks.tell(0, 1)
    ranks.tell(1, 4, metric="half")
    assert ranks.tell(0, 1).measured == 1
    assert ranks.tell(0, 1, metric="half").measured == 5


def test_a_file_that_cannot_be_read_is_one_that_is_not_there(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    ranks.tell(0, 0)
    ranks.tell(1, 3)
    (tmp_path / ".progress-2.json").write_text('{"crop": ')
    assert ranks.tell(0, 2).measured == 5


def test_a_killed_run_leaves_nothing_that_counts_twice(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    ranks.tell(0, 0)
    ranks.tell(1, 20)
    SharedProgress.forget(tmp_path)
    assert Ranks(tmp_path).tell(0, 2).measured == 2
    assert not list(tmp_path.iterdir())


def test_all_passes_are_estimated_and_the_time_is_that_of_one(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    for rank in ranks.ranks:
        rank(Estimate(passes=100, seconds=7.0))
    assert ranks.heard == [Estimate(passes=300, seconds=7.0)]


def test_files_are_written_now_and_then_and_when_all_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_progress, "INTERVAL", 3600.0)
    now = [10_000.0]
    monkeypatch.setattr(shared_progress.time, "monotonic", lambda: now[0])
    ranks = Ranks(tmp_path)
    ranks.tell(0, 0)
    ranks.tell(1, 1)
    ranks.tell(1, 2)
    assert ranks.tell(0, 0).measured == 1  # the second event came too soon
    now[0] += 3601
    ranks.tell(1, 3)
    assert ranks.tell(0, 0).measured == 3
    ranks.tell(1, SHARE[1])
    assert ranks.tell(0, 0).measured == SHARE[1]  # the last one always counts
