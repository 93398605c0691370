"""Shift-equivariance error of every layer of a model, and its cause.

A layer f is shift-equivariant when f(shift(x)) = shift(f(x)), with the shift of its output scaled
to the stride of the feature map. Per layer:

- `own`: relative L2 error of the layer alone (layer error). The input of the layer is shifted
  exactly, and the output is compared with the exactly shifted output for the clean image. Errors of
  preceding layers do not count.
- `accumulated`: relative L2 error of the path (cumulative error). The *image* is shifted, and the
  layer's output is compared with the exactly shifted output for the clean image.
- `eq_t`: the same as `accumulated` in decibels, 20 log10(I) - 10 log10(MSE), where I is the
  peak-to-peak range of the layer's output: with the output scaled to [-1, 1], I = 2.

All shifts are the cyclic, band-limited ones of the protocol, on every feature-map grid. The module
`tracer` derives the positions of all tensors from the pixels. Only numbers that affect the logits
count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.preprocessing import normalize
from shiftbench.auditing.calls import Key, tensors_in, watch, with_tensors
from shiftbench.auditing.causes import NEGLIGIBLE, Split, find_cause, frame_width, split
from shiftbench.auditing.lattice import CYCLIC, Layout
from shiftbench.auditing.report import UNCALLED, UNKNOWN, UNREACHED, Audit, LayerReport, eq_t
from shiftbench.auditing.tracer import Tracer
from shiftbench.data import ImageSet, RenderedSet, canvas_batches, load_dataset
from shiftbench.errors import DataError, ModelError, UsageError
from shiftbench.geometry import geometry_for
from shiftbench.grid import Offset
from shiftbench.models import Model, load_model

DEFAULT_OFFSETS = (Offset(1, 0), Offset(0, 1), Offset(0.5, 0.5))


def audit(
    model: str | nn.Module,
    data: str | ImageSet | Tensor = "scenes",
    *,
    images: int = 8,
    checkpoint: Path | None = None,
    strip_prefix: str | None = None,
    offsets: Sequence[Offset] = DEFAULT_OFFSETS,
) -> Audit:
    """Measure every layer of a model.

    Args:
        model: A name as for `shiftbench run`, or a network in eval mode.
        data: A name as for `shiftbench run`, images, or a normalized batch (B, C, H, W); a network
            object needs a batch.
        images: Number of images, if `data` is a name.
        checkpoint: Weights for a model given by its name.
        strip_prefix: Part of the checkpoint's keys to remove.
        offsets: Shifts in pixels of the image.

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    >>> [layer.cause for layer in audit(model.eval(), torch.rand(2, 3, 16, 16)).layers]
    ['border', 'non-linearity', None, None]
    """
    if isinstance(model, nn.Module) and not isinstance(model, Model):
        if not isinstance(data, Tensor):
            raise UsageError("a network needs a normalized batch (B, C, H, W): pass it as data")
        return Audit(tuple(_audit(model, data, offsets)))
    dataset = load_dataset(data, limit=images) if isinstance(data, str) else data
    names = () if isinstance(dataset, Tensor) else dataset.class_names
    if not isinstance(model, Model):
        model = load_model(
            model, checkpoint=checkpoint, strip_prefix=strip_prefix, class_names=names
        )
    _require_layers(model)
    pixels = dataset if isinstance(dataset, Tensor) else load_batch(model, dataset)[0]
    # A model contains the network as `network`, which is no part of the names of its layers.
    layers = [
        replace(layer, name=layer.name.removeprefix("network."), depth=max(0, layer.depth - 1))
        for layer in _audit(model, pixels, offsets)
        if layer.name != "network"
    ]
    return Audit(tuple(layers))


def _require_layers(model: Model) -> None:
    """Raise UsageError if a network has no layers that can be observed."""
    network = model.network
    if isinstance(network, torch.jit.ScriptModule):
        kind = "a TorchScript archive has"
    elif isinstance(network, nn.Module) and any(True for _ in network.children()):
        return
    else:
        kind = {"onnx": "ONNX files have"}.get(model.source.lower(), "its network has")
    raise UsageError(
        f"cannot audit {model.name}: {kind} no layers to audit. Audit the PyTorch network with "
        "timm:, tv:, hf: or FILE.py"
    )


def load_batch(
    model: Model, dataset: ImageSet, margin: int = 0, *, scale: int = 1
) -> tuple[Tensor, Tensor]:
    """Load all images of a small data set.

    Args:
        model: The model whose preprocessing applies.
        dataset: The images.
        margin: Largest margin around the view in network pixels; smaller where the images end.
        scale: Camera pixels per network pixel.

    Returns:
        Normalized images (B, C, H, W) and their labels.
    """
    recipe, rendered = model.preprocessing, isinstance(dataset, RenderedSet)
    finished = dataset.has_size(recipe.size)
    geometry = geometry_for(recipe, finished=finished, rendered=rendered, scale=scale)
    spare = margin if rendered else min(margin, (geometry.resize - geometry.view) // (2 * scale))
    geometry = replace(geometry, margin=scale * max(spare, 0))
    batch = next(canvas_batches(dataset, geometry, batch_size=len(dataset), workers=0))
    return normalize(batch.canvas, recipe.mean, recipe.std), batch.labels


def _audit(model: nn.Module, images: Tensor, offsets: Sequence[Offset]) -> list[LayerReport]:
    if images.ndim != 4 or images.shape[0] == 0:
        raise DataError(
            f"an audit needs images of shape (B, C, H, W) with B > 0, got {tuple(images.shape)}"
        )
    if model.training:
        raise ModelError("an audit needs a model in eval mode: call model.eval() first")
    with torch.inference_mode():
        calls = _locate(model, images)
    _find_reached(model, images, calls)
    with torch.inference_mode():
        _measure_alone(model, images, calls, offsets)
        for offset in offsets:
            _measure_path(model, images, calls, offset)
        reports = [_report(key, call) for key, call in calls.items() if call.output is not None]
    return [*reports[:-1], *_uncalled(model, calls), reports[-1]]


@dataclass
class _Call:
    """State of one call of a layer."""

    module: nn.Module
    inputs: list[Layout | None]  # of every tensor among the arguments
    layout: Layout | None  # of the output
    # True if the numbers of the output with a position on the image, and those without, affect the
    # logits.
    reached: tuple[bool, bool] = (True, True)
    output: Tensor | None = None  # for the clean image
    own: Split | None = None
    cause: str | None = None
    path: list[tuple[float, float]] = field(default_factory=list)  # relative and mean squared error

    @property
    def is_measurable(self) -> bool:
        """True if the positions of the output are known, and the output affects the logits."""
        return self.layout is not None and any(self.reached)

    def counted(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of an output that affect the logits: maps, and others."""
        assert self.layout is not None
        maps, unplaced = self.layout.parts(x)
        nothing = x.new_zeros(0)
        return maps if self.reached[0] else nothing, unplaced if self.reached[1] else nothing

    def flat(self, x: Tensor) -> Tensor:
        """Return the numbers of an output that affect the logits as one vector."""
        return torch.cat([part.flatten() for part in self.counted(x)])


def _locate(model: nn.Module, images: Tensor) -> dict[Key, _Call]:
    """Trace the positions of every argument and every output on the image."""
    batch, size = len(images), (images.shape[2], images.shape[3])
    calls: dict[Key, _Call] = {}
    tracer = Tracer(images)

    def layout_of(x: Tensor) -> Layout | None:
        return Layout.of(tracer.get(x), batch, size)

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = tensors_in([args, kwargs])
        return inputs, [layout_of(x) for x in inputs]

    def after(key: Key, module: nn.Module, given: Any, output: Tensor) -> None:
        inputs, layouts = given
        if inputs and _is_leaf(module):
            tracer.carry_over(inputs[0], output)
        layout = layout_of(output)
        if layout is None and key[0] == "":
            layout = Layout(batch, size, ())  # logits have no position
        calls[key] = _Call(module, layouts, layout)

    with watch(model, after, before), tracer:
        model(images)
    return calls


def _find_reached(model: nn.Module, images: Tensor, calls: Mapping[Key, _Call]) -> None:
    """Determine by gradients which numbers of every output affect the logits."""

    def after(key: Key, module: nn.Module, given: None, output: Tensor) -> None:
        call = calls.get(key)
        if call is None or call.layout is None or not output.requires_grad:
            return
        call.reached, layout = (False, False), call.layout

        def keep(gradient: Tensor) -> None:
            placed, unplaced = (bool(part.any()) for part in layout.parts(gradient != 0))
            call.reached = (call.reached[0] or placed, call.reached[1] or unplaced)

        output.register_hook(keep)  # type: ignore[no-untyped-call]

    generator = torch.Generator().manual_seed(0)

    def noise(x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=generator).to(x)

    # Weights that are all zero, for example of a block's last norm before training, would hide the
    # layers before them.
    zeros = {name: noise(p) for name, p in model.named_parameters() if not p.any()}
    try:
        with torch.enable_grad(), watch(model, after):
            pixels = images.clone().requires_grad_()
            logits = torch.func.functional_call(model, zeros, (pixels,))
            torch.autograd.grad((logits * noise(logits)).sum(), pixels)
    except RuntimeError:  # not differentiable; other errors of the model are raised later too
        for call in calls.values():
            call.reached = (True, True)


def _measure_alone(
    model: nn.Module, images: Tensor, calls: dict[Key, _Call], offsets: Sequence[Offset]
) -> None:
    """Run the clean image, store every output, and measure the error of every layer alone."""

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        copies = iter([x.clone() for x in tensors_in([args, kwargs])])
        return with_tensors([list(args), kwargs], copies)  # a layer may write over its arguments

    def after(key: Key, module: nn.Module, given: Any, output: Tensor) -> None:
        call = calls.get(key)
        if call is None:
            return
        call.output = output.clone()
        layouts = [layout for layout in call.inputs if layout is not None]
        if not call.is_measurable or not layouts or len(layouts) < len(call.inputs):
            return

        def error(offset: Offset) -> Split:
            assert call.layout is not None
            pairs = zip(layouts, tensors_in(given), strict=True)
            args, kwargs = with_tensors(given, iter([lay.shift(x, offset) for lay, x in pairs]))
            shifted = tensors_in(module(*args, **kwargs))[0]
            return _split(call, shifted, call.layout.shift(output, offset))

        call.own = Split.mean([error(offset) for offset in offsets])
        if call.own.total > NEGLIGIBLE and _has_own_cause(key, calls):
            whole, step = _steps(call)
            at_whole = error(whole)
            at_step = at_whole if step == whole else error(step)
            call.cause, call.own = find_cause(call.own, at_whole, at_step)

    with watch(model, after, before):
        model(images)


def _split(call: _Call, shifted: Tensor, expected: Tensor) -> Split:
    """Compute the relative error of an output, split into border and interior if it is a map."""
    maps, unplaced = call.counted(shifted - expected)
    reference = float(call.flat(expected).square().sum()) or torch.finfo(expected.dtype).tiny
    width = frame_width(call.module, maps.shape[2:])
    return split(maps, float(unplaced.square().sum()), reference, width)


def _has_own_cause(key: Key, calls: Mapping[Key, _Call]) -> bool:
    """Return True if a layer's error exceeds the errors of the layers inside it."""
    name, call = key[0], calls[key]
    if not name or _is_leaf(call.module):
        return bool(name)
    inside = [
        other.own.total
        for (inner, _), other in calls.items()
        if inner.startswith(f"{name}.") and other.own is not None and other.cause is not None
    ]
    return call.own is not None and call.own.total > 2 * math.hypot(*inside)


def _steps(call: _Call) -> tuple[Offset, Offset]:
    """Return an integer step of the coarsest grid of a call, and one of the input grid."""
    assert call.layout is not None
    (rows, columns), sizes = call.layout.image, [x.size for x in call.inputs if x and x.size]
    source = sizes[0] if sizes else (rows, columns)
    coarsest = min([*sizes, call.layout.size or source])
    whole, step = (Offset(rows / size[0], columns / size[1]) for size in (coarsest, source))
    return whole, step


def _measure_path(
    model: nn.Module, images: Tensor, calls: dict[Key, _Call], offset: Offset
) -> None:
    """Run the shifted image and measure the cumulative error of every layer."""

    def after(key: Key, module: nn.Module, given: None, output: Tensor) -> None:
        call = calls.get(key)
        if call is None or call.output is None or not call.is_measurable:
            return
        if call.output.shape != output.shape:
            return
        assert call.layout is not None
        expected = call.layout.shift(call.output, offset)
        if not key[0] and output.ndim == 2:  # logits: a constant added to all classes has no effect
            expected, output = (x - x.mean(1, keepdim=True) for x in (expected, output))
        error = call.flat(output) - call.flat(expected)
        norm = float(call.flat(expected).norm()) or torch.finfo(error.dtype).tiny
        call.path.append((float(error.norm()) / norm, float(error.square().mean())))

    with watch(model, after):
        model(CYCLIC.views(images, 0)(offset))


def _report(key: Key, call: _Call) -> LayerReport:
    name, number = key
    assert call.output is not None
    own = call.own if call.path else None
    blamed = own if call.cause is not None else None
    accumulated = decibels = None
    if call.path:
        errors, squares = zip(*call.path, strict=True)
        counted = call.flat(call.output)
        accumulated = math.hypot(*errors) / math.sqrt(len(errors))
        decibels = eq_t(float(counted.max() - counted.min()), sum(squares) / len(squares))
    return LayerReport(
        name=name if number == 1 else f"{name} ({number})",
        kind=type(call.module).__name__,
        depth=_depth(name),
        leaf=_is_leaf(call.module),
        shape=tuple(call.output.shape[1:]),
        lattice=call.layout.size if call.layout is not None and call.reached[0] else None,
        own=own.total if own else None,
        border=blamed.border if blamed else None,
        interior=blamed.interior if blamed else None,
        cause=call.cause if own else None,
        accumulated=accumulated,
        eq_t=decibels,
        note=None if own else UNKNOWN if any(call.reached) else UNREACHED,
    )


def _uncalled(model: nn.Module, calls: Mapping[Key, _Call]) -> list[LayerReport]:
    """List the leaves that the forward pass does not call."""
    called = {name for name, _ in calls}
    return [
        LayerReport(name, type(module).__name__, _depth(name), leaf=True, note=UNCALLED)
        for name, module in model.named_modules()
        if name not in called and _is_leaf(module)
    ]


def _depth(name: str) -> int:
    return name.count(".") + 1 if name else 0


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None
