"""From views to predictions: a model on its device, and the cells that a metric needs."""

from __future__ import annotations

import gc
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aft_models.remedies.align import Align
from aft_models.remedies.inputs import InputRemedy
from shiftbench.errors import ModelError, UsageError, first_line
from shiftbench.grid import Offset
from shiftbench.metrics.base import CLEAN_VIEW, Metric, View
from shiftbench.models import Model
from shiftbench.shifts import SHIFTS, Scene, Views
from shiftbench.tables import LABEL, NEAR_TIE, Cells, Tables
from shiftbench.tasks import Seen, Task
from shiftbench.tasks.base import ROUNDING
from shiftbench.tasks.classification import CLASSIFICATION, near_ties

log = logging.getLogger(__name__)

Network = Callable[[Tensor], Tensor]  # normalized images (B, C, H, W) -> logits (B, classes)
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
CHECKED = 8  # images of the first batch that are predicted again alone
AGREEMENT = 1e-3  # largest difference of two logits that rounding explains, over the largest logit
CPU_PIXELS = 64 * 64 * 128  # per batch: larger batches do not fit into caches
GPU_BATCH = 512  # initial batch size; halved when memory runs out


def choose_device(name: str = "auto", *, process: int = 0) -> torch.device:
    """Resolve a device name; process i of this machine uses GPU i unless the name has an index."""
    if name == "auto":
        if torch.cuda.is_available():
            name = "cuda"
        else:
            name = "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"unknown device {name!r}. Use auto, cpu, cuda, cuda:1 or mps") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        index = process % max(count, 1) if device.index is None else device.index
        if index >= count:
            visible = "1 GPU is" if count == 1 else f"{count} GPUs are"
            raise UsageError(f"expected a visible GPU, got cuda:{index}: {visible} visible")
        return torch.device("cuda", index)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("device mps is not available on this machine. Use --device cpu")
    if device.type not in ("cpu", "mps"):
        raise UsageError(f"unknown device {name!r}. Use auto, cpu, cuda, cuda:1 or mps")
    return device


def default_batch_size(device: torch.device, side: int) -> int:
    """Return a batch size that is efficient for images of `side` x `side` pixels."""
    if device.type != "cpu":
        return GPU_BATCH
    fitting = max(1, CPU_PIXELS // side**2)
    return int(min(256, 2 ** (fitting.bit_length() - 1)))


def memory_format(module: nn.Module) -> torch.memory_format:
    """Return channels last for networks that are mostly convolutions.

    EfficientNet-Lite0 is a quarter faster that way on one CPU core; networks of linear layers gain
    nothing. The rule is fixed, so that every run rounds in the same way.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    convolved = sum(p.numel() for layer in layers for p in layer.parameters(recurse=False))
    total = sum(parameter.numel() for parameter in module.parameters())
    return torch.channels_last if 2 * convolved > total else torch.contiguous_format


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an allocation failed, on any device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


@contextmanager
def float32_arithmetic(precision: str) -> Iterator[None]:
    """Round float32 products to TF32 only for precision `tf32`; cuDNN does so by default."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@dataclass
class Predictor:
    """A model on a device: normalized images in, checked outputs on the CPU out."""

    network: Network
    device: torch.device
    name: str = "the model"
    precision: str = "fp32"
    batch_size: int = 64  # no result depends on it
    memory_format: torch.memory_format = torch.contiguous_format
    task: Task = CLASSIFICATION
    passes: int = 0  # images that went through the network
    _checked: bool = False

    @classmethod
    def of(
        cls,
        module: nn.Module,
        device: torch.device,
        *,
        name: str,
        side: int,
        precision: str = "fp32",
        batch_size: int | None = None,
    ) -> Predictor:
        """Move a module to a device, in eval mode and the memory format that suits it."""
        layout = memory_format(module)
        module = module.to(device).eval().to(memory_format=layout)
        size = batch_size or default_batch_size(device, side)
        task = module.task if isinstance(module, Model) else CLASSIFICATION
        return cls(module, device, name, precision, size, layout, task)

    @torch.no_grad()  # not inference_mode: tensors that a model caches could not be trained later
    def __call__(self, images: Tensor) -> Any:
        """Predict a batch.

        Returns:
            Outputs of the task on the CPU: logits (B, classes), float32 or float64, of classifiers.

        Raises:
            ModelError: The network fails, its outputs are not finite or not those of its task, or
                they depend on the other images of a batch.
        """
        if not self._checked:
            self._check_batch_independence(images)
            self._checked = True
        outputs = self._outputs(images)
        self.passes += len(images)
        return outputs

    def _outputs(self, images: Tensor) -> Any:
        dtype = AUTOCAST.get(self.precision)
        try:
            with torch.autocast(images.device.type, dtype, enabled=dtype is not None):
                output: object = self.network(images.contiguous(memory_format=self.memory_format))
        except Exception as error:
            if is_out_of_memory(error) or isinstance(error, ModelError):
                raise
            raise ModelError(
                f"{self.name} failed on a batch of {tuple(images.shape)}: {first_line(error)}"
            ) from error
        return self.task.checked(output, images, self.name)

    def near_ties(self, logits: Tensor) -> NDArray[np.bool_]:
        """Return a mask of the rows whose class may have been decided by rounding."""
        return near_ties(logits, ROUNDING[self.precision])

    def _check_batch_independence(self, images: Tensor) -> None:
        """Compare the outputs of one image alone and within a batch."""
        others = images[1:CHECKED] if len(images) > 1 else 1 - images[:1]
        try:
            alone = self._outputs(images[:1])
            within = self._outputs(torch.cat([images[:1], others]))[:1]
        except Exception as error:
            if is_out_of_memory(error):  # too little memory for a few images: one at a time
                return
            raise
        difference, size = self.task.difference(alone, within)
        allowed = max(AGREEMENT, 8 * ROUNDING[self.precision]) * size
        if not difference <= allowed:
            raise ModelError(
                f"the logits of {self.name} depend on the other images of a batch: those of one "
                f"image differ by {difference:.2g} between batch sizes 1 and {1 + len(others)} "
                f"(tolerance {allowed:.2g}). Check for batch norm in training mode, or statistics "
                "over the batch"
            )

    def shrink(self) -> None:
        """Halve the batch size after memory ran out."""
        self.batch_size = max(1, self.batch_size // 2)
        log.warning("out of memory on %s: batch size %d", self.device, self.batch_size)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


@dataclass
class ImageBatch:
    """Images on the device that can be predicted through any view.

    A network behind input remedies may be given the same image for several views of an image
    (`Model.shares_inputs`): equal inputs are predicted once.
    """

    predictor: Predictor
    keys: Sequence[str]
    canvas: Tensor  # (B, C, H + 2 margin, W + 2 margin), normalized
    margin: int = 0
    scene: Scene | None = None  # forms the images anew, where that is possible
    identifiers: Sequence[str] = ()  # random views follow from them; default: the keys
    scale: int = 1  # pixels of the canvas per pixel of offsets
    remedies: Sequence[InputRemedy] = ()  # change views before the network, the innermost first
    _views: dict[str, Views] = field(default_factory=dict)
    _seen: dict[tuple[int, bytes], Tensor] = field(default_factory=dict)  # network input -> logits

    def __post_init__(self) -> None:
        self.identifiers = self.identifiers or self.keys

    def view(self, rows: Sequence[int], views: Sequence[View]) -> Tensor:
        """Build a batch in which image `rows[i]` is seen through `views[i]`."""
        parts, start = [], 0
        for (shift, offset), same in groupby(view[:2] for view in views):
            if shift not in self._views:
                prepared = SHIFTS.get(shift).views(self.canvas, self.margin, self.scene)
                self._views[shift] = prepared
            stop = start + len(list(same))
            moved = Offset(self.scale * offset.dy, self.scale * offset.dx)
            parts.append(self._views[shift](moved, torch.tensor(rows[start:stop])))
            start = stop
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def has_phase(self) -> NDArray[np.bool_] | None:
        """Return False for images without a phase, which `align` leaves in the center.

        None: no remedy aligns images.
        """
        if not any(isinstance(remedy, Align) for remedy in self.remedies):
            return None
        rows = range(len(self.keys))
        return find_phases(self.remedies, self.view(rows, [CLEAN_VIEW] * len(rows)))

    def begin(self, tables: Tables) -> Iterator[None]:
        """Add the rows of the images to tables, if they are parts of images."""
        yield from ()

    def seen(self, row: int) -> Seen | None:
        """Return the parts of an image; None: the image is the row."""
        return None

    def outputs(self, rows: Sequence[int], views: Sequence[View]) -> Any:
        """Predict image `rows[i]` through `views[i]`."""
        images = self.view(rows, views)
        network = self.predictor.network
        if not (isinstance(network, Model) and network.shares_inputs):
            return self.predictor(images)
        with torch.no_grad():
            inputs = network.shown(images).cpu().contiguous()
        names = [
            (row, hashlib.blake2b(image.numpy(), digest_size=16).digest())
            for row, image in zip(rows, inputs, strict=True)
        ]
        new: dict[tuple[int, bytes], int] = {}  # name -> its first row in this batch
        for i, name in enumerate(names):
            if name not in self._seen:
                new.setdefault(name, i)
        if new:
            logits = self.predictor(images[list(new.values())])
            self._seen |= zip(new, logits, strict=True)
        return torch.stack([self._seen[name] for name in names])


def find_phases(remedies: Sequence[InputRemedy], views: Tensor) -> NDArray[np.bool_]:
    """Return False for views (B, C, H, W) without a phase for the outermost `align`."""
    shown = views
    for remedy in reversed(remedies):
        if isinstance(remedy, Align):
            found: NDArray[np.bool_] = (
                remedy.has_phase(shown).view(-1, len(views)).all(0).cpu().numpy()
            )
            return found
        shown, _ = remedy.show(shown)
    raise AssertionError("no remedy aligns images")


Needed = Callable[[Cells], NDArray[np.bool_]]
Positions = tuple[NDArray[np.intp], NDArray[np.intp]]  # rows and columns of cells


def predict_cells(
    metric: Metric,
    cells: Cells,
    batch: ImageBatch,
    images: Sequence[int],
    needed: Needed | None = None,
) -> Iterator[Positions]:
    """Predict in place the cells that a metric needs of some images of a batch.

    Args:
        metric: Defines the views.
        cells: All rows of `images`; filled in place.
        batch: The images.
        images: Indices into the batch.
        needed: Selects other cells than the metric does.

    Yields:
        Positions of near ties, after each forward pass.
    """
    needed = needed or metric.needed
    views = [(CLEAN_VIEW, *metric.views(batch.identifiers[image])) for image in images]
    reference = np.array([-1 if v.reference is None else v.reference for v in views[0]])
    chosen, predictor = np.asarray(images), batch.predictor
    while (todo := cells.by_image(needed(cells))).any():
        # By column: neighbors share an offset, and a reference precedes the views that refer to it.
        columns, rows = (x[: predictor.batch_size] for x in np.nonzero(todo.T))
        shown = [views[row][column] for row, column in zip(rows, columns, strict=True)]
        outputs = batch.outputs(chosen[rows].tolist(), shown)
        seen = [batch.seen(chosen[row]) for row in rows]
        rounding = ROUNDING[predictor.precision]
        yield predictor.task.fill(cells, (rows, columns), outputs, seen, reference, rounding)


def measure(
    batch: ImageBatch, metrics: Iterable[tuple[Metric, Sequence[int]]], tables: Tables
) -> Iterator[None]:
    """Predict the cells of a batch that tables lack; yield after each forward pass.

    Args:
        batch: Images whose labels are in the tables.
        metrics: Each with the indices of the images of the batch that it is requested for.
        tables: Filled in place.
    """
    yield from batch.begin(tables)
    near_tie = tables.array(NEAR_TIE, 1)
    for metric, images in metrics:
        keys = [batch.keys[image] for image in images]
        if not keys:
            continue
        rows = tables.rows(keys)
        cells = tables.read(metric.table, len(metric.views("")), keys)
        near_tie[rows] = near_tie[rows].clip(min=0)
        for tied, _ in predict_cells(metric, cells, batch, images, partial(_needed, metric)):
            near_tie[rows[tied if cells.images is None else cells.images[tied]]] = 1
            tables.write(metric.table, keys, cells)
            yield


def _needed(metric: Metric, cells: Cells) -> NDArray[np.bool_]:
    """Return the cells that a metric needs, of rows that it counts."""
    todo = metric.needed(cells)
    return todo if cells.whole is None else todo & (cells.whole >= metric.extent())[:, None]


def predict_tables(
    network: Network,
    canvas: Tensor,
    labels: Sequence[int],
    metrics: Sequence[Metric],
    *,
    keys: Sequence[str] | None = None,
    margin: int = 0,
    scale: int = 1,
    batch_size: int = 64,
) -> Tables:
    """Predict the cells that metrics need of images in memory.

    Args:
        network: Maps normalized images to logits, on the device of the canvas.
        canvas: (B, C, H + 2 margin, W + 2 margin), normalized.
        labels: One class index per image.
        metrics: Metrics to predict.
        keys: A name per image, from which its random views follow; default: its number.
        margin: Pixels around the view, on each side.
        scale: Pixels of the canvas per pixel of offsets.
        batch_size: Images per forward pass.
    """
    names = [str(i) for i in range(len(canvas))] if keys is None else list(keys)
    tables = Tables(names)
    tables.array(LABEL, 1)[:, 0] = labels
    predictor = Predictor(network, canvas.device, batch_size=batch_size)
    batch = ImageBatch(predictor, names, canvas, margin, scale=scale)
    for _ in measure(batch, [(metric, range(len(names))) for metric in metrics], tables):
        pass
    return tables
