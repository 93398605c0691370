"""`shiftbench.evaluate`: a model and some images in memory, measured in one call."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

from aft_models.checkpoint import load_state, read_weights
from aft_models.errors import AftModelsError
from aft_models.preprocessing import Preprocessing
from shiftbench.data.base import ALL, Target, content_digest
from shiftbench.errors import DataError, ModelError, UsageError, first_line, no_images
from shiftbench.geometry import Geometry
from shiftbench.metrics.base import Request, plan_metrics
from shiftbench.models import Model
from shiftbench.records.folder import record_folder, save_tables, write_record
from shiftbench.records.result import SCHEMA, Result, derive_result
from shiftbench.records.sections import DataInfo, ModelInfo
from shiftbench.running.arrays import is_labeled_by_parts, measure_arrays, read_images
from shiftbench.running.job import Settings, attack_names
from shiftbench.running.predict import (
    CHECKED,
    ImageBatch,
    Network,
    Predictor,
    choose_device,
    measure,
)
from shiftbench.running.runner import FULL_BATCHES, describe_environment
from shiftbench.scores import ScoreName, curve_of, last_points
from shiftbench.shifts.base import view_size, window
from shiftbench.statistics import Score
from shiftbench.tables import DIGEST, LABEL, Tables, identifier
from shiftbench.tasks.detection import DETECTION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

Box = tuple[int, int, int, int]  # top, left, height, width


@dataclass(frozen=True)
class Evaluation:
    """Predictions of a model under shifts, image by image.

    >>> images, labels = torch.rand(8, 3, 16, 16), [0] * 8
    >>> sure = lambda x: torch.tensor([[1.0, 0.0]]).expand(len(x), 2)
    >>> result = evaluate(sure, images, labels, attack="half", max_shift=1, consistency=())
    >>> result
    <Evaluation of 8 images, view 16 of 16 px: accuracy 100.0%, adversarial_half@1 100.0%>
    >>> float(result.score("adversarial_half@1"))
    1.0
    """

    record: Result  # the record that `shiftbench run` would write

    @property
    def scores(self) -> Mapping[ScoreName, Score]:
        """All scores by name."""
        return self.record.scores

    @property
    def forward_passes(self) -> int:
        """Number of predicted images, counted at each offset."""
        return self.record.forward_passes

    def score(self, name: str) -> Score:
        """Return a score by its text: `accuracy`, `consistency_half`, `adversarial_crop@3`."""
        return self.record.score(name)

    @property
    def accuracy(self) -> Score:
        """Clean accuracy: of images, or of their objects or pixels."""
        return next(iter(self.scores.values()))

    def adversarial_accuracy(self, s: int | None = None) -> Score:
        """Return the fraction of images that are correct at every offset up to ring `s`.

        By default `s` is the radius of the grid. The first of several attacks is used.
        """
        curve = self._first_curve()
        last = max(curve)
        if s is not None and s not in curve:
            raise UsageError(
                f"expected a max shift of 0 to {last} step{'s' * (last != 1)}, got {s}. Evaluate "
                "again with a larger max_shift"
            )
        return curve[last if s is None else s]

    def _first_curve(self) -> dict[int, Score]:
        """Return the curve of the first attack by radius."""
        return curve_of(self.scores, next(n for n in self.scores if n.radius is not None))

    def curve(self) -> pd.DataFrame:
        """Return adversarial accuracy and interval at every radius: a row per `max_shift`."""
        curve = self._first_curve()
        frame = pd.DataFrame([vars(score) for score in curve.values()], index=list(curve))
        return frame.rename_axis("max_shift").reset_index()

    def to_frame(self) -> pd.DataFrame:
        """Return a row per image: its prediction, failure radius, offset and class."""
        return self.record.to_frame()

    def plot(self) -> Figure:
        """Draw the adversarial curves with their intervals."""
        from shiftbench.report.plots import curves_figure

        return curves_figure([self.record])

    def save(self, folder: Path | str) -> Path:
        """Write a record that tables, figures and comparisons read, and return its folder.

        Args:
            folder: Folder of records; this one is written to `<model>--<data>` below it.
        """
        record = self.record
        place = record_folder(Path(folder), record.model.name, record.data.name)
        identity = {
            "schema": SCHEMA,
            "model": record.model.identity,
            "mean": list(record.model.mean),
            "std": list(record.model.std),
            "data": record.data.name,
            "geometry": {k: v for k, v in record.data.geometry.items() if k != "margin"},
            **record.settings,
        }
        save_tables(place, record.tables, identity)
        write_record(place, record)
        return place

    def __repr__(self) -> str:
        words = [
            f"{name} {score.text()}%"
            for name, score in last_points(self.scores).items()
            if name.family in ("accuracy", "adversarial", "detected", "segmented")
        ]
        cut = self.record.data.geometry
        view = f"view {cut['view']} of {cut['resize']} px"
        return f"<Evaluation of {self.record.data.images} images, {view}: {', '.join(words)}>"

    def _repr_html_(self) -> str:
        frame = pd.DataFrame(
            {str(name): {"score": str(score)} for name, score in self.scores.items()}
        ).T
        return frame.to_html()

    def __str__(self) -> str:
        lines = [f"{self.record.data.images} images, {self.record.data.geometry_text}"]
        for name, score in last_points(self.scores).items():
            steps = "step" if name.radius == 1 else "steps"
            up_to = "" if name.radius is None else f" up to {name.radius} {steps}"
            lines.append(f"{name.stem.replace('_', ' ')}{up_to}: {score}")
        return "\n".join(lines)


def evaluate(
    model: Network,
    images: Tensor | NDArray[np.floating] | Sequence[Tensor] | Iterable[tuple[Tensor, Any]],
    labels: ArrayLike | Sequence[Mapping[str, Any]] | None = None,
    *,
    attack: str | Sequence[str] = "crop",
    max_shift: int | None = None,
    step: Fraction | float | None = None,
    view: int | tuple[int, int] | None = None,
    scale: int = 1,
    full_grid: bool = False,
    consistency: str | Sequence[str] = ("integer", "half"),
    consistency_samples: int = 1,
    metrics: str | Sequence[str] = (),
    keys: Sequence[str] | None = None,
    seed: int = 0,
    batch_size: int = 64,
    device: torch.device | str | None = None,
    precision: str = "fp32",
    score_threshold: float | None = None,
    checkpoint: str | Path | None = None,
    strip_prefix: str | None = None,
    name: str = "model",
    data: str = "images",
) -> Evaluation:
    """Measure how much the predictions of a model change under shifts.

    Args:
        model: Anything that maps normalized images (B, C, H, W) to logits (B, classes); a tuple, a
            dict or an object that contains them is unpacked. A module is evaluated in eval mode,
            and its mode is restored afterwards.
        images: A floating-point tensor or array (N, C, H, W), normalized as the model expects, with
            `labels`; or, without `labels`, a loader or data set of (image, label) pairs, batched or
            single.
        labels: One class index per image. For a detector one dict with `boxes` (x1, y1, x2, y2 in
            pixels of the image) and `labels` per image, for a segmenter one mask of class indices;
            without them, rows are what the model predicts without a shift.
        attack: `integer`, `half`, `crop` or `bilinear`, several of them, or `all`; see
            `shiftbench.ATTACKS`.
        max_shift: The radius of the grid, in steps. Default: that of the attack, 6.
        step: Pixels between neighboring offsets, if not the attack's own.
        view: Height and width of the center of the images that the model takes. By default as large
            as possible: for `crop` and `bilinear` the images without the margin of the grid (6 px
            on each side for crops up to 6 px), otherwise the entire images. Pass the size (224 of
            images of 256 px) if the model needs a fixed one.
        scale: Pixels of the images per pixel of offsets: 2 for a model with `align`, whose view has
            twice the resolution of its network.
        full_grid: Predict every offset, also after an image's first misclassified one.
        consistency: Random shifts to compare with: `integer`, `half`, `crop` (two crops of
            the given images); empty for none.
        consistency_samples: Random shifts per image.
        metrics: Further metrics, as `shiftbench list metrics` names them.
        keys: A name per image; default: its number. Random shifts follow from the pixels instead.
        seed: Seed of random shifts.
        batch_size: Images per forward pass; does not affect results.
        device: Device of the images; by default that of the module's parameters.
        precision: `fp32`, `tf32`, `bf16` or `fp16` arithmetic of the forward pass.
        score_threshold: Score from which a detection counts. Default: 0.5.
        checkpoint: Weights to load into the module first: a file, or a folder that training
            exported. The module contains them afterwards.
        strip_prefix: Part of the checkpoint's keys to remove.
        name: Name of the model in a saved record.
        data: Name of the data in a saved record.

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
    if batch_size < 1:
        raise UsageError(f"expected a batch size of 1 or more, got {batch_size}")
    attacks = _listed(attack)
    if "all" in attacks:
        attacks = list(attack_names(attacks, camera=False))
    settings = Settings(
        attacks=tuple(attacks),
        consistency=tuple(_listed(consistency)),
        metrics=tuple(_listed(metrics)),
        max_shift=max_shift,
        scale=scale,
        step=None if step is None else str(Fraction(step).limit_denominator(1000)),
        full_grid=full_grid,
        consistency_samples=consistency_samples,
        seed=seed,
        precision=precision,
        score_threshold=score_threshold,
    )
    device = None if device is None else choose_device(str(device))
    if checkpoint is not None:
        _load_checkpoint(model, Path(checkpoint), strip_prefix)
    if (parts_model := _model_of_parts(model, images, labels, settings)) is not None:
        items = read_images(images, labels)
        names = _keys(keys, 0, len(items))
        with _eval_mode(model):
            return _evaluate_parts(
                parts_model, items, settings, names, batch_size, device, (name, data)
            )
    tables = Tables()
    with _eval_mode(model) as like:
        parts = _parts(_batches(images, labels), FULL_BATCHES * batch_size, like, device)
        first = next(parts, None)
        if first is None:
            raise no_images()
        place, margin = _center(first[0], settings, view)
        shown = _cut(first[0], place)
        if view is None:
            _warn_of_smaller_view(first[0], shown, settings)
        side = min(shown.shape[-2:])
        geometry = Geometry(
            side, side + 2 * margin, margin, interpolation="none", crop="given", scale=scale
        )
        planned = plan_metrics(settings.metric_texts(), settings, geometry)
        loaded = _loaded(model, shown)
        predictor = Predictor(
            loaded,
            shown.device,
            name=loaded.name,
            precision=precision,
            batch_size=batch_size,
        )
        for part, labels_here in chain([first], parts):
            names = _keys(keys, len(tables.keys), len(part))
            canvas = _cut(part, place, margin)
            tables.add(names)
            rows = tables.rows(names)
            tables.array(LABEL, 1)[rows, 0] = labels_here
            digests = [_digest(image) for image in _cut(part, place).cpu()]
            tables.array(DIGEST, 1)[rows, 0] = digests
            identifiers = [identifier(digest) for digest in digests]
            batch = ImageBatch(
                predictor, names, canvas, margin, identifiers=identifiers, scale=scale
            )
            for _ in measure(batch, [(metric, range(len(names))) for metric in planned], tables):
                pass
    record = derive_result(
        tables,
        [Request(metric, len(tables.keys)) for metric in planned],
        model=replace(ModelInfo.of(loaded), name=name),
        data=DataInfo(data, ALL, images=0, geometry=geometry.to_json()),
        settings={"seed": seed, "precision": precision},
        environment=describe_environment(str(shown.device)),
    )
    return Evaluation(record)


def _model_of_parts(model: Network, images: Any, labels: Any, settings: Settings) -> Model | None:
    """Wrap a detector or segmenter; None if labels or outputs are those of a classifier."""
    if labels is not None and not is_labeled_by_parts(labels):
        return None
    if labels is None and not isinstance(images, Tensor | np.ndarray | list | tuple):
        return None
    first = next(iter(images), None)
    if isinstance(first, tuple):
        if not is_labeled_by_parts(first[1]):
            return None
        first = first[0]
    if not isinstance(first, Tensor | np.ndarray) or first.ndim != 3:
        return None
    with _eval_mode(model) as like:
        image = torch.as_tensor(first)[None]
        image = image if like is None else image.to(like.device, like.dtype)
        margin = _parts_margin(settings)
        height, width = image.shape[-2:]
        facts = model.preprocessing if isinstance(model, Model) else Preprocessing(1)
        least = 2 * facts.scale * (margin + facts.margin)
        if min(height, width) <= least:
            raise UsageError(
                f"expected images larger than {least} px for shifts up to {margin} px, got "
                f"{height}x{width}. Choose a smaller max_shift"
            )
        loaded = _loaded(
            model, window(image, margin, margin, height - 2 * margin, width - 2 * margin)
        )
    return loaded if loaded.task.has_parts else None


def _parts_margin(settings: Settings) -> int:
    """Return the pixels that shifts of detectors and segmenters need around the window."""
    requests = settings.requests(Geometry(1, 1, 0, "none"), 1, DETECTION)
    return max(request.metric.extent() for request in requests)


def _evaluate_parts(
    model: Model,
    items: Sequence[tuple[Tensor, Target | None]],
    settings: Settings,
    keys: Sequence[str],
    batch_size: int,
    device: torch.device | str | None,
    names: tuple[str, str],
) -> Evaluation:
    """Measure a detector or segmenter; `names` are those of the model and of the data."""
    if not items:
        raise no_images()
    first = next(model.parameters(), None)
    place = torch.device(device or ("cpu" if first is None else first.device))
    threshold = settings.score_threshold or model.score_threshold
    margin, scale = _parts_margin(settings), model.preprocessing.scale
    if settings.scale != scale:
        raise UsageError(
            f"expected scale {scale} for {model.name}, got {settings.scale}. Pass scale={scale}"
        )
    for text in settings.metrics:
        model.task.require_metric(text)
    labeled = items[0][1] is not None
    requests = settings.requests(Geometry(1, 1, 0, "none"), len(items), model.task)
    predictor = Predictor(model, place, model.name, settings.precision, batch_size, task=model.task)
    planned = [request.metric for request in requests]
    tables = measure_arrays(
        model,
        items,
        planned,
        keys=keys,
        margin=margin,
        threshold=threshold,
        predictor=predictor,
    )
    side = min(items[0][0].shape[-2:])
    view = side - 2 * scale * (margin + model.preprocessing.margin)
    cut = Geometry(view, side, scale * margin, "none", crop="given", scale=scale)
    record = derive_result(
        tables,
        requests,
        model=replace(ModelInfo.of(model), name=names[0]),
        data=DataInfo(names[1], ALL, images=0, geometry=cut.to_json()),
        settings={
            "seed": settings.seed,
            "precision": settings.precision,
            **model.task.settings(labeled=labeled, threshold=threshold),
        },
        environment=describe_environment(str(place)),
    )
    if not record.scores:
        raise DataError(
            f"expected objects that are whole in every view up to {margin} px, got none in "
            f"{len(items)} images. Choose a smaller max_shift or a lower score_threshold"
        )
    return Evaluation(record)


def _load_checkpoint(model: Network, checkpoint: Path, strip_prefix: str | None) -> None:
    """Load weights into a module, with the loader of the command line."""
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"expected a torch module for the weights of {checkpoint}, got a "
            f"{type(model).__name__}. Leave checkpoint out"
        )
    try:
        load_state(model, read_weights(checkpoint), strip_prefix)
    except AftModelsError as error:
        raise ModelError(str(error)) from error


def _warn_of_smaller_view(images: Tensor, shown: Tensor, settings: Settings) -> None:
    """Warn if the default view is smaller than the images, which changes the input of the model."""
    (height, width), (rows, columns) = images.shape[-2:], shown.shape[-2:]
    if (rows, columns) != (height, width):
        margin = (height - rows) // 2
        log.warning(
            "evaluating the central %dx%d of %dx%d px, because %s needs a margin of %d px. Pass "
            "view=%d to confirm, or images of %dx%d px with view=%d to evaluate all of it",
            *(rows, columns, height, width),
            *(" and ".join(spec.text for spec in settings.attack_specs()) or "a metric", margin),
            *(rows, height + 2 * margin, width + 2 * margin, height),
        )


def _digest(image: Tensor) -> int:
    """Digest the pixels of a normalized image."""
    return content_digest(image.float().contiguous().numpy().tobytes())


def _listed(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _keys(given: Sequence[str] | None, done: int, count: int) -> tuple[str, ...]:
    """Return the names of the next images."""
    names = range(done, done + count) if given is None else given[done : done + count]
    if len(names) < count:
        raise DataError(f"expected a key per image, got only {len(given or ())}")
    return tuple(str(name) for name in names)


def _loaded(model: Network, images: Tensor) -> Model:
    """Wrap a network, and predict the first images once."""
    if isinstance(model, Model):
        return model
    name = type(model).__name__ if isinstance(model, nn.Module) else "the model"
    height, width = images.shape[-2:]
    preprocessing = Preprocessing(min(height, width), (), (), "none")
    try:
        return Model(model, preprocessing, name=name, images=images[:CHECKED])
    except ModelError as error:
        if error.__cause__ is None:  # the model ran, and its outputs are not logits
            raise
        raise ModelError(
            f"{name} failed on images of {height}x{width} px: {first_line(error.__cause__)}. If it "
            "needs another size, pass larger images and view=SIZE"
        ) from error


@contextmanager
def _eval_mode(model: Network) -> Iterator[Tensor | None]:
    """Put a module into eval mode in this context; yield one of its parameters, if any."""
    if not isinstance(model, nn.Module):
        yield None
        return
    # Per submodule: a module in training may contain frozen submodules in eval mode.
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield next(model.parameters(), None)
    finally:
        for part in training:
            part.training = True


def _center(
    images: Tensor,
    settings: Settings,
    view: int | tuple[int, int] | None,
) -> tuple[Box, int]:
    """Return the box of the view in the images, and its margin on every side."""
    height, width = images.shape[-2:]
    side = min(height, width)
    # Random crops use the margin that the other metrics need.
    grids = [
        text
        for text in settings.metric_texts()
        if text.partition(":")[0] not in ("consistency", "agreement")
    ]
    planned = plan_metrics(grids, settings, Geometry(side, side, 0, "none"))
    needed = (settings.scale or 1) * max(metric.margin() for metric in planned)
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
            f"{height}x{width} are too small for a view of {rows}x{columns} with them. Choose a "
            "smaller max_shift, a smaller view, or larger or padded images"
        )
    return ((height - rows) // 2, (width - columns) // 2, rows, columns), margin


def _cut(images: Tensor, place: Box, margin: int = 0) -> Tensor:
    top, left, height, width = place
    return window(images, top - margin, left - margin, height + 2 * margin, width + 2 * margin)


Images = tuple[Tensor, NDArray[np.int64]]  # images (B, C, H, W) and their labels (B,)


def _batches(images: Tensor | NDArray[Any] | Iterable[Any], labels: Any = None) -> Iterator[Images]:
    """Yield checked batches from a tensor with labels, or from (image, label) pairs without."""
    if isinstance(images, Tensor | np.ndarray):
        if labels is None:
            raise UsageError("images came without labels. Pass labels, one class index per image")
        yield _batch(images, labels)
        return
    if labels is not None:
        if isinstance(images, Sequence) and images and isinstance(images[0], Image):
            raise UsageError(
                "expected a tensor of normalized images, got PIL images. Apply the model's "
                "transform: torch.stack([transform(image) for image in images])"
            )
        raise UsageError(
            f"expected (image, label) pairs from a {type(images).__name__}, got labels as well. "
            "Leave labels out, or stack the images into one tensor"
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
    if isinstance(labels, Sequence | np.ndarray) and len(labels) and isinstance(labels[0], str):
        raise DataError(
            f"expected class indices as labels, got names such as {str(labels[0])!r}. Pass the "
            "index of the model's output for each name"
        )
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
            f"expected one integer per image as labels, got {classes.dtype} of shape "
            f"{tuple(classes.shape)}. Pass class indices"
        )
    if len(classes) != len(tensor):
        raise DataError(
            f"expected as many labels as images, got {len(classes)} labels for {len(tensor)} "
            "images. Pair each image with one label"
        )
    return tensor, classes.cpu().numpy().astype(np.int64)


def _parts(
    stream: Iterable[Images], size: int, like: Tensor | None, device: torch.device | str | None
) -> Iterator[Images]:
    """Regroup batches to nearly `size` images of one shape, on the device."""
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
