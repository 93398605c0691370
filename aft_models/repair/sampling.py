"""Handing layers a new way to sub-sample, once."""

from __future__ import annotations

import torch
from timm.layers import SpaceToDepth
from torch import nn

from aft_models.errors import AftModelsError
from aft_models.repair.context import RepairContext
from aft_models.repair.layer import (
    Repaired,
    Sampler,
    SlidingLayer,
    extend,
    sliding,
    window_of,
)
from aft_models.repair.window import Window, read_window, without_padding

# Layers that sub-sample by something else than a window.
_OTHERS = (nn.LPPool2d, nn.FractionalMaxPool2d, nn.PixelUnshuffle, SpaceToDepth, nn.Unfold)
_KNOWN = ("torch.nn.", "timm.layers.", "aft_models.layers.")


def take(patient: RepairContext, name: str, module: nn.Module) -> SlidingLayer | None:
    """The layer made ready for repair; None, with a note, where its class does more than slide."""
    if not isinstance(module, SlidingLayer) and not _is_faithful(module):
        patient.left(name, f"{type(module).__name__} does more than its window says")
        return None
    return sliding(module)


def give_sampler(patient: RepairContext, name: str, module: nn.Module, sampler: Sampler) -> bool:
    """Sets how a layer sub-samples; False, with a note, where that is not possible."""
    layer = take(patient, name, module)
    if layer is None:
        return False
    if layer.sampler is not None:
        raise AftModelsError(
            f"{name} is repaired with {layer.sampler.name} already: start from the original model"
        )
    layer.sampler = sampler
    return True


def replace_strides(patient: RepairContext, sampler: Sampler, what: str) -> None:
    """Gives every strided layer of a model a sampler, and notes what it is and what was missed."""
    for name, module in patient.layers():
        window = window_of(module)
        if window is not None and window.strided and give_sampler(patient, name, module, sampler):
            patient.changed(name, module, f"{window}: {what}")
    note_unreached(patient)


def note_unreached(patient: RepairContext) -> None:
    """Notes whatever sub-samples and is no layer with a window."""
    for name, module in patient.layers():
        if isinstance(module, _OTHERS) and not isinstance(module, Repaired):
            patient.left(name, f"{type(module).__name__} sub-samples by no window")
    patient.left_strays("sampling")


@torch.no_grad()
def _is_faithful(layer: nn.Module) -> bool:
    """Whether a layer, padded by us, does what it does by itself.

    Classes of torch and timm are known; any other is tried.
    """
    window = read_window(layer)
    if window is None:
        return False
    if type(layer).__module__.startswith(_KNOWN):
        return True
    try:
        like = next(layer.parameters(), torch.zeros(()))
        sides = [2 * e + s for e, s in zip(window.extent, window.stride, strict=True)]
        x = torch.randn(1, getattr(layer, "in_channels", 2), *sides).to(like)
        expected = layer.forward(x)
        got = without_padding(layer, window.stride).forward(_extended(x, window))
    except Exception:  # whatever it does, it is not a plain window
        return False
    return got.shape == expected.shape and torch.allclose(got, expected, rtol=1e-3, atol=1e-4)


def _extended(x: torch.Tensor, window: Window) -> torch.Tensor:
    fill = -torch.inf if window.kind == "max" else 0.0
    margins = window.reach((x.shape[2], x.shape[3]), full=False)
    return extend(x, *margins, border=window.border, fill=fill)
