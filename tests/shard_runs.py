"""A small network and runs of it; imported by the processes that tests start."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from shiftbench.data import Scenes
from shiftbench.errors import ShiftbenchError
from shiftbench.models import Model
from shiftbench.records.record import Record
from shiftbench.run import folder, runner
from shiftbench.run.distributed import Shard
from shiftbench.run.job import Settings
from shiftbench.run.progress import Estimate, Progress
from shiftbench.run.runner import Execution, RunResult, run

SIDE, IMAGES = 16, 48
RECIPE = {"input_size": SIDE, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
SETTINGS = Settings(attacks=("crop",), max_shift=1, consistency=("integer",))
FULL = 75  # exit code of a process whose disk is full


class Net(nn.Module):
    """A small, fragile network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 4, stride=4)
        self.head = nn.Linear(16, 12)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.conv(images).relu().amax((2, 3)))
        return logits


def network(seed: int = 5) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Model(Net().eval(), RECIPE, name="net")


def labeled(model: nn.Module, count: int, side: int = SIDE, wrong: int = 4) -> Scenes:
    """Images that a network gets right, every `wrong`-th aside: there is something to lose."""
    scenes = Scenes("test", count)
    pixels = scenes.render(range(count), side).float() / 255
    with torch.no_grad():
        seen = model((pixels - 0.5) / 0.25).argmax(1).tolist()
    vars(scenes)["labels"] = [c if i % wrong else (c + 1) % 12 for i, c in enumerate(seen)]
    return scenes


def images(count: int = IMAGES) -> Scenes:
    return labeled(network(), count)


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


def measure(
    root: Path, shard: str | None, *, settings: Settings = SETTINGS, **options
) -> RunResult:
    own = None if shard is None else Shard.parse(shard)
    execution = Execution(device="cpu", batch_size=8, workers=0, shard=own)
    return run(network(), images(), settings, root, execution=execution, **options)


def process(
    root: Path,
    shard: str,
    kill_at: int = 0,
    disk: int = 0,
    clock: float = 0.0,
) -> None:
    """Measures a shard and saves after every few images.

    Args:
        root: Output folder.
        shard: `i/N`.
        kill_at: The progress event at which the process is killed; 0: never.
        disk: Largest file in bytes that it can write; 0: any.
        clock: Seconds by which its clock jumps back after every look at it.
    """
    torch.set_num_threads(1)
    runner.FIRST_IMAGES, runner.GROWTH = 2, 1
    folder.FIRST_SAVE = folder.LAST_SAVE = -1.0
    if disk:
        resource.setrlimit(resource.RLIMIT_FSIZE, (disk, disk))
    if clock:
        start = time.time_ns()
        looks = iter(range(10**9))
        time.time_ns = lambda: start - int(next(looks) * clock * 1e9)
    events = iter(range(1, 10**9))

    def watch(event: Estimate | Progress) -> None:
        if next(events) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        measure(root, shard, callback=watch)
    except (OSError, ShiftbenchError) as error:
        os._exit(FULL if disk and "too large" in str(error) else 1)
