"""The model on its device: what runs the forward pass, in which precision, in batches of what size.

Memory that runs out halves the batch. Before the first batch counts, a copy of the model in another
runtime is compared with the model itself, and predictions must not depend on the rest of a batch.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.preprocessing import normalize
from shiftbench.errors import ModelError, UsageError, first_line
from shiftbench.models.model import Model
from shiftbench.models.sources.onnx import OnnxNetwork
from shiftbench.run.graphs import exported, graph_file

log = logging.getLogger(__name__)

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
CHECKED = 8  # images that two engines are compared on
# Largest difference of two logits, over the largest logit, that is put down to rounding. Two
# engines differ by 1e-6 to 1e-5; a graph that lost an operation, by more than 1e-2.
AGREEMENT = 1e-3

ENGINES = ("torch", "compile", "onnx")
AUTO = "auto"  # torch, or onnx where `choose_engine` finds that it pays

Forward = Callable[[Tensor], Tensor]
Shape = tuple[int, int, int]  # channels, height, width


def memory_format(module: nn.Module) -> torch.memory_format:
    """Channels last for networks that are mostly convolutions.

    EfficientNet-Lite0 takes a quarter less time so, on one core of a CPU; networks of linear
    layers gain nothing. A rule rather than a race, so that every run rounds alike.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    convolved = sum(p.numel() for layer in layers for p in layer.parameters(recurse=False))
    total = sum(parameter.numel() for parameter in module.parameters())
    return torch.channels_last if 2 * convolved > total else torch.contiguous_format


class TorchForward:
    """The module itself, in its memory format and precision, compiled on request."""

    def __init__(self, module: nn.Module, precision: str, *, compiled: bool = False) -> None:
        self._format = memory_format(module)
        self._call: Forward = module.to(memory_format=self._format)
        self._dtype = AUTOCAST.get(precision)
        if compiled:
            like = next(module.parameters(), torch.empty(0))
            # On a CPU, constant weights are laid out for its matrix products beforehand. The last
            # batches of a search are of any size: dynamic shapes, or each would compile anew.
            options: dict[str, Any] | None = {"freezing": True} if like.is_cpu else None
            self._call = torch.compile(module, dynamic=True, options=options)

    def __call__(self, images: Tensor) -> Tensor:
        """Returns logits in float32."""
        images = images.contiguous(memory_format=self._format)
        mixed = torch.autocast(images.device.type, self._dtype, enabled=self._dtype is not None)
        with torch.no_grad(), mixed:
            return self._call(images).float()


def make_forward(
    engine: str, module: nn.Module, shape: Shape, precision: str = "fp32", *, anew: bool = False
) -> Forward:
    """What runs the forward pass; `anew` exports a graph that is in the cache already."""
    if engine == "onnx" and not is_onnx(module):  # a file of the user's runs there already
        content = exported(module, shape, anew=anew)
        return OnnxNetwork(content, name=type(module).__name__, tf32=precision == "tf32")
    return TorchForward(module, precision, compiled=engine == "compile")


def is_onnx(module: nn.Module) -> bool:
    """Whether a model is an ONNX file, which ONNX Runtime runs whatever the engine."""
    return any(isinstance(part, OnnxNetwork) for part in module.modules())


# --- devices and batches

AUTO_GPU_BATCH = 512  # where `auto` starts on an accelerator; halved until it fits
TRIAL = 8  # images that the speed is guessed from
TRIALS = 3  # of which the fastest counts: other programs only slow them down
# When `auto` takes ONNX Runtime, in seconds of PyTorch. Exporting takes about 25, and the number of
# passes ahead is a bound: images that break early need fewer.
FEW_PASSES = 500  # too few to be worth timing
CACHED_PAYS, EXPORT_PAYS = 5.0, 120.0
GAIN = 1.1  # times as fast, at least
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
            visible = "1 GPU is" if count == 1 else f"{count} GPUs are"
            raise UsageError(f"cuda:{index} requested, but only {visible} visible")
        return torch.device("cuda", index)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("device mps requested, but it is not available on this machine")
    if device.type not in ("cpu", "mps"):
        raise UsageError(f"unknown device {name!r}: use auto, cpu, cuda, cuda:1 or mps")
    return device


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on any device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def input_shape(classifier: Model) -> Shape:
    """Of the images that a model takes."""
    recipe = classifier.preprocessing
    return (len(recipe.mean), recipe.input_size, recipe.input_size)


def time_forward(forward: Forward, blank: Tensor) -> float:
    """Seconds per image in a small batch of blank images."""
    forward(blank)  # the first call allocates, tunes, compiles
    began = time.monotonic()
    forward(blank).cpu()
    return (time.monotonic() - began) / len(blank)


def choose_engine(classifier: Model, *, device: torch.device, precision: str, passes: int) -> str:
    """ONNX Runtime on a CPU where it is installed and faster, and the run long enough to pay.

    Both are timed on this machine, on blank images. A graph that is in the cache already pays
    after seconds, one that has to be exported after minutes. `passes` is a bound of the images that
    go through the model.
    """
    module, shape = classifier.to(device).eval(), input_shape(classifier)
    installed = all(find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript"))
    able = device.type == "cpu" and precision == "fp32" and installed and not is_onnx(module)
    if not able or passes < FEW_PASSES:
        return "torch"
    plain, blank = TorchForward(module, precision), torch.zeros(TRIAL, *shape)
    seconds = min(time_forward(plain, blank) for _ in range(TRIALS))
    module.to(memory_format=torch.contiguous_format)  # as it was, for the exporter
    if passes * seconds < (CACHED_PAYS if graph_file(module, shape).is_file() else EXPORT_PAYS):
        return "torch"
    try:
        translated = make_forward("onnx", module, shape)
        other = min(time_forward(translated, blank) for _ in range(TRIALS))
    except (AftModelsError, ModelError):  # what cannot be exported runs in PyTorch
        return "torch"
    return "onnx" if GAIN * other < seconds else "torch"


class Engine:
    """Runs the model on batches of normalized images; halves them when memory runs out."""

    def __init__(
        self,
        classifier: Model,
        *,
        device: torch.device,
        precision: str = "fp32",
        engine: str = "torch",
        batch_size: int | None = None,
        like: Tensor | None = None,
    ) -> None:
        """Moves the model to the device.

        Args:
            classifier: The model.
            device: Where it runs.
            precision: `fp32`, `tf32`, `bf16` or `fp16`.
            engine: What runs the forward pass, one of `ENGINES`.
            batch_size: How many images at once; None: as many as are useful and fit.
            like: Images of a caller whose module runs where and as it is; None: square ones, in the
                preprocessing of the model.
        """
        self._recipe = classifier.preprocessing
        self.name = classifier.name
        self.device = device
        self.precision = precision
        self.rounding = ROUNDING[precision]
        self.batch_size = batch_size or self._auto(self._recipe.input_size)
        module = classifier if like is not None else classifier.to(device).eval()
        self._shape = input_shape(classifier) if like is None else (*like.shape[1:],)
        self._forward: Forward = module
        if like is None or engine != "torch":
            self._forward = make_forward(engine, module, self._shape, precision)
        self._reference: nn.Module | None = module  # until the two are compared
        self.network_input = classifier.shown if classifier.shares_inputs else None
        self.on_passes: Callable[[int], None] | None = None  # is told the size of every batch

    def _auto(self, input_size: int) -> int:
        if self.device.type != "cpu":
            return AUTO_GPU_BATCH
        fitting = max(1, AUTO_CPU_PIXELS // input_size**2)
        return int(min(256, 2 ** (fitting.bit_length() - 1)))

    def prepare(self, pixels: Tensor) -> Tensor:
        """Bytes to normalized images on the device; the bytes travel, not the floats."""
        moved = pixels.to(self.device, non_blocking=True)
        if moved.is_floating_point():  # of a caller who has normalized them
            return moved
        return normalize(moved, self._recipe.mean, self._recipe.std)

    def __call__(self, images: Tensor) -> Tensor:
        """Returns logits, (B, classes), in float32."""
        if self._reference is not None:
            module, self._reference = self._reference, None
            self._check_graph(module, images[:CHECKED])
            self._check_company(images)
        logits = self._answer(images)
        if self.on_passes is not None:
            self.on_passes(len(images))
        return logits

    @torch.no_grad()
    def _check_graph(self, module: nn.Module, images: Tensor) -> None:
        """Compares a module with its graph; one from the cache, of other code perhaps, made anew.

        Raises:
            ModelError: Their logits differ by more than rounding.
        """
        if not isinstance(self._forward, OnnxNetwork):  # the module itself
            return
        expected = module(images).float()
        allowed = AGREEMENT * expected.abs().max()
        for anew in (False, True):
            if anew:
                self._forward = make_forward("onnx", module, self._shape, self.precision, anew=True)
            difference = (self._forward(images) - expected).abs().max()
            if difference <= allowed:  # NaN is no agreement
                return
        raise ModelError(
            f"{self.name} answers differently in ONNX Runtime: on the first images its logits are "
            f"off by {difference:.2g}, and rounding explains {allowed:.2g}; use --engine torch"
        )

    @torch.no_grad()
    def _check_company(self, images: Tensor) -> None:
        """Predicts an image alone and in other company: it must not matter.

        Raises:
            ModelError: The logits differ by more than rounding.
        """
        others = images[1:CHECKED] if len(images) > 1 else 1 - images[:1]
        try:
            alone = self._forward(images[:1])
            in_company = self._forward(torch.cat([images[:1], others]))[:1]
        except Exception as error:
            if is_out_of_memory(error):  # too little for a handful of images: one at a time
                return
            raise
        difference = (alone - in_company).abs().max()
        allowed = max(AGREEMENT, 8 * self.rounding) * in_company.abs().max()
        if not difference <= allowed:
            raise ModelError(
                f"the logits of {self.name} depend on the other images of a batch: one image alone "
                f"and among others differ by {difference:.2g}, and rounding explains "
                f"{allowed:.2g}. Every score would depend on the batch size: check for batch norm "
                "in training mode, or statistics taken over the batch"
            )

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
        count = min(TRIAL, self.batch_size)
        return time_forward(self._answer, torch.zeros(count, *self._shape, device=self.device))

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
