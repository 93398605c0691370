"""Trials of remedies on a network: changes, gains and cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

import aft_models
from aft_models.errors import AftModelsError
from aft_models.remedies import REMEDIES, RemedySpec, parse_remedies
from aft_models.remedies.context import RepairReport
from aft_models.remedies.repair import reports
from shiftbench.auditing.layers import load_batch
from shiftbench.data import load_dataset, relabeled
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
    whole: float = 0.0  # relative change of the logits under a cyclic shift by a whole pixel
    half: float = 0.0  # and by half a pixel, on both axes
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
        raise UsageError(f"{classifier.name} has remedies already: give the model without them")
    dataset = load_dataset(data or "scenes", limit=images)
    if data is not None:
        dataset = relabeled(dataset, classifier.num_classes, classifier.class_names)
    canvas, labels = load_batch(classifier, dataset, MARGIN)
    margin = (canvas.shape[-1] - classifier.preprocessing.input_size) // 2
    return try_remedies(
        classifier.layers,
        canvas,
        remedies or _all_remedies(margin),
        margin=margin,
        labels=None if data is None else labels,
    )


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
    if not spec.remedy.input or len(spec.numbers) != 1:
        return name
    (number,) = spec.remedy.numbers
    numbers = range(number.default, number.lowest - 1, -1)
    fitting = next((n for n in numbers if _margin(spec, n) <= margin), number.default)
    return name if fitting == number.default else f"{name}:{fitting}"


def _margin(spec: RemedySpec, number: int) -> int:
    """Return the margin in pixels of an input remedy with another number."""
    margin: int = spec.remedy.load()(number).margin
    return margin


def try_remedies(
    network: nn.Module,
    canvas: Tensor,
    remedies: Sequence[str],
    *,
    margin: int = 0,
    labels: Tensor | None = None,
) -> list[RepairTrial]:
    """Try remedies on copies of a network in eval mode; the first trial is of the network itself.

    All are given the same normalized canvas (B, C, H, W), with a margin of `margin` pixels around
    the network's view. Changes and cost are those of the first few images; accuracy is measured on
    all if there are labels.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> before, after = try_remedies(net.eval(), torch.rand(2, 3, 8, 8), ["circular+aps"])
    >>> after.whole < 1e-5 < before.whole
    True
    """
    image = SHIFTS.get("crop").views(canvas, margin)(ORIGIN)
    first, trials = image[:PROBED], []
    for text in ("", *remedies):
        repaired, refused = network, ""
        try:
            if text:
                repaired = aft_models.repair(network, text, input_size=image.shape[-1]).eval()
        except AftModelsError as error:
            refused = str(error)
        needed = sum(report.margin for report in reports(repaired))
        if needed > margin:
            fits = [f"{name}:{n}" for name, n in _smaller(text, needed, margin)]
            offer = f": use {fits[0]}" if fits else ": use larger images"
            refused = f"needs a margin of {needed} px, the images leave {margin}{offer}"
        if refused:
            trials.append(RepairTrial(text, refused=refused))
        else:
            left = margin - needed
            trials.append(_examine(text, repaired, lambda: network(first), canvas, left, labels))
    return trials


def _smaller(text: str, needed: int, margin: int) -> list[tuple[str, int]]:
    """List the remedies of a text whose number can be reduced until the margin fits."""
    found = []
    for spec in parse_remedies(text):
        if spec.remedy.input and len(spec.numbers) == 1 and _margin(spec, spec.numbers[0]):
            number = spec.numbers[0] - (needed - margin)
            if number >= spec.remedy.numbers[0].lowest:
                found.append((spec.remedy.name, number))
    return found


@torch.no_grad()
def _examine(
    text: str,
    network: nn.Module,
    run_original: Callable[[], object],
    canvas: Tensor,
    margin: int,
    labels: Tensor | None,
) -> RepairTrial:
    crops = SHIFTS.get("crop").views(canvas, margin)
    probed = crops(ORIGIN)[:PROBED]
    cyclic = SHIFTS.get("cyclic").views(probed, 0)
    logits = network(probed)
    cost = 1.0
    if text:  # in turns, since the load of the machine changes
        ratios = (_seconds(lambda: network(probed)) / _seconds(run_original) for _ in range(ROUNDS))
        cost = median(ratios)
    whole, half = (relative_change(network(cyclic(offset)), logits) for offset in (WHOLE, HALF))
    right: tuple[int, ...] = ()
    if labels is not None:
        metric = Adversarial("crop", min(margin, CROPS), "1")
        tables = predict_tables(
            network, canvas, labels.tolist(), [metric], margin=margin, batch_size=PROBED
        )
        outcomes = metric.outcomes(read_cells(tables, metric, tables.keys))
        right = tuple(int(correct.sum()) for correct in outcomes.values())
    return RepairTrial(text, reports(network), whole, half, cost, len(canvas), right)


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
