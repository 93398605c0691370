"""Surgery on other people's networks: remedies against shifts, weights kept under their names.

>>> from torch import nn
>>> import aft_models
>>> net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d(1))
>>> steady = aft_models.repair(net, "circular", "aps")
>>> [report.remedy for report in reports(steady)]
['circular', 'aps']
"""

from __future__ import annotations

import copy

from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.repair.af import AF
from aft_models.repair.anchor import ANCHOR
from aft_models.repair.aps import APS
from aft_models.repair.blurpool import BLURPOOL
from aft_models.repair.canonical import CANONICAL
from aft_models.repair.circular import CIRCULAR
from aft_models.repair.context import Change, Obstacle, RepairContext, RepairReport
from aft_models.repair.flc import FLC
from aft_models.repair.lps import LPS
from aft_models.repair.phases import ForwardPass, own_pass
from aft_models.repair.remedy import (
    REMEDIES,
    Number,
    Remedy,
    RemedySpec,
    in_order,
    parse,
    register,
)
from aft_models.repair.scorer import untrained
from aft_models.repair.survey import default_image, still_runs, survey
from aft_models.repair.tips import TIPS
from aft_models.repair.vote import VOTE

__all__ = [
    "REMEDIES",
    "Change",
    "Number",
    "Obstacle",
    "Remedy",
    "RemedySpec",
    "RepairContext",
    "RepairReport",
    "own_pass",
    "parse",
    "register",
    "repair",
    "reports",
    "untrained",
]

_REPORTS = "_repair_reports"

for _remedy in (CIRCULAR, BLURPOOL, FLC, APS, LPS, TIPS, AF, ANCHOR, CANONICAL, VOTE):
    register(_remedy)


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
    prescriptions = parse("+".join(remedies))
    done = reports(model)
    in_order([*(p for report in done for p in parse(report.remedy)), *prescriptions])
    repaired = copy.deepcopy(model)
    image = default_image(repaired) if image is None else image
    seen = survey(repaired, image)
    forward_pass = ForwardPass()
    written = [*done]
    for prescription in prescriptions:
        patient = RepairContext(repaired, seen, forward_pass)
        if not seen.ran:
            patient.left_unseen(tuple(image.shape))
        written.append(prescription.apply(patient))
    trouble = still_runs(repaired, image) if seen.ran else None
    if trouble is not None:
        given = "+".join(map(str, prescriptions))
        places = dict.fromkeys(f"{o.why} ({o.where})" for r in written for o in r.unchanged)
        beyond = f", since no remedy reaches {'; '.join(places)}" if places else ""
        raise AftModelsError(
            f"{given} does not fit {type(model).__name__}: repaired, it does not run on an image "
            f"of shape {tuple(image.shape)} any more{beyond} [{trouble}]"
        )
    setattr(repaired, _REPORTS, tuple(written))
    return repaired


def reports(model: nn.Module) -> tuple[RepairReport, ...]:
    """What each remedy did to a repaired model; nothing for any other model."""
    found: tuple[RepairReport, ...] = getattr(model, _REPORTS, ())
    return found
