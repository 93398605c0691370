"""Loading: canvases independent of workers, and unreadable images reported by name."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from PIL import Image
from stored_images import save

from aft_models.preprocessing import Preprocessing
from shiftbench.data import CanvasBatch, Canvases, ImageSet, Scenes, canvas_batches, load_dataset
from shiftbench.data.canvases import FEW, default_workers
from shiftbench.errors import DataError, UsageError
from shiftbench.geometry import Geometry, geometry_for

RECIPE = Preprocessing(16, (0.5,) * 3, (0.25,) * 3, "bilinear")
GEOMETRY = geometry_for(RECIPE, margin=1)
COUNT = 11


@pytest.fixture
def data(tmp_path: Path) -> ImageSet:
    for index in range(COUNT):
        save(tmp_path / str(index % 3) / f"{index:02d}.png", index, size=(30, 20 + index))
    return load_dataset(f"folder:{tmp_path}")


def together(batches: Iterable[CanvasBatch]) -> tuple[torch.Tensor, list[tuple[int, str, int]]]:
    """Collect all pixels, and index, key and label of each image."""
    parts = list(batches)
    rows = [row for b in parts for row in zip(b.indices, b.keys, b.labels.tolist(), strict=True)]
    return torch.cat([part.canvas for part in parts]), rows


def test_canvas_batches_contain_every_image_once_in_order(data: ImageSet) -> None:
    batches = list(canvas_batches(data, GEOMETRY, batch_size=4, workers=0))
    assert [len(batch) for batch in batches] == [4, 4, 3]
    pixels, rows = together(batches)
    assert rows == list(zip(range(COUNT), data.keys, data.labels, strict=True))
    assert pixels.dtype == torch.uint8
    expected = torch.stack([GEOMETRY.canvas(data[index][0]) for index in range(COUNT)])
    assert torch.equal(pixels, expected)


def test_canvases_independent_of_workers_and_batch_size(data: ImageSet) -> None:
    chosen = [7, 0, 3, 10, 5]
    here = together(canvas_batches(data, GEOMETRY, chosen, batch_size=2, workers=0))
    there = together(canvas_batches(data, GEOMETRY, chosen, batch_size=5, workers=2))
    assert torch.equal(here[0], there[0])
    assert here[1] == there[1]
    assert [index for index, _, _ in here[1]] == chosen


def test_canvases_take_returns_batches_of_any_size(data: ImageSet) -> None:
    stream = Canvases(data, GEOMETRY, workers=0)
    parts = [stream.take(count) for count in (1, 6, 9, 2)]
    assert [part and part.indices for part in parts] == [(0,), (*range(1, 7),), (7, 8, 9, 10), None]


@pytest.mark.parametrize("workers", [0, 1])
def test_canvases_unreadable_images_raise_or_are_skipped(data: ImageSet, workers: int) -> None:
    bad = data.keys[5]
    path: Path = data.root / bad  # type: ignore[attr-defined]
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=f"{bad}.*--skip-bad"):
        list(canvas_batches(data, GEOMETRY, batch_size=4, workers=workers))
    kept = list(canvas_batches(data, GEOMETRY, batch_size=4, workers=workers, skip_bad=True))
    assert [batch.bad for batch in kept] == [(), (bad,), ()]
    assert [len(batch) for batch in kept] == [4, 3, 3]
    assert [i for batch in kept for i in batch.indices] == [i for i in range(COUNT) if i != 5]
    assert not list(canvas_batches(data, GEOMETRY, [5], workers=0, skip_bad=True))
    alone = Canvases(data, GEOMETRY, [5], workers=0, skip_bad=True).take(3)
    assert alone is not None
    assert (len(alone), alone.bad, tuple(alone.canvas.shape)) == (0, (bad,), (0, 3, 18, 18))


def test_canvases_scenes_share_the_pixel_grid_of_the_view() -> None:
    scenes = Scenes(size=6)
    geometry = Geometry(view=16, resize=18, margin=9, interpolation="bilinear", rendered=True)
    pixels, rows = together(canvas_batches(scenes, geometry, [4, 1], batch_size=1, workers=3))
    assert torch.equal(pixels, scenes.render([4, 1], 16, 9))
    assert [label for _, _, label in rows] == [4, 1]


class Deadly(ImageSet):
    """Data set that kills its process, like a decoder that runs out of memory."""

    def image(self, index: int) -> Image.Image:
        os._exit(1)

    def has_size(self, side: int) -> bool:
        return False


def test_canvases_killed_worker_raises_one_line() -> None:
    data = Deadly("deadly", "test", ("a", "b"), (0, 0), ("0",))
    with pytest.raises(DataError, match=r"loading process ended.*fewer --workers than 1"):
        list(canvas_batches(data, GEOMETRY, workers=1))


ORPHANS = """
import multiprocessing, sys, time
from shiftbench.data import Canvases, load_dataset
from shiftbench.geometry import Geometry

if __name__ == "__main__":
    geometry = Geometry(view=224, resize=224, margin=0, interpolation="bilinear")
    stream = Canvases(load_dataset(sys.argv[1]), geometry, workers=2)
    stream.take(1)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_killed_parent(kill: signal.Signals, tmp_path: Path) -> None:
    for index in range(40):  # more than the capacity of a pipe, so that workers wait
        save(tmp_path / "0" / f"{index}.bmp", size=(224, 224))
    words = [sys.executable, "-c", ORPHANS, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        parent.send_signal(kill)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and any(_runs(pid) for pid in workers):
        time.sleep(0.1)
    left = [pid for pid in workers if _runs(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def _runs(pid: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout.strip()[:1] not in ("", "Z")


def _first_batch(data: ImageSet, geometry: Geometry) -> list[int]:
    batch = next(canvas_batches(data, geometry, batch_size=3, workers=0))
    return batch.canvas.sum(dim=(1, 2, 3)).tolist()  # type: ignore[no-any-return]


@pytest.mark.slow
def test_data_sets_travel_to_spawned_processes(data: ImageSet) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(_first_batch, (data, GEOMETRY))
    assert there == _first_batch(data, GEOMETRY)


def test_canvases_small_jobs_start_no_processes() -> None:
    assert default_workers(FEW) == 0
    assert default_workers(50_000) >= 1
    with pytest.raises(UsageError, match="workers"):
        Canvases(Scenes(), GEOMETRY, workers=-1)
    with pytest.raises(UsageError, match="at least 1 image"):
        Canvases(Scenes(), GEOMETRY).take(0)
