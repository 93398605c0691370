"""Remedies against shifts for any network; its weights keep their names.

>>> from torch import nn
>>> import aft_models
>>> net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d(1))
>>> steady = aft_models.repair(net, "circular", "aps")
>>> [report.remedy for report in reports(steady)]
['circular', 'aps']
"""

from __future__ import annotations

import copy
from importlib import import_module
from pkgutil import iter_modules

import torch.nn.functional as F
from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.repair.context import Change, Obstacle, RepairContext, RepairReport, network_input
from aft_models.repair.phases import ForwardPass, own_pass
from aft_models.repair.polyphase import untrained
from aft_models.repair.remedy import (
    GROUPS,
    REMEDIES,
    Number,
    Remedy,
    RemedySpec,
    in_order,
    parse,
    register,
)
from aft_models.repair.survey import default_image, survey
from aft_models.repair.window import map_size

__all__ = [
    "GROUPS",
    "REMEDIES",
    "Change",
    "Number",
    "Obstacle",
    "Remedy",
    "RemedySpec",
    "RepairContext",
    "RepairReport",
    "network_input",
    "own_pass",
    "parse",
    "register",
    "repair",
    "reports",
    "untrained",
    "view_margin",
]

_REPORTS = "_repair_reports"

for _module in iter_modules(__path__):  # one remedy per file, which registers itself
    import_module(f"{__name__}.{_module.name}")


def repair(model: nn.Module, *remedies: str, image: Tensor | None = None) -> nn.Module:
    """A copy of a model with remedies applied; the model itself is left as it is.

    Args:
        model: any network that takes images ``(B, C, H, W)``.
        remedies: names, some with a number: ``"circular"``, ``"blurpool:3"``.
        image: something the model takes, to see once what its forward pass does; by default an
            image of the size that the model's configuration names, else of 224 pixels a side.

    Raises:
        AftModelsError: An unknown remedy, two that contradict each other, one that the model has
            had already, or one that finds nothing to change.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d(1))
    >>> repair(net, "blurpool:3")[0].sampler.name
    'blurpool:3'
    """
    if not remedies:
        raise AftModelsError(f"no remedy given: choose from {', '.join(REMEDIES)}")
    specs = parse("+".join(remedies))
    done = reports(model)
    in_order([*(spec for report in done for spec in parse(report.remedy)), *specs])
    repaired = copy.deepcopy(model)
    if image is None:
        image = _widened(default_image(repaired), view_margin(model))
    seen = survey(repaired, image)
    forward_pass = ForwardPass()
    written = [*done]
    for spec in specs:
        context = RepairContext(repaired, seen, forward_pass, map_size(image))
        if seen.failure:
            why = f"unseen, since the model does not take an image of shape {tuple(image.shape)}"
            context.left("the model's own code", f"{why}: pass image=...")
        written.append(spec.apply(context))
    image = _widened(image, sum(report.view_margin for report in written[len(done) :]))
    trouble = None if seen.failure else survey(repaired, image).failure
    if trouble is not None:
        places = dict.fromkeys(f"{o.why} ({o.where})" for r in written for o in r.unchanged)
        beyond = f", since no remedy reaches {'; '.join(places)}" if places else ""
        raise AftModelsError(
            f"{'+'.join(map(str, specs))} does not fit {type(model).__name__}: repaired, it does "
            f"not run on an image of shape {tuple(image.shape)} any more{beyond} [{trouble}]"
        )
    setattr(repaired, _REPORTS, tuple(written))
    return repaired


def _widened(image: Tensor, margin: int) -> Tensor:
    return F.pad(image, (margin,) * 4, mode="replicate") if margin else image


def view_margin(model: nn.Module) -> int:
    """Pixels that a repaired model takes on each side beyond what its network itself sees.

    >>> view_margin(repair(nn.Sequential(nn.Conv2d(3, 8, 3, stride=2)), "select:4"))
    4
    """
    return sum(report.view_margin for report in reports(model))


def reports(model: nn.Module) -> tuple[RepairReport, ...]:
    """What each remedy did to a repaired model; nothing for any other model."""
    written: tuple[RepairReport, ...] = getattr(model, _REPORTS, ())
    return written
