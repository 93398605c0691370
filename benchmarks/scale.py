"""Overhead of runs with many images and shards, measured with a stub that takes no time.

    python benchmarks/scale.py [--images 500 8000] [--shards 64] [--all 50000]

CPU time is measured, so that other load does not count. Images are created in memory and pass
through the loader. The stub is searched over crops up to 1 px.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from shiftbench.data import ImageSet
from shiftbench.models import Model
from shiftbench.running.job import Settings
from shiftbench.running.runner import Execution, run
from shiftbench.running.shards import WHOLE, Shard

SIDE, CLASSES = 32, 10
SETTINGS = Settings(attacks=("crop",), max_shift=1, consistency=())
# The paper's Figure 2: networks, attacks, images, offsets of radius 6.
FIGURE = (7, 2, 50_000, 13 * 13)
# Images per second: Swin-Tiny on one core (AMD EPYC, PyTorch), and on a V100 in
# float32 as printed in Table 1 of the Swin paper (Liu et al., ICCV 2021).
CORE, GPU = 6.2, 755.2


@dataclass(frozen=True, eq=False)
class Plain(ImageSet):
    """Images of one color each, created on access."""

    def image(self, index: int) -> Image.Image:
        """Return an image of one color, which encodes the class."""
        shade = 10 + 20 * self.labels[index]
        return Image.new("RGB", (SIDE + 8, SIDE + 8), (shade, index % 256, 9))

    def has_size(self, side: int) -> bool:
        """Return False: the images are larger than the network's input."""
        return False


class Stub(nn.Module):
    """Network that reads the color of one pixel and is always correct."""

    def __init__(self, busy: float = 0.0) -> None:
        super().__init__()
        self.busy = busy  # seconds of a core per batch
        self.shades = nn.Parameter((10 + 20 * torch.arange(CLASSES)) / 255)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, classes)."""
        end = time.thread_time() + self.busy
        while time.thread_time() < end:
            torch.rand(64, 64) @ torch.rand(64, 64)
        return -(images[:, 0, 0, :1] - self.shades).abs()


def stub(busy: float = 0.0) -> Model:
    """Return a model that takes no time, or ``busy`` seconds of a core per batch."""
    recipe = {"input_size": SIDE, "mean": 0.0, "std": 1.0}
    return Model(Stub(busy).eval(), recipe, name="stub")


def images(count: int) -> Plain:
    """Return a data set of ``count`` images."""
    keys = [f"{index:06d}" for index in range(count)]
    labels = [index % CLASSES for index in range(count)]
    return Plain("plain", "all", keys, labels, [str(c) for c in range(CLASSES)])


def measure(data: Plain, folder: Path, shard: Shard, busy: float = 0.0) -> float:
    """Return the CPU seconds of a run, or of one shard of it."""
    began = time.process_time()
    size = None if not busy else 16
    execution = Execution(device="cpu", workers=0, shard=shard, batch_size=size)
    run(stub(busy), data, SETTINGS, folder, execution=execution)
    return time.process_time() - began


def in_process(
    count: int, folder: str, shard: Shard, busy: float, seconds: multiprocessing.Queue
) -> None:
    """Run one shard in a process of its own."""
    torch.set_num_threads(1)
    measure(images(100), Path(tempfile.mkdtemp()), WHOLE)  # imports, first calls
    seconds.put(measure(images(count), Path(folder), shard, busy))


def processes(count: int, shards: int, busy: float = 0.0) -> list[float]:
    """Return the CPU seconds of shards that run at the same time."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        every = [Shard(i, shards) for i in range(1, shards + 1)]
        jobs = [
            context.Process(target=in_process, args=(count, folder, s, busy, queue)) for s in every
        ]
        for job in jobs:
            job.start()
        seconds = [queue.get() for _ in jobs]
        for job in jobs:
            job.join()
    return seconds


def memory() -> float:
    """Return the peak memory of this process (MB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    """Print the figures of docs/results/speed.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, nargs="*", default=[500, 8000])
    parser.add_argument("--all", type=int, default=50_000)
    parser.add_argument("--shards", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measure(images(100), Path(tempfile.mkdtemp()), WHOLE)  # imports, first calls
    start = memory()
    print("| images | shards | CPU ms per image |")
    print("| ---: | ---: | ---: |")
    for count in options.images:
        with tempfile.TemporaryDirectory() as folder:
            seconds = measure(images(count), Path(folder), WHOLE)
        print(f"| {count:,} | 1 | {1000 * seconds / count:.2f} |", flush=True)
    data = images(options.all)
    with tempfile.TemporaryDirectory() as folder:
        spent = []
        for i in range(1, options.shards + 1):
            files = list(Path(folder).rglob("*.parquet"))
            spent.append(measure(data, Path(folder), Shard(i, options.shards)))
        each = 1000 * sum(spent) / options.all
        print(f"| {options.all:,} | {options.shards} | {each:.2f} |")
        (samples,) = Path(folder).rglob("*.parquet")
        size = samples.stat().st_size / 2**20
    middle = sorted(spent)[len(spent) // 2]
    print(
        f"\nlast shard: {len(files)} files read, record of {options.all:,} images derived "
        f"and written ({size:.1f} MB): {spent[-1] - middle:.1f} s of CPU time more than a shard in "
        f"the middle ({middle:.1f} s); memory grew by {memory() - start:.0f} MB from {start:.0f} MB"
    )
    count = options.all
    (alone,), both = processes(count, 1), processes(count, 2)
    print(
        f"{count:,} images: {alone:.1f} s of CPU time in one process, {both[0]:.1f} and "
        f"{both[1]:.1f} s as two shards at once: {alone / max(both):.2f} times the throughput on "
        "two free cores"
    )
    (alone,), both = processes(64, 1, busy=2.0), processes(64, 2, busy=2.0)
    print(
        f"a network that fills a core for 2 s per batch: {alone:.1f} s alone, {max(both):.1f} s as "
        f"two shards: {alone / max(both):.2f} times the throughput"
    )
    passes = 1
    for factor in FIGURE:
        passes *= factor
    print(
        f"Figure 2: at most {passes / 1e6:.1f} million forward passes; {passes / CORE / 3600:,.0f} "
        f"hours of one core at {CORE} images/s, {passes / GPU / 3600:.0f} GPU hours at {GPU}"
    )


if __name__ == "__main__":
    main()
