"""What remedies would do to a network: what they change, how much they help, what they cost."""

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
from aft_models.remedies import REMEDIES
from aft_models.remedies.context import RepairReport
from aft_models.remedies.repair import reports
from shiftbench.audit.layers import load_batch
from shiftbench.data import load_dataset, relabeled
from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Grid, Offset
from shiftbench.metrics.search import search, survives
from shiftbench.models import Model, load_model
from shiftbench.shifts import SHIFTS
from shiftbench.statistics import Score, wilson

WHOLE, HALF = Offset(1.0, 1.0), Offset(0.5, 0.5)
ROUNDS = 3  # forward passes whose median CPU time is compared
PROBED = 8  # images that changes and cost are measured on, and that a forward pass takes at once
CROPS = 2  # how far the camera moves, in whole pixels
MARGIN = 32  # largest margin in pixels that remedies and crops may use


@dataclass(frozen=True)
class RepairTrial:
    """A network with some remedies, or with none.

    >>> [score.text() for score in RepairTrial("aps", images=8, right=(8, 6)).scores]
    ['100.0', '75.0']
    """

    remedies: str  # "" is the network as it is
    reports: tuple[RepairReport, ...] = ()  # what each remedy changed, and could not
    whole: float = 0.0  # relative change of the logits under a cyclic shift by a whole pixel
    half: float = 0.0  # and by half a pixel, on both axes
    cost: float = 1.0  # CPU time of a forward pass over that of the network as it is
    images: int = 0  # how many it was tried on
    right: tuple[int, ...] = ()  # how many are right at every crop up to 0, 1 and 2 px
    refused: str = ""  # why the remedies do not apply

    @property
    def scores(self) -> tuple[Score, ...]:
        """Right answers under crops of up to 0, 1 and 2 px; fewer, or none, where not measured."""
        return tuple(wilson(count, self.images) for count in self.right)

    @property
    def changed(self) -> int:
        """How many layers were changed."""
        return sum(len(report.changed) for report in self.reports)

    @property
    def unchanged(self) -> int:
        """How many layers, or lines of code, could not be."""
        return sum(len(report.unchanged) for report in self.reports)

    @property
    def needs_finetuning(self) -> bool:
        """Whether its accuracy is not to be trusted before more training."""
        return any(report.needs_finetuning for report in self.reports)


def repair(
    model: str | Model,
    *,
    remedies: Sequence[str] = (),
    data: str | None = None,
    images: int = PROBED,
    checkpoint: Path | None = None,
) -> list[RepairTrial]:
    """Tries remedies on a model: which apply, what each changes, how much it helps and costs.

    To use a remedy, name it with the model (`timm:resnet50+circular+aps`) or call
    `aft_models.repair(module, "circular+aps")`.

    Args:
        model: A name as for `shiftbench run`, or a loaded model, without remedies.
        remedies: Each a text such as `aps` or `circular+aps`. Default: every remedy, and every way
            to sub-sample together with circular padding.
        data: Images to use, as for `shiftbench run`; right answers are counted too, clean and under
            crops by up to 2 px. Default: the images of `scenes`, without labels.
        images: How many.
        checkpoint: Weights for a model given by its name.

    Returns:
        The model as it is, then a trial per text.

    >>> original, repaired = repair("xcit_pico_6_p8.scenes", remedies=["canonical"], images=2)
    >>> repaired.whole < 1e-3 < original.whole
    True
    """
    classifier = load_model(model, checkpoint=checkpoint) if isinstance(model, str) else model
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
        remedies or _all_remedies(),
        margin=margin,
        labels=None if data is None else labels,
    )


def _all_remedies() -> list[str]:
    """Each alone, and each way to sub-sample with circular padding, where it brings none."""
    pairs = [
        f"circular+{remedy.name}"
        for remedy in REMEDIES.values()
        if remedy.group == "sampling" and "border" not in remedy.treats
    ]
    return [*REMEDIES, *pairs]


def try_remedies(
    network: nn.Module,
    canvas: Tensor,
    remedies: Sequence[str],
    *,
    margin: int = 0,
    labels: Tensor | None = None,
) -> list[RepairTrial]:
    """Tries remedies on copies of a network in eval mode; the first trial is of the network itself.

    All see the same normalized canvas, (B, C, H, W), with `margin` pixels on each side beyond what
    the network sees. Changes and cost are of the first few images; right answers are counted of
    all, where there are labels.

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
            refused = f"needs a margin of {needed} pixels around the view, got {margin}"
        if refused:
            trials.append(RepairTrial(text, refused=refused))
        else:
            left = margin - needed
            trials.append(_examine(text, repaired, lambda: network(first), canvas, left, labels))
    return trials


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
    if text:  # in turns, since a busy machine is not equally busy all the time
        ratios = (_seconds(lambda: network(probed)) / _seconds(run_original) for _ in range(ROUNDS))
        cost = median(ratios)
    whole, half = (relative_change(network(cyclic(offset)), logits) for offset in (WHOLE, HALF))
    right: tuple[int, ...] = ()
    if labels is not None:
        grid = Grid(min(margin, CROPS))
        trace = search(network, crops, labels, grid, batch_size=PROBED)
        right = tuple(int(survives(trace.broken_radius, s).sum()) for s in range(grid.radius + 1))
    return RepairTrial(text, reports(network), whole, half, cost, len(canvas), right)


def relative_change(logits: Tensor, before: Tensor) -> float:
    """How far logits (B, classes) moved, relative to their size.

    What all classes have in common changes no answer, so it is taken away first.

    >>> before = torch.tensor([[3.0, 1.0]])
    >>> relative_change(torch.tensor([[2.0, 2.0]]), before)
    1.0
    >>> relative_change(before + 100, before)
    0.0
    """
    before, after = (x - x.mean(1, keepdim=True) for x in (before, logits))
    return float((after - before).norm() / before.norm().clamp(min=1e-12))


def _seconds(run: Callable[[], object]) -> float:
    """CPU time of a forward pass."""
    began = time.process_time()
    run()
    return time.process_time() - began
