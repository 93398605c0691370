"""A small shift-sensitive network, images for it, and runs; imported by processes of tests."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shiftbench.data import Scenes
from shiftbench.models import Model
from shiftbench.records.result import Result
from shiftbench.running import Progress, ProgressCallback, runner
from shiftbench.running.job import Settings
from shiftbench.running.runner import Execution, RunResult, run
from shiftbench.running.shards import Shard
from shiftbench.tables import Tables

SIDE, IMAGES, CLASSES = 16, 24, 12
PREPROCESSING = {"input_size": SIDE, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
CPU = Execution(device="cpu", batch_size=8)
BASE = Settings(attacks=("crop",), max_shift=1, consistency=(), seed=3)


class ShiftSensitive(nn.Module):
    """A network whose predictions depend on the offset; counts its input images.

    With `levels`, logits are multiples of 1 / levels and tie often.
    """

    def __init__(self, levels: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 4, stride=4)
        self.head = nn.Linear(16, CLASSES)
        self.levels = levels
        self.seen = 0
        self.largest = 0  # batch

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        self.largest = max(self.largest, len(images))
        logits: Tensor = self.head(self.conv(images).relu().amax((2, 3)))
        return (logits * self.levels).round() / self.levels if self.levels else logits


def sensitive_network(seed: int = 5, levels: int = 0) -> ShiftSensitive:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ShiftSensitive(levels).eval()


def labeled(network: nn.Module, count: int = IMAGES, *, wrong: int = 4) -> Scenes:
    """Return images that a network classifies correctly, except every `wrong`-th."""
    scenes = Scenes("test", count)
    pixels = scenes.render(range(count), SIDE).float() / 255
    with torch.no_grad():
        seen = network((pixels - 0.5) / 0.25).argmax(1).tolist()
    labels = [c if i % wrong else (c + 1) % CLASSES for i, c in enumerate(seen)]
    vars(scenes)["labels"] = labels
    return scenes


@dataclass(frozen=True, eq=False)
class Bench:
    """A model, images that it mostly classifies correctly, and runs of it."""

    network: ShiftSensitive
    model: Model
    images: Scenes

    @classmethod
    def make(cls, levels: int = 0) -> Bench:
        network = sensitive_network(levels=levels)
        model = Model(network, PREPROCESSING, name="sensitive")
        return cls(network, model, labeled(network))

    def run(self, root: Path, settings: Settings = BASE, **options: Any) -> RunResult:
        execution = options.pop("execution", CPU)
        return run(self.model, self.images, settings, root, execution=execution, **options)

    def result(self, root: Path, settings: Settings = BASE, **options: Any) -> Result:
        result = self.run(root, settings, **options).record
        assert result is not None
        return result


def assert_same_tables(first: Tables, second: Tables) -> None:
    """Compare every cell by image, for any order of rows and number of columns."""
    assert set(first.keys) == set(second.keys)
    for name in {*first.arrays, *second.arrays}:
        a, b = (t.array(name)[t.rows(sorted(t.keys))] for t in (first, second))
        width = max(a.shape[1], b.shape[1])
        a, b = (np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=-1) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 if a.dtype == np.float32 else 0)


class StopError(Exception):
    """Error that ends a run from a callback, like a signal."""


def stop_at(event: int) -> ProgressCallback:
    """Return a callback that ends a run at its n-th event."""
    events = iter(range(1, 10**9))

    def callback(_: Progress) -> None:
        if next(events) == event:
            raise StopError

    return callback


def run_shard(
    root: str, index: int, count: int, kill_after: int, settings: dict[str, Any] | None = None
) -> None:
    """Run one shard in a process of its own; SIGKILL it after some forward passes."""
    torch.set_num_threads(1)
    runner.FIRST_SAVE = runner.LAST_SAVE = 0.0  # saves after every forward pass
    runner.SAVE_FRACTION = 1.0

    def callback(progress: Progress) -> None:
        if kill_after and progress.passes >= kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    execution = replace(CPU, shard=Shard(index, count))
    Bench.make().run(
        Path(root), replace(BASE, **(settings or {})), execution=execution, callback=callback
    )
