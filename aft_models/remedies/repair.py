"""`repair`: a copy of any network or callable with remedies applied.

>>> from torch import nn
>>> import aft_models
>>> net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d(1))
>>> repaired = aft_models.repair(net, "circular+aps")
>>> [report.remedy for report in reports(repaired)]
['circular', 'aps']
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.preprocessing import Preprocessing
from aft_models.remedies import REMEDIES, RemedySpec, in_order, join_remedies, parse_remedies
from aft_models.remedies.context import Change, RepairContext, RepairReport
from aft_models.remedies.inputs import ShownNetwork, build_inputs
from aft_models.remedies.phases import ForwardPass
from aft_models.remedies.survey import default_image, default_size, survey
from aft_models.remedies.window import map_size

_REPORTS = "_repair_reports"


def repair(
    model: Callable[[Tensor], Any],
    remedies: str,
    *,
    input_size: int | None = None,
    preprocessing: Preprocessing | None = None,
) -> nn.Module:
    """Return a copy of a model with remedies applied; the model itself does not change.

    Args:
        model: A network that takes images (B, C, H, W). Input remedies take any callable.
        remedies: Names joined by ``+``, some with numbers: ``"circular+blurpool:3"``.
        input_size: Side of the images that the network takes, in pixels. Default: the size in the
            model's configuration, else 224. Remedies with a margin accept no other size.
        preprocessing: Mean, std and interpolation of the model, which some input remedies use.
            Default: those of the model's configuration, else ImageNet's and bicubic.

    Raises:
        AftModelsError: A remedy is unknown, contradicts another one, was applied before, does not
            fit the model or finds nothing to change.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d(1))
    >>> repair(net, "blurpool:3")[0].sampler.name
    'blurpool:3'
    """
    specs = parse_remedies(remedies)
    if not specs:
        raise AftModelsError(f"no remedy given. Choose from {', '.join(REMEDIES)}")
    before = [spec for report in reports(model) for spec in parse_remedies(report.remedy)]
    every = in_order([*before, *specs])
    layers = [spec for spec in specs if not spec.remedy.input]
    network: Any = model.network if type(model) is ShownNetwork else model  # not a subclass
    written = dict(zip(map(str, before), reports(model), strict=True))
    if isinstance(network, nn.Module):
        network = copy.deepcopy(network)
    if layers:
        written |= {r.remedy: r for r in _repair_checked(network, layers, input_size)}
    bound = model.network_size if isinstance(model, ShownNetwork) else None
    size = input_size or bound or default_size(network)
    facts = preprocessing or Preprocessing.of(network)
    inputs = build_inputs(every, replace(facts, size=size, margin=0, scale=1))
    for spec, remedy in zip((s for s in every if s.remedy.input), inputs, strict=True):
        change = Change("", type(network).__name__, spec.remedy.summary)
        written[str(spec)] = RepairReport(
            str(spec),
            (change,),
            margin=remedy.margin,
            scale=remedy.scale,
            needs_finetuning=spec.remedy.needs_finetuning,
        )
    repaired: nn.Module = ShownNetwork(network, inputs, size=size) if inputs else network
    if isinstance(network, nn.Module):
        repaired.training = network.training
    setattr(repaired, _REPORTS, tuple(written[str(spec)] for spec in every))
    return repaired


def _repair_checked(
    network: Any, specs: Sequence[RemedySpec], input_size: int | None
) -> tuple[RepairReport, ...]:
    """Apply layer remedies and run the network once more."""
    require_layers(network, specs)
    image = default_image(network, input_size)
    written, failure = repair_layers(network, specs, image)
    if failure is None and (failure := survey(network, image).failure):
        raise AftModelsError(misfit_message(network, specs, written, image, failure))
    return written


def require_layers(network: object, specs: Sequence[RemedySpec]) -> None:
    """Raise AftModelsError if the network has no layers that remedies can change."""
    parts = [*network.children(), *network.parameters()] if isinstance(network, nn.Module) else []
    if not parts:
        raise AftModelsError(
            f"{join_remedies(specs)} needs the layers of a PyTorch network, got a "
            f"{type(network).__name__} without any. Use input remedies"
        )


def repair_layers(
    network: nn.Module, specs: Sequence[RemedySpec], image: Tensor
) -> tuple[tuple[RepairReport, ...], str | None]:
    """Apply layer remedies in place. One forward pass lists the layers.

    Args:
        network: The network to change.
        specs: Layer remedies, in the order of application.
        image: An image (1, C, H, W) that the network takes.

    Returns:
        The reports, and the reason if the network does not take the image.
    """
    seen, forward_pass, written = survey(network, image), ForwardPass(), []
    for spec in specs:
        context = RepairContext(network, seen, forward_pass, map_size(image))
        if seen.failure:
            context.left(
                "the model's own code",
                f"not listed, since the model does not take an image of shape "
                f"{tuple(image.shape)}: pass input_size=...",
            )
        spec.remedy.load()(context, *spec.numbers)
        if not context.changes:
            reasons = [f"{o.where}: {o.why}" for o in context.obstacles[:3]]
            missed = f". It cannot change {'; '.join(reasons)}" if reasons else ""
            raise AftModelsError(
                f"{spec} finds nothing to change in {type(network).__name__}{missed}. Leave it out"
            )
        written.append(
            RepairReport(
                str(spec),
                tuple(context.changes),
                tuple(context.obstacles),
                needs_finetuning=spec.remedy.needs_finetuning,
            )
        )
    setattr(network, _REPORTS, (*reports(network), *written))
    return tuple(written), seen.failure


def misfit_message(
    network: nn.Module,
    specs: Sequence[RemedySpec],
    written: Sequence[RepairReport],
    image: Tensor,
    failure: str,
) -> str:
    """Return the error message for a network that does not run after its repair."""
    places = dict.fromkeys(f"{o.why} ({o.where})" for r in written for o in r.unchanged)
    beyond = f", since no remedy changes {'; '.join(places)}" if places else ""
    return (
        f"{join_remedies(specs)} does not fit {type(network).__name__}: repaired, it does not run "
        f"on an image of shape {tuple(image.shape)} any more{beyond} [{failure}]"
    )


def reports(model: object) -> tuple[RepairReport, ...]:
    """Return a report per remedy of a repaired model; none for any other model."""
    written: tuple[RepairReport, ...] = getattr(model, _REPORTS, ())
    return written
