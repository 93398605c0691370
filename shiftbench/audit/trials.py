"""What remedies would do to a network: what they change, how much they help, what they cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

import aft_models
from aft_models.errors import AftModelsError
from aft_models.repair import REMEDIES, RepairReport, reports, untrained
from shiftbench.audit.layers import load_batch
from shiftbench.data import load_dataset, relabeled
from shiftbench.errors import UsageError
from shiftbench.grid import Offset
from shiftbench.models import Classifier, load_model
from shiftbench.models.names import split_remedies
from shiftbench.shifts import SHIFTS

WHOLE, HALF = Offset(1.0, 1.0), Offset(0.5, 0.5)
ROUNDS = 3  # forward passes whose median CPU time is compared
PROBED = 8  # images that changes and cost are measured on, and that a forward pass takes at once


@dataclass(frozen=True)
class RepairTrial:
    """A network with some remedies, or with none."""

    remedies: str  # "" is the network as it is
    reports: tuple[RepairReport, ...] = ()  # what each remedy changed, and could not
    whole: float = 0.0  # relative change of the logits under a cyclic shift by a whole pixel
    half: float = 0.0  # and by half a pixel, on both axes
    cost: float = 1.0  # CPU time of a forward pass over that of the network as it is
    images: int = 0  # how many it was tried on
    correct: int | None = None  # how many of them it gets right, where labels were given
    refused: str = ""  # why the remedies do not apply

    @property
    def changed(self) -> int:
        """How many layers were changed."""
        return sum(len(report.changed) for report in self.reports)

    @property
    def unchanged(self) -> int:
        """How many layers, or lines of code, could not be."""
        return sum(len(report.unchanged) for report in self.reports)

    @property
    def new_parameters(self) -> int:
        """Parameters that the network did not have."""
        return sum(report.new_parameters for report in self.reports)

    @property
    def needs_finetuning(self) -> bool:
        """Whether its accuracy is not to be trusted before more training."""
        return any(report.needs_finetuning for report in self.reports)


def repair(
    model: str | Classifier,
    *,
    remedies: Sequence[str] = (),
    data: str | None = None,
    images: int = PROBED,
    checkpoint: Path | None = None,
) -> list[RepairTrial]:
    """Tries remedies on a model: which apply, what each changes, how much it helps and costs.

    To use a remedy, name it with the model (`timm:resnet50+circular+aps`) or call
    `aft_models.repair(module, ...)`.

    Args:
        model: A name as for `shiftbench run`, or a loaded model, without remedies.
        remedies: Each a text such as `aps` or `circular+aps`. Default: every remedy, and every way
            to sub-sample together with circular padding.
        data: Images to use, as for `shiftbench run`; right answers are counted too. Default: the
            images of `scenes`, without labels.
        images: How many.
        checkpoint: Weights for a model given by its name.

    Returns:
        The model as it is, then a trial per text.

    >>> plain, steady = repair("xcit_pico_6_p8.scenes", remedies=["canonical"], images=2)
    >>> steady.whole < 1e-3 < plain.whole
    True
    """
    name = model if isinstance(model, str) else model.name
    if split_remedies(name)[1]:
        raise UsageError(f"{name} has remedies already: give the model without them")
    classifier = load_model(model, checkpoint=checkpoint) if isinstance(model, str) else model
    pixels, labels = _images(classifier, data, images)
    return try_remedies(classifier.network, pixels, remedies or _all_remedies(), labels=labels)


def _all_remedies() -> list[str]:
    """Each alone, and each way to sub-sample with circular padding, where it brings none."""
    pairs = [
        f"circular+{remedy.name}"
        for remedy in REMEDIES.values()
        if remedy.group == "sampling" and "border" not in remedy.treats and not remedy.learns
    ]
    return [*REMEDIES, *pairs]


def _images(classifier: Classifier, data: str | None, count: int) -> tuple[Tensor, Tensor | None]:
    """Normalized images of the data, with labels where the user named the data."""
    dataset = load_dataset(data or "scenes", limit=count)
    if data is not None:
        dataset = relabeled(dataset, classifier.num_classes, classifier.class_names)
    pixels, labels = load_batch(classifier, dataset)
    return pixels, None if data is None else labels


def try_remedies(
    network: nn.Module,
    images: Tensor,
    remedies: Sequence[str],
    *,
    labels: Tensor | None = None,
) -> list[RepairTrial]:
    """Tries remedies on copies of a network, each on the same images; the first is the network.

    Changes and cost are of the first few images, right answers of all of them.

    Args:
        network: Takes normalized images and answers with logits, in eval mode.
        images: (B, C, H, W), normalized.
        remedies: Each a text such as `aps` or `circular+aps`.
        labels: One class per image, to count right answers.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> before, after = try_remedies(net.eval(), torch.rand(2, 3, 8, 8), ["circular+aps"])
    >>> after.whole < 1e-5 < before.whole
    True
    """
    trials = [_examine("", network, network, images, labels)]
    for text in remedies:
        try:
            repaired = aft_models.repair(network, *text.split("+"), image=images[:1])
        except AftModelsError as error:
            trials.append(RepairTrial(text, refused=str(error)))
            continue
        trials.append(_examine(text, repaired.eval(), network, images, labels))
    return trials


@torch.no_grad()
def _examine(
    text: str, network: nn.Module, original: nn.Module, images: Tensor, labels: Tensor | None
) -> RepairTrial:
    probed = images[:PROBED]
    views = SHIFTS.get("cyclic").views(probed, 0)
    logits = network(probed)
    cost = 1.0
    if network is not original:  # in turns, since a busy machine is not equally busy all the time
        cost = median(_seconds(network, probed) / _seconds(original, probed) for _ in range(ROUNDS))
    whole, half = (relative_change(network(views(offset)), logits) for offset in (WHOLE, HALF))
    correct = None
    if labels is not None and not untrained(network):
        rest = range(PROBED, len(images), PROBED)
        answers = [logits, *(network(images[i : i + PROBED]) for i in rest)]
        correct = int((torch.cat(answers).argmax(1) == labels).sum())
    return RepairTrial(text, reports(network), whole, half, cost, len(images), correct)


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


def _seconds(network: nn.Module, images: Tensor) -> float:
    """CPU time of a forward pass."""
    began = time.process_time()
    network(images)
    return time.process_time() - began
