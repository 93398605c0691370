"""Handing layers a new way to sub-sample, once."""

from __future__ import annotations

import copy

import torch
from timm.layers import SpaceToDepth
from torch import nn

from aft_models.errors import AftModelsError
from aft_models.repair.context import RepairContext
from aft_models.repair.layer import Repaired, Sampler, SlidingLayer, sliding, window_of

# Layers that resample by something else than a window.
_OTHERS = (nn.LPPool2d, nn.FractionalMaxPool2d, nn.PixelUnshuffle, SpaceToDepth, nn.Unfold)
_KNOWN = ("torch.nn.", "timm.layers.", "aft_models.layers.")


def take(context: RepairContext, name: str, module: nn.Module) -> SlidingLayer | None:
    """The layer made ready for repair; None, with a note, where its class does more than slide."""
    if not isinstance(module, SlidingLayer) and not _is_faithful(module):
        context.left(name, f"{type(module).__name__} does more than its window says")
        return None
    return sliding(module)


def give_sampler(context: RepairContext, name: str, module: nn.Module, sampler: Sampler) -> bool:
    """Sets how a layer sub-samples; False, with a note, where that is not possible."""
    layer = take(context, name, module)
    if layer is None:
        return False
    if layer.sampler is not None:
        raise AftModelsError(
            f"{name} is repaired with {layer.sampler.name} already: start from the original model"
        )
    layer.sampler = sampler
    return True


def replace_strides(context: RepairContext, sampler: Sampler, what: str) -> None:
    """Gives every strided layer of a model a sampler, and notes what it is and what was missed."""
    for name, module in context.layers():
        window = window_of(module)
        if window is not None and window.strided and give_sampler(context, name, module, sampler):
            context.changed(name, module, f"{window}: {what}")
    note_unreached(context)


def note_unreached(context: RepairContext) -> None:
    """Notes whatever resamples and is no layer with a window."""
    for name, module in context.layers():
        if isinstance(module, _OTHERS) and not isinstance(module, Repaired):
            context.left(name, f"{type(module).__name__} sub-samples by no window")
        elif isinstance(module, nn.ConvTranspose2d) and max(module.stride) > 1:
            context.left(name, "ConvTranspose2d up-samples from a fixed grid")
    context.left_functional("sampling")


@torch.no_grad()
def _is_faithful(layer: nn.Module) -> bool:
    """Whether a layer, padded by us, does what it does by itself.

    Classes of torch and timm are known; any other is tried.
    """
    if type(layer).__module__.startswith(_KNOWN):
        return True
    try:
        ours = sliding(copy.deepcopy(layer))
        assert ours is not None
        like = next(layer.parameters(), torch.zeros(()))
        sides = [2 * e + s for e, s in zip(ours.window.extent, ours.window.stride, strict=True)]
        x = torch.randn(1, getattr(layer, "in_channels", 2), *sides).to(like)
        expected, got = layer.forward(x), ours.forward(x)
    except Exception:  # whatever it does, it is not a plain window
        return False
    return got.shape == expected.shape and torch.allclose(got, expected, rtol=1e-3, atol=1e-4)
