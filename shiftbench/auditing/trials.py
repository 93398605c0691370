"""Trials of remedies on a network: changes, gains and cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

import aft_models
from aft_models.errors import AftModelsError
from aft_models.preprocessing import Preprocessing
from aft_models.remedies import REMEDIES, RemedySpec, parse_remedies
from aft_models.remedies.context import RepairReport
from aft_models.remedies.crops import FILTERS, Downscale
from aft_models.remedies.inputs import ShownNetwork, unbound, with_view
from aft_models.remedies.repair import reports
from shiftbench.auditing.layers import load_batch
from shiftbench.data import ImageSet, load_dataset, relabeled
from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.metrics.base import read_cells
from shiftbench.models import Model, load_model
from shiftbench.running.predict import predict_tables
from shiftbench.shifts import SHIFTS
from shiftbench.statistics import Score, wilson

WHOLE, HALF = Offset(1.0, 1.0), Offset(0.5, 0.5)
ROUNDS = 3  # forward passes whose median CPU time is compared
PROBED = 8  # images that changes and cost are measured on, and that a forward pass takes at once
CROPS = 2  # max shift of crops in pixels
MARGIN = 32  # largest margin in pixels that remedies and crops may use


@dataclass(frozen=True)
class RepairTrial:
    """A network with some remedies, or with none.

    >>> [score.text() for score in RepairTrial("aps", images=8, right=(8, 6)).scores]
    ['100.0', '75.0']
    """

    remedies: str  # "" is the original network
    reports: tuple[RepairReport, ...] = ()  # one per remedy
    # Relative change of the logits under a cyclic shift by 1 px and by 1/2 px on both axes; NaN for
    # remedies with a wider view, whose input has no cyclic shifts.
    whole: float = 0.0
    half: float = 0.0
    cost: float = 1.0  # CPU time of a forward pass relative to the original
    images: int = 0  # number of images
    right: tuple[int, ...] = ()  # images correctly classified at every crop up to 0, 1 and 2 px
    refused: str = ""  # reason if the remedies do not apply

    @property
    def scores(self) -> tuple[Score, ...]:
        """Accuracy under crops up to 0, 1 and 2 px; fewer scores if the margin is smaller."""
        return tuple(wilson(count, self.images) for count in self.right)

    @property
    def changed(self) -> int:
        """Number of changed layers."""
        return sum(len(report.changed) for report in self.reports)

    @property
    def unchanged(self) -> int:
        """Number of layers or lines of code that could not be changed."""
        return sum(len(report.unchanged) for report in self.reports)

    @property
    def needs_finetuning(self) -> bool:
        """True if the accuracy is low before more training."""
        return any(report.needs_finetuning for report in self.reports)


def repair(
    model: str | Model,
    *,
    remedies: Sequence[str] = (),
    data: str | None = None,
    images: int = PROBED,
    checkpoint: Path | None = None,
    strip_prefix: str | None = None,
) -> list[RepairTrial]:
    """Try remedies on a model: changed layers, gains and cost of each.

    To use a remedy, name it with the model (`timm:resnet50+circular+aps`) or call
    `aft_models.repair(module, "circular+aps")`.

    Args:
        model: A name as for `shiftbench run`, or a loaded model, without remedies.
        remedies: Each a text such as `aps` or `circular+aps`. Default: every remedy, and every way
            to sub-sample together with circular padding.
        data: Images, as for `shiftbench run`; accuracy is measured too, clean and under crops up
            to 2 px. Default: the images of `scenes`, without labels.
        images: Number of images.
        checkpoint: Weights for a model given by its name.
        strip_prefix: Part of the checkpoint's keys to remove.

    Returns:
        A trial of the original model, then one per text.

    >>> original, repaired = repair("xcit_pico_6_p8.scenes", remedies=["canonical"], images=2)
    >>> repaired.whole < 1e-3 < original.whole
    True
    """
    classifier = model
    if isinstance(classifier, str):
        classifier = load_model(classifier, checkpoint=checkpoint, strip_prefix=strip_prefix)
    if classifier.identity.remedies:
        raise UsageError(f"{classifier.name} has remedies already. Give the model without them")
    dataset = load_dataset(data or "scenes", limit=images)
    if data is not None:
        dataset = relabeled(dataset, classifier.num_classes, classifier.class_names)
    images_of = Images.load(classifier, dataset, 1)
    chosen = [*(remedies or _all_remedies(images_of.margin))]
    scale = max(_scale(text) for text in chosen)
    if (
        classifier.preprocessing.interpolation not in FILTERS
    ):  # align raises an error that names the filter
        scale = 1
    return try_remedies(
        classifier.layers,
        images_of if scale == 1 else Images.load(classifier, dataset, scale),
        chosen,
        view=images_of.view[:PROBED],
        preprocessing=classifier.preprocessing,
        labeled=data is not None,
    )


@dataclass(frozen=True)
class Images:
    """Normalized canvases of some images, and their labels."""

    canvas: Tensor  # (B, C, H, W)
    labels: Tensor  # (B,)
    margin: int  # network pixels around the network's view
    scale: int = 1  # pixels of the canvas per network pixel

    @classmethod
    def load(cls, model: Model, dataset: ImageSet, scale: int) -> Images:
        """Load images with as large a margin as they have, up to `MARGIN`."""
        canvas, labels = load_batch(model, dataset, MARGIN, scale=scale)
        size = model.preprocessing.input_size
        return cls(canvas, labels, (canvas.shape[-1] // scale - size) // 2, scale)

    @property
    def view(self) -> Tensor:
        """The views without a margin."""
        return SHIFTS.get("crop").views(self.canvas, self.scale * self.margin)(ORIGIN)


def _scale(text: str) -> int:
    """Return the camera pixels per network pixel that remedies need; 1 for an unknown remedy."""
    try:
        specs = parse_remedies(text)
    except AftModelsError:  # its trial states the error
        return 1
    return prod(unbound(spec).scale for spec in specs if spec.remedy.input)


def _all_remedies(margin: int) -> list[str]:
    """List each remedy alone, and sampling remedies together with circular padding.

    Remedies with a wider view have the largest number up to their default that leaves pixels for
    crops within a margin of `margin` px.
    """
    pairs = [
        f"circular+{remedy.name}"
        for remedy in REMEDIES.values()
        if remedy.group == "sampling" and "border" not in remedy.treats
    ]
    usable = margin - CROPS if margin > CROPS else margin
    return [*(_fitting(name, usable) for name in REMEDIES), *pairs]


def _fitting(name: str, margin: int) -> str:
    """Return a remedy whose margin is at most `margin` px, if another number allows that."""
    (spec,) = parse_remedies(name)
    if not spec.remedy.input or not unbound(spec).margin:
        return name
    number = spec.remedy.numbers[0]
    numbers = range(number.default, number.lowest - 1, -1)
    fitting = next((n for n in numbers if _margin(spec, n) <= margin), number.lowest)
    return str(replace(spec, numbers=(fitting, *spec.numbers[1:])))


def _margin(spec: RemedySpec, number: int) -> int:
    """Return the margin in network pixels of an input remedy with another first number."""
    return unbound(replace(spec, numbers=(number, *spec.numbers[1:]))).margin


def try_remedies(
    network: nn.Module,
    images: Images,
    remedies: Sequence[str],
    *,
    view: Tensor | None = None,
    preprocessing: Preprocessing | None = None,
    labeled: bool = True,
) -> list[RepairTrial]:
    """Try remedies on copies of a network in eval mode; the first trial is of the network itself.

    Accuracy under crops is measured on the same canvases for all, at one scale. Changes and costs
    are measured on the network's own view.

    Args:
        network: The network without remedies.
        images: Canvases at the scale that the remedies need, or a multiple of it.
        remedies: Each a text such as `circular+aps`.
        view: A few normalized images (B, C, S, S) for changes and costs. Default: the first of the
            views of the canvases, which then have scale 1.
        preprocessing: Mean, std and interpolation of the network, for remedies that use them.
        labeled: Measure accuracy too.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> images = Images(torch.rand(2, 3, 8, 8), torch.zeros(2), margin=0)
    >>> before, after = try_remedies(net.eval(), images, ["circular+aps"], labeled=False)
    >>> after.whole < 1e-5 < before.whole
    True
    """
    view = images.view[:PROBED] if view is None else view
    size = view.shape[-1]
    facts = replace(preprocessing or Preprocessing.of(network), size=size, margin=0, scale=1)
    trials = []
    for text in ("", *remedies):
        repaired, refused = network, ""
        try:
            if text:
                repaired = aft_models.repair(
                    network, text, input_size=size, preprocessing=facts
                ).eval()
        except AftModelsError as error:
            refused = str(error)
        needed = sum(report.margin for report in reports(repaired))
        if needed > images.margin:
            fits = [f"{name}:{n}" for name, n in _smaller(text, needed, images.margin)]
            offer = f": use {fits[0]}" if fits else ": use larger images"
            refused = f"needs a margin of {needed} px, the images leave {images.margin}{offer}"
        if refused:
            trials.append(RepairTrial(text, refused=refused))
            continue
        wide = with_view(facts, repaired.remedies if isinstance(repaired, ShownNetwork) else ())
        trial = _examine(text, repaired, network, images, view, wide)
        right = _right(repaired, images, wide) if labeled else ()
        trials.append(replace(trial, right=right))
    return trials


def _smaller(text: str, needed: int, margin: int) -> list[tuple[str, int]]:
    """List the remedies of a text whose number can be reduced until the margin fits."""
    found = []
    for spec in parse_remedies(text):
        if spec.remedy.input and unbound(spec).margin:
            number = spec.numbers[0] - (needed - margin)
            if number >= spec.remedy.numbers[0].lowest:
                found.append((spec.remedy.name, number))
    return found


@torch.no_grad()
def _examine(
    text: str,
    network: nn.Module,
    original: nn.Module,
    images: Images,
    view: Tensor,
    wide: Preprocessing,
) -> RepairTrial:
    """Measure the changes under cyclic shifts and the cost."""
    seen = view
    if wide.margin or wide.scale > 1:  # a remedy that cuts its crop from a wider or finer view
        seen = _scaled(images, wide)[:PROBED]
    cost = 1.0
    if text:  # in turns, since the load of the machine changes
        ratios = (
            _seconds(lambda: network(seen)) / _seconds(lambda: original(view))
            for _ in range(ROUNDS)
        )
        cost = median(ratios)
    whole = half = math.nan
    if seen is view:
        cyclic, logits = SHIFTS.get("cyclic").views(view, 0), network(view)
        whole, half = (relative_change(network(cyclic(o)), logits) for o in (WHOLE, HALF))
    return RepairTrial(text, reports(network), whole, half, cost, len(images.canvas))


def _scaled(images: Images, wide: Preprocessing) -> Tensor:
    """Return the views that a network behind input remedies takes."""
    finer, margin = images.scale // wide.scale, images.margin - wide.margin
    views = SHIFTS.get("crop").views(images.canvas, images.scale * margin)(ORIGIN)
    return views if finer == 1 else Downscale(wide, finer).show(views)[0]


@torch.no_grad()
def _right(network: nn.Module, images: Images, wide: Preprocessing) -> tuple[int, ...]:
    """Count the images classified correctly at every crop up to 0, 1 and 2 px."""
    finer, margin = images.scale // wide.scale, images.margin - wide.margin
    if finer > 1:
        network = ShownNetwork(network, [Downscale(wide, finer)])
    metric = Adversarial("crop", min(margin, CROPS), "1")
    tables = predict_tables(
        network,
        images.canvas,
        images.labels.tolist(),
        [metric],
        margin=images.scale * margin,
        scale=images.scale,
        batch_size=PROBED,
    )
    outcomes = metric.outcomes(read_cells(tables, metric, tables.keys))
    return tuple(int(correct.sum()) for correct in outcomes.values())


def relative_change(logits: Tensor, before: Tensor) -> float:
    """Return the relative change of logits (B, classes).

    The mean over the classes changes no prediction, so it is subtracted first.

    >>> before = torch.tensor([[3.0, 1.0]])
    >>> relative_change(torch.tensor([[2.0, 2.0]]), before)
    1.0
    >>> relative_change(before + 100, before)
    0.0
    """
    before, after = (x - x.mean(1, keepdim=True) for x in (before, logits))
    return float((after - before).norm() / before.norm().clamp(min=1e-12))


def _seconds(run: Callable[[], object]) -> float:
    """Measure the CPU time of a forward pass."""
    began = time.process_time()
    run()
    return time.process_time() - began
