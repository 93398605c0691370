"""The model on its device: precision, batch size, and what to do when memory runs out."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from shiftbench.errors import ModelError, UsageError, first_line
from shiftbench.models.classifier import Classifier
from shiftbench.preprocessing import normalize
from shiftbench.run.forward import FORWARDS, check_forward, is_translated

log = logging.getLogger(__name__)

AUTO_GPU_BATCH = 512  # where `auto` starts on an accelerator; halved until it fits
TRIAL = 8  # images that the speed is guessed from
AUTO_CPU_PIXELS = 64 * 64 * 128  # per batch on a CPU: larger ones only fall out of its caches
# Relative rounding of the shorter formats: below it, two logits may swap between batch sizes.
ROUNDING = {"fp32": 0.0, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}


def choose_device(name: str = "auto", *, local_rank: int = 0) -> torch.device:
    """Resolves `auto`, and gives each process of a machine its own GPU."""
    if name == "auto":
        if torch.cuda.is_available():
            name = "cuda"
        else:
            name = "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"unknown device {name!r}: use auto, cpu, cuda, cuda:1 or mps") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        index = local_rank if device.index is None else device.index
        if index >= count:
            raise UsageError(f"device cuda:{index} was asked for and {count} GPUs are here")
        return torch.device("cuda", index)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("device mps was asked for and is not available on this machine")
    if device.type not in ("cpu", "mps"):
        raise UsageError(f"unknown device {name!r}: use auto, cpu, cuda, cuda:1 or mps")
    return device


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on any device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


class Engine:
    """Runs the model on batches of normalized images; halves them when memory runs out."""

    def __init__(
        self,
        classifier: Classifier,
        *,
        device: torch.device,
        precision: str = "fp32",
        engine: str = "torch",
        batch_size: int | None = None,
    ) -> None:
        """Moves the model to the device.

        Args:
            classifier: The model.
            device: Where it runs.
            precision: `fp32`, `tf32`, `bf16` or `fp16`.
            engine: What runs the forward pass, a name of `FORWARDS`.
            batch_size: How many images at once; None: as many as are useful and fit.
        """
        self._recipe = classifier.preprocessing
        self.name = classifier.name
        self.device = device
        self.precision = precision
        self.rounding = ROUNDING[precision]
        self.batch_size = batch_size or self._auto(self._recipe.input_size)
        module = classifier.module.to(device).eval()
        side = self._recipe.input_size
        shape = (len(self._recipe.mean), side, side)
        self._forward = FORWARDS[engine](module, shape, precision)
        self._reference = module if is_translated(self._forward) else None  # until it is compared
        self.on_passes: Callable[[int], None] | None = None  # is told the size of every batch

    def _auto(self, input_size: int) -> int:
        if self.device.type != "cpu":
            return AUTO_GPU_BATCH
        fitting = max(1, AUTO_CPU_PIXELS // input_size**2)
        return int(min(256, 2 ** (fitting.bit_length() - 1)))

    def prepare(self, pixels: Tensor) -> Tensor:
        """Bytes to normalized images on the device; the bytes travel, not the floats."""
        moved = pixels.to(self.device, non_blocking=True)
        return normalize(moved, self._recipe.mean, self._recipe.std)

    def __call__(self, images: Tensor) -> Tensor:
        """Returns logits, (B, classes), in float32."""
        if self._reference is not None:
            check_forward(self.name, self._forward, self._reference, images)
            self._reference = None
        logits = self._answer(images)
        if self.on_passes is not None:
            self.on_passes(len(images))
        return logits

    def _answer(self, images: Tensor) -> Tensor:
        logits: list[Tensor] = []
        start = 0
        while start < len(images):
            chunk = images[start : start + self.batch_size]
            try:
                logits.append(self._forward(chunk))
            except Exception as error:
                if is_out_of_memory(error) and len(chunk) > 1:
                    self.shrink(len(chunk) // 2)
                    continue
                raise ModelError(
                    f"{self.name} failed on a batch of {tuple(images.shape)}: {first_line(error)}"
                ) from error
            start += len(chunk)
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def seconds_per_image(self) -> float:
        """How long an image takes in a small batch, before anything else is known.

        Alone it would look much slower than it is in the batches of a search, and the first shards
        would be too small to fill them.
        """
        side, count = self._recipe.input_size, min(TRIAL, self.batch_size)
        blank = torch.zeros(count, len(self._recipe.mean), side, side, device=self.device)
        self._answer(blank)  # the first call allocates, tunes, compiles
        began = time.monotonic()
        self._answer(blank).cpu()
        return (time.monotonic() - began) / count

    def shrink(self, batch_size: int) -> None:
        """Goes on with smaller batches after memory ran out."""
        self.batch_size = batch_size
        log.warning("out of memory on %s: going on with batches of %d", self.device, batch_size)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


@contextmanager
def float32_arithmetic(precision: str) -> Iterator[None]:
    """Rounds float32 products to TF32 only where `tf32` was asked for: cuDNN does so by default."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
