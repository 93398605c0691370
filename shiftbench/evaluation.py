"""`shiftbench.evaluate`: a model and some images in memory, measured in one call."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from PIL.Image import Image
from torch import Tensor, nn

from aft_models.preprocessing import Preprocessing
from shiftbench.data import CanvasBatch, ImageSet
from shiftbench.data.base import ALL
from shiftbench.errors import DataError, UsageError, no_images
from shiftbench.geometry import Geometry
from shiftbench.metrics import MetricOptions, plan_metric
from shiftbench.metrics.predictions import Model, check_batch_size
from shiftbench.models.model import Model as LoadedModel
from shiftbench.records.record import Record, record_folder, write_record
from shiftbench.registry import unknown_name
from shiftbench.run.engine import CHECKED, ENGINES, Engine
from shiftbench.run.job import Job, attack_names
from shiftbench.run.runner import FULL_BATCHES, describe_environment, measure
from shiftbench.run.store import Store
from shiftbench.scores import ACCURACY, Scores
from shiftbench.shifts.base import view_size, window
from shiftbench.statistics import Score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

Box = tuple[int, int, int, int]  # top, left, height, width


@dataclass(frozen=True)
class Evaluation:
    """What shifts did to a model's predictions, image by image.

    >>> images, labels = torch.rand(8, 3, 16, 16), [0] * 8
    >>> sure = lambda x: torch.tensor([[1.0, 0.0]]).expand(len(x), 2)
    >>> result = evaluate(sure, images, labels, attack="half", max_shift=1, consistency=())
    >>> result
    <Evaluation of 8 images: accuracy 100.0%, adversarial_half@1 100.0%>
    >>> float(result.score("adversarial_half@1"))
    1.0
    """

    record: Record  # as `shiftbench run` would have written it

    @property
    def scores(self) -> Scores:
        """Every score, by name."""
        return self.record.scores

    @property
    def forward_passes(self) -> int:
        """How many images went through the model, each offset counted."""
        return self.record.forward_passes

    def score(self, name: str) -> Score:
        """A score by its text: `accuracy`, `consistency_half`, `adversarial_crop@3`."""
        return self.scores.find(name)

    @property
    def accuracy(self) -> Score:
        """The clean accuracy."""
        return self.scores[ACCURACY]

    @property
    def is_upper_bound(self) -> bool:
        """Whether offsets were sampled, so that adversarial accuracy can only be too high."""
        return any(self.record.is_upper_bound(name) for name in self.scores)

    def adversarial_accuracy(self, s: int | None = None) -> Score:
        """The fraction of images that are correct at every offset up to ring `s`.

        By default `s` is the radius of the grid. Of several attacks, this is the first.
        """
        name = self.scores.curves()[0]
        radii = self.scores.curve(name)
        score = self.scores.at(name, s)
        if score is None:
            raise UsageError(
                f"this evaluation searched 0..{max(radii)} steps, got {s}. Evaluate again "
                "with a larger max_shift"
            )
        return score

    def curve(self) -> pd.DataFrame:
        """Adversarial accuracy at every radius, with its interval: a row per `max_shift`."""
        curve = self.scores.curve(self.scores.curves()[0])
        frame = pd.DataFrame([vars(score) for score in curve.values()], index=list(curve))
        return frame.rename_axis("max_shift").reset_index()

    def to_frame(self) -> pd.DataFrame:
        """A row per image, with the columns that `samples.parquet` of a run has."""
        return self.record.samples()

    def plot(self) -> Figure:
        """The adversarial curves, with their intervals."""
        from shiftbench.report.plots import curves_figure

        return curves_figure([self.record])

    def save(self, folder: Path | str) -> Path:
        """Writes a record that tables, figures and comparisons read; returns its folder.

        Args:
            folder: Folder of records; this one goes to `<model>--<data>` below it.
        """
        place = record_folder(Path(folder), self.record.model.name, self.record.data.name)
        write_record(place, self.record)
        return place

    def __repr__(self) -> str:
        stems = [stem for stem in self.scores.stems() if stem.family in ("accuracy", "adversarial")]
        words = []
        for stem in stems:
            score, curve = self.scores.at(stem), self.scores.curve(stem)
            at = f"@{max(curve)}" if curve else ""
            words.append(f"{stem}{at} {score.text() if score else ''}%")
        return f"<Evaluation of {self.record.data.images} images: {', '.join(words)}>"

    def _repr_html_(self) -> str:
        frame = pd.DataFrame(
            {str(name): {"score": str(score)} for name, score in self.scores.items()}
        ).T
        return frame.to_html()

    def __str__(self) -> str:
        bound = " (upper bound: offsets were sampled)" if self.is_upper_bound else ""
        lines = []
        for stem in self.scores.stems():
            curve, score = self.scores.curve(stem), self.scores.at(stem)
            up_to = f" up to {max(curve)} steps" if curve else ""
            lines.append(f"{str(stem).replace('_', ' ')}{up_to}: {score}{bound if curve else ''}")
        return "\n".join(lines)


def evaluate(
    model: Model,
    images: Tensor | NDArray[np.floating] | Iterable[tuple[Tensor, ArrayLike]],
    labels: ArrayLike | None = None,
    *,
    attack: str | Sequence[str] = "crop",
    max_shift: int = MetricOptions.max_shift,
    step: Fraction | float | None = None,
    view: int | tuple[int, int] | None = None,
    mode: str = "exhaustive",
    full_grid: bool = False,
    consistency: str | Sequence[str] = ("integer", "half"),
    repeats: int = 1,
    metrics: str | Sequence[str] = (),
    keys: Sequence[str] | None = None,
    seed: int = 0,
    batch_size: int = 64,
    device: torch.device | str | None = None,
    engine: str = "torch",
    name: str = "model",
    data: str = "images",
) -> Evaluation:
    """Measures how a model's predictions hold when the camera moves.

    Args:
        model: Anything that maps normalized images (B, C, H, W) to logits (B, classes); a tuple, a
            dict or an object that holds them is unpacked. A module is used in eval mode and handed
            back in the mode it came in.
        images: A floating-point tensor or array (N, C, H, W), normalized as the model expects, with
            `labels`; or, without `labels`, a loader or data set of (image, label) pairs, batched or
            single.
        labels: One class index per image.
        attack: `integer`, `half`, `crop` or `bilinear`, several of them, or `all`; see
            `shiftbench.ATTACKS`.
        max_shift: The radius of the grid, in steps.
        step: Pixels between neighboring offsets, if not the attack's own.
        view: Height and width of what the model sees: the center of the images. By default as large
            as possible: for `crop` and `bilinear` the images less the pixels the grid needs around
            the view (6 on each side for crops up to 6), otherwise the whole images. Give the size
            (say 224, of images of 256) when the model insists on one.
        mode: `exhaustive`, `full_grid` or `sampled:K`; see `shiftbench.metrics.search.search`.
        full_grid: The same as `mode="full_grid"`.
        consistency: Kinds of random shift to compare with: `integer`, `half`, `crop` (two crops of
            the given images); empty for none.
        repeats: Random shifts per image.
        metrics: Further metrics, as `shiftbench list metrics` names them.
        keys: A stable name per image, which its random shifts follow from; by default its number.
        seed: Another seed, other random shifts.
        batch_size: How many images the model sees at once; no result depends on it.
        device: Where the images go; by default where the module's parameters are.
        engine: What runs the forward pass: `torch`, the model as it is; `compile`; or `onnx`, ONNX
            Runtime, whose first logits are compared with the model's own.
        name: What a saved record calls the model.
        data: What a saved record calls the images.

    Raises:
        UsageError: An unknown name, or a grid too wide for the images.
        DataError: There are no images, or labels that do not fit them.
        ModelError: The model's outputs are not finite logits for the classes of the labels.

    Example:
        >>> import torch
        >>> images, labels = torch.rand(8, 3, 16, 16), torch.zeros(8, dtype=torch.long)
        >>> bright = lambda x: torch.stack([x.mean((1, 2, 3)), -x.mean((1, 2, 3))], 1)
        >>> evaluate(bright, images, labels, max_shift=1).adversarial_accuracy().value
        1.0
    """
    check_batch_size(batch_size)
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    attacks = _listed(attack)
    if "all" in attacks:
        attacks = list(attack_names(attacks, camera=False))
    texts = [
        ACCURACY.family,
        *(f"adversarial:{name}" for name in attacks),
        *(f"consistency:{kind}" for kind in _listed(consistency)),
        *_listed(metrics),
    ]
    options = MetricOptions(
        max_shift=max_shift,
        step=None if step is None else str(Fraction(step).limit_denominator(1000)),
        mode="full_grid" if full_grid else mode,
        repeats=repeats,
        seed=seed,
    )
    settings = {"limit": None, "search_limit": None, "seed": seed, "engine": engine}
    store, names, classes, pixels = Store(), list[str](), list[int](), hashlib.sha256()
    with _eval_mode(model) as like:
        parts = _parts(_batches(images, labels), FULL_BATCHES * batch_size, like, device)
        first = next(parts, None)
        if first is None:
            raise no_images()
        place, margin = _center(first[0], texts, options, view)
        shown = _cut(first[0], place)
        side = min(shown.shape[-2:])
        geometry = Geometry(side, side + 2 * margin, margin, interpolation="none", crop="given")
        sizes = {"view": geometry.view, "resize": geometry.resize}
        planned = [plan_metric(text, options, **sizes) for text in dict.fromkeys(texts)]
        classifier = _classifier(model, engine, shown)
        forward = Engine(
            classifier, device=shown.device, engine=engine, batch_size=batch_size, like=shown
        )

        def job(images: _Given) -> Job:
            keys = {metric.name: images.keys for metric in planned}
            return Job.of(classifier, images, geometry, planned, keys, settings)

        for part, labels_here in chain([first], parts):
            canvas = _cut(part, place, margin)
            pixels.update(canvas.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
            here = _Given(data, ALL, _keys(keys, len(names), len(part)), labels_here.tolist(), ())
            batch = CanvasBatch(canvas, torch.from_numpy(labels_here), tuple(here.keys))
            rows = Store()  # of its own: looking up what is missing takes longer, the more there is
            measure(job(here), rows, forward, at_hand=batch)
            store.extend(rows)
            names += here.keys
            classes += here.labels
    whole = job(_Given(data, ALL, names, classes, (), digest=pixels.hexdigest()))
    whole = replace(whole, model=replace(whole.model, name=name))
    return Evaluation(store.derive(whole, describe_environment(forward.device)))


@dataclass(frozen=True, eq=False)
class _Given(ImageSet):
    """What is known of images that the caller has cut and normalized: nothing is decoded."""

    digest: str = ""

    def image(self, index: int) -> Image:
        raise NotImplementedError

    def has_size(self, side: int) -> bool:
        return True

    def fingerprint(self, *, verify: bool = False) -> str:
        return self.digest


def _listed(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _keys(given: Sequence[str] | None, done: int, count: int) -> tuple[str, ...]:
    """The names of the next images."""
    names = range(done, done + count) if given is None else given[done : done + count]
    if len(names) < count:
        raise DataError(f"expected a key per image, got only {len(given or ())}")
    return tuple(str(name) for name in names)


def _classifier(model: Model, engine: str, images: Tensor) -> LoadedModel:
    """The model with what a record says of it, tried on the first images."""
    module = _module_of(model)
    if module is None and engine != "torch":
        raise UsageError(
            f"engine {engine!r} needs a torch.nn.Module, got {type(model).__name__}. Leave the "
            "engine out for other callables"
        )
    if isinstance(model, LoadedModel):
        return model
    name = "the model" if module is None else type(module).__name__
    preprocessing = Preprocessing(min(images.shape[-2:]), (), (), "none")
    return LoadedModel(model, preprocessing, name=name, images=images[:CHECKED])


def _module_of(model: Model) -> nn.Module | None:
    return model if isinstance(model, nn.Module) else None


@contextmanager
def _eval_mode(model: Model) -> Iterator[Tensor | None]:
    """Puts a module into eval mode for a while; yields one of its parameters, if it has any."""
    module = _module_of(model)
    if module is None:
        yield None
        return
    # Part by part: a module in training may hold frozen parts that are in eval mode already.
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield next(module.parameters(), None)
    finally:
        for part in training:
            part.training = True


def _center(
    images: Tensor,
    texts: Sequence[str],
    options: MetricOptions,
    view: int | tuple[int, int] | None,
) -> tuple[Box, int]:
    """Where the view stands in the images, and the margin that it has on every side."""
    height, width = images.shape[-2:]
    sizes = {"view": min(height, width), "resize": min(height, width)}
    # Random crops make do with the margin that the others need.
    grids = [t for t in texts if t.partition(":")[0] not in ("consistency", "agreement")]
    needed = max(plan_metric(text, options, **sizes).margin() for text in grids)
    rows, columns = (
        (view, view) if isinstance(view, int) else view or (height - 2 * needed, width - 2 * needed)
    )
    margin = min(height - rows, width - columns) // 2
    if margin < needed or min(rows, columns) < 1:
        attacks = [
            repr(text.removeprefix("adversarial:"))
            for text in grids
            if text.startswith("adversarial:")
        ]
        raise UsageError(
            f"attack {' and '.join(attacks)} needs {needed} pixels around the view, but images of "
            f"{height}x{width} do not hold a view of {rows}x{columns} with them. Choose a smaller "
            "max_shift, a smaller view, or larger or padded images"
        )
    return ((height - rows) // 2, (width - columns) // 2, rows, columns), margin


def _cut(images: Tensor, place: Box, margin: int = 0) -> Tensor:
    top, left, height, width = place
    return window(images, top - margin, left - margin, height + 2 * margin, width + 2 * margin)


Images = tuple[Tensor, NDArray[np.int64]]  # images (B, C, H, W) and their labels (B,)


def _batches(images: Tensor | NDArray[Any] | Iterable[Any], labels: Any = None) -> Iterator[Images]:
    """Yields checked batches from a tensor with labels, or from (image, label) pairs without."""
    if isinstance(images, Tensor | np.ndarray):
        if labels is None:
            raise UsageError("images came without labels. Pass labels, one class index per image")
        yield _batch(images, labels)
        return
    if labels is not None:
        raise UsageError(
            f"labels came with a {type(images).__name__}, which should yield (image, label) pairs "
            "itself. Leave labels out, or stack the images into one tensor"
        )
    for item in images:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"expected the loader to yield (images, labels) pairs, got {type(item).__name__}. "
                "Wrap it so that it does"
            )
        image, label = item
        if not isinstance(image, Tensor | np.ndarray):
            raise DataError(
                f"expected the loader to yield tensors, got {type(image).__name__}. Add a "
                "transform that ends in normalized tensors"
            )
        yield _batch(image, label) if image.ndim == 4 else _batch(image[None], [label])


def _batch(images: Tensor | NDArray[Any], labels: Any) -> Images:
    tensor, classes = torch.as_tensor(images), torch.as_tensor(labels)
    if len(tensor) == 0:
        raise no_images()
    if tensor.dtype == torch.uint8:
        raise DataError(
            "expected images normalized as the model expects, got bytes (uint8). Divide them by "
            "255, subtract the mean and divide by the std of the model"
        )
    if tensor.ndim == 4 and tensor.shape[-1] in (1, 3) and tensor.shape[1] not in (1, 3):
        raise DataError(
            f"expected images (N, C, H, W), got {tuple(tensor.shape)}, which look like (N, H, W, "
            "C). Move the channels with images.permute(0, 3, 1, 2)"
        )
    view_size(tensor, margin=0)
    if classes.is_floating_point() or classes.is_complex() or classes.ndim != 1:
        raise DataError(
            f"expected one whole number per image as labels, got {classes.dtype} of shape "
            f"{tuple(classes.shape)}. Pass class indices"
        )
    if len(classes) != len(tensor):
        raise DataError(
            f"expected as many labels as images, got {len(classes)} labels for {len(tensor)} "
            "images. Check how they were paired"
        )
    return tensor, classes.cpu().numpy().astype(np.int64)


def _parts(
    stream: Iterable[Images], size: int, like: Tensor | None, device: torch.device | str | None
) -> Iterator[Images]:
    """Joins and cuts batches into ones of nearly `size` images, all of one shape, on the device."""
    held: list[Images] = []
    shape = None
    for images, labels in stream:
        shape = shape or images.shape[1:]
        if images.shape[1:] != shape:
            raise DataError(
                f"expected images of one size, got {tuple(shape)} and {tuple(images.shape[1:])}. "
                "Resize and crop them first"
            )
        for start in range(0, len(labels), size):
            piece = images[start : start + size], labels[start : start + size]
            if sum(len(classes) for _, classes in [*held, piece]) > size:
                yield _join(held, like, device)
                held = []
            held.append(piece)
    if held:
        yield _join(held, like, device)


def _join(parts: list[Images], like: Tensor | None, device: torch.device | str | None) -> Images:
    images, labels = (part for part in zip(*parts, strict=True))
    whole = torch.cat(images) if len(images) > 1 else images[0]
    whole = whole if like is None else whole.to(like.device, like.dtype)
    return whole if device is None else whole.to(device), np.concatenate(labels)
