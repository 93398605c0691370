"""Batches of canvases of a data set: decoded once, in worker processes if that is faster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shiftbench.data.base import ImageSet, RenderedSet
from shiftbench.errors import DataError, UsageError
from shiftbench.grid import Offset

if TYPE_CHECKING:
    from torch import Tensor

    from shiftbench.geometry import Geometry

CHUNK = 4  # images per message of a worker
AHEAD = 4  # chunks that a worker decodes ahead
FEW = 128  # images for which starting processes takes longer than decoding


@dataclass(frozen=True)
class Decoded:
    """An image from a worker. Arrays, not tensors: they need no shared file descriptors."""

    index: int
    canvas: NDArray[np.uint8] | None  # (3, side, side); None: it does not decode
    digest: int = 0
    enlarged: bool = False  # has fewer pixels than the resized image
    original: NDArray[np.uint8] | None = None  # (H, W, 3), if requested
    problem: str = ""  # reason why it does not decode


@dataclass(frozen=True)
class CanvasBatch:
    """Images ready for a device, with their identity."""

    canvas: Tensor  # uint8 (B, 3, S + 2m, S + 2m)
    labels: Tensor  # int64 (B,)
    keys: tuple[str, ...]
    indices: tuple[int, ...] = ()  # into the data set, if there is one
    digests: tuple[int, ...] = ()  # of the images' contents
    bad: tuple[str, ...] = ()  # keys of unreadable images of this batch
    enlarged: tuple[bool, ...] = ()  # True: the image has fewer pixels than the resized image
    originals: tuple[NDArray[np.uint8], ...] = ()  # (H, W, 3) each, if they were requested

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: slice) -> CanvasBatch:
        """Return some of the images."""
        return CanvasBatch(
            self.canvas[rows],
            self.labels[rows],
            self.keys[rows],
            self.indices[rows],
            self.digests[rows],
            enlarged=self.enlarged[rows],
            originals=self.originals[rows],
        )


@dataclass(frozen=True)
class _Decoder:
    """Task of a worker. Errors are returned, because they are not raised across processes."""

    dataset: ImageSet
    geometry: Geometry
    indices: Sequence[int]
    originals: bool  # keep the decoded images too

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Decoded:
        index = self.indices[position]
        try:
            image, digest = self.dataset.load(index)
        except DataError as error:
            return Decoded(index, None, problem=str(error))
        canvas, original = self.geometry.canvas(image).numpy(), None
        if self.originals:
            original = np.array(image)
        return Decoded(index, canvas, digest, self.geometry.enlarges(image), original)


class Canvases:
    """Stream of canvases in the order of `indices`, in batches of any size.

    Worker processes start once per stream and decode ahead. A rendered set renders in this
    process instead, which is faster than a transfer between processes.
    """

    def __init__(
        self,
        dataset: ImageSet,
        geometry: Geometry,
        indices: Sequence[int] | None = None,
        *,
        workers: int | None = None,
        skip_bad: bool = False,
        originals: bool = False,
    ) -> None:
        """Prepare the stream; nothing is decoded before the first `take`.

        Args:
            dataset: The images.
            geometry: Resize and crop of the images.
            indices: Images in this order; by default all.
            workers: Processes that decode; 0 decodes here, None chooses by the size of the job.
            skip_bad: Leave unreadable images out and name them in the batch's `bad`; otherwise the
                first of them is an error.
            originals: Include the decoded images, for cameras that digitize them again.
        """
        if workers is not None and workers < 0:
            raise UsageError(f"workers must be 0 or more, got {workers}")
        self._dataset = dataset
        self._geometry = geometry
        self._indices = list(range(len(dataset)) if indices is None else indices)
        self._skip_bad = skip_bad
        self._originals = originals
        self._workers = default_workers(len(self._indices)) if workers is None else workers
        self._position = 0
        self._decoded = self._decode()

    def take(self, count: int) -> CanvasBatch | None:
        """Return the next batch of `count` images, fewer at the end; None after the last one.

        Unreadable images count: if they are skipped, a batch may be smaller or empty. Its `bad`
        contains their keys.
        """
        import torch

        if count < 1:
            raise UsageError(f"a batch needs at least 1 image, got {count}")
        chosen = self._indices[self._position : self._position + count]
        self._position += len(chosen)
        if not chosen:
            return None
        dataset, geometry = self._dataset, self._geometry
        bad: list[str] = []
        decoded: list[Decoded] = []
        if isinstance(dataset, RenderedSet):
            inner = geometry.inner or geometry.view
            canvas = dataset.render(chosen, inner, (geometry.side - inner) // 2)
            digests = {index: dataset.digest(index) for index in chosen}
        else:
            decoded = list(islice(self._decoded, len(chosen)))
            problems = [one.problem for one in decoded if one.canvas is None]
            if problems and not self._skip_bad:
                raise DataError(problems[0])
            bad = [dataset.keys[one.index] for one in decoded if one.canvas is None]
            decoded = [one for one in decoded if one.canvas is not None]
            digests = {one.index: one.digest for one in decoded}
            chosen = [one.index for one in decoded]
            images = [torch.from_numpy(one.canvas) for one in decoded]
            side = geometry.side
            canvas = torch.stack(images) if images else torch.empty((0, 3, side, side)).byte()
        if torch.cuda.is_available():
            canvas = canvas.pin_memory()  # lets the copy to the device overlap with computing
        return CanvasBatch(
            canvas,
            torch.tensor([dataset.labels[index] for index in chosen], dtype=torch.int64),
            tuple(dataset.keys[index] for index in chosen),
            tuple(chosen),
            tuple(digests[index] for index in chosen),
            tuple(bad),
            tuple(one.enlarged for one in decoded),
            tuple(one.original for one in decoded if one.original is not None),
        )

    def _decode(self) -> Iterator[Decoded]:
        from torch.utils.data import DataLoader

        from aft_models.workers import end_with_parent

        chunks: DataLoader[Decoded] = DataLoader(
            _Decoder(self._dataset, self._geometry, self._indices, self._originals),  # type: ignore[arg-type]
            batch_size=CHUNK,
            num_workers=self._workers,
            prefetch_factor=AHEAD if self._workers else None,
            collate_fn=list,
            worker_init_fn=end_with_parent,
        )
        try:
            for chunk in chunks:
                yield from chunk
        except RuntimeError as error:
            if "worker" not in str(error):
                raise
            raise DataError(
                "a data loading process ended, most often for lack of memory. Use fewer "
                f"--workers than {self._workers}, or 0"
            ) from error


class DigitizedViews:
    """The images of a batch, digitized anew by a camera that moved over the original files."""

    def __init__(self, geometry: Geometry, batch: CanvasBatch) -> None:
        """Prepare a batch whose original images were loaded with it."""
        self._geometry, self._canvas = geometry, batch.canvas
        self._images = [Image.fromarray(original) for original in batch.originals]

    def __call__(self, offset: Offset, rows: Tensor | None = None) -> Tensor:
        """Return uint8 (B, 3, view, view), seen from an offset in camera pixels."""
        import torch

        chosen = range(len(self._images)) if rows is None else rows.tolist()
        if offset.dy % 1 == 0 == offset.dx % 1:  # the same pixels as in the canvas
            side, margin = self._geometry.view, self._geometry.margin
            top, left = margin + int(offset.dy), margin + int(offset.dx)
            window = self._canvas[..., top : top + side, left : left + side]
            return window if rows is None else window[rows]
        # The resize of Pillow releases the lock of the interpreter.
        with ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="digitize") as pool:
            views = pool.map(lambda row: self._digitized(row, offset), chosen)
            return torch.stack(list(views))

    def _digitized(self, row: int, offset: Offset) -> Tensor:
        return self._geometry.digitized(self._images[row], offset.dy, offset.dx)


def default_workers(images: int) -> int:
    """Return the number of processes for a job: 0 for a small one, else one per core up to 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return 0 if images <= FEW else min(8, cores or 1)


def canvas_batches(
    dataset: ImageSet,
    geometry: Geometry,
    indices: Sequence[int] | None = None,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    skip_bad: bool = False,
) -> Iterator[CanvasBatch]:
    """Yield batches of canvases in the order of `indices`; see `Canvases` for the arguments.

    A batch without a readable image is left out.
    """
    stream = Canvases(dataset, geometry, indices, workers=workers, skip_bad=skip_bad)
    while (batch := stream.take(batch_size)) is not None:
        if len(batch):
            yield batch
