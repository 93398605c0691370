"""What remedies would do to a network: what they change, how still it holds, what it costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

import aft_models
from aft_models.errors import AftModelsError
from aft_models.repair import RepairReport, reports, untrained
from shiftbench.grid import Offset
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
    correct: int | None = None  # images it gets right, where labels were given
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
    found = [_examine("", network, network, images, labels)]
    for text in remedies:
        try:
            repaired = aft_models.repair(network, *text.split("+"), image=images[:1])
        except AftModelsError as error:
            found.append(RepairTrial(text, refused=str(error)))
            continue
        found.append(_examine(text, repaired.eval(), network, images, labels))
    return found


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
    size = logits.norm().clamp(min=1e-12)
    whole, half = (float((network(views(o)) - logits).norm() / size) for o in (WHOLE, HALF))
    right = None
    if labels is not None and not untrained(network):
        rest = range(PROBED, len(images), PROBED)
        answers = [logits, *(network(images[i : i + PROBED]) for i in rest)]
        right = int((torch.cat(answers).argmax(1) == labels).sum())
    return RepairTrial(text, reports(network), whole, half, cost, right)


def _seconds(network: nn.Module, images: Tensor) -> float:
    """CPU time of a forward pass."""
    began = time.process_time()
    network(images)
    return time.process_time() - began
