"""Which layers of a model break shift-equivariance, by how much, and why.

A layer f is shift-equivariant when f(shift(x)) = shift(f(x)), with the shift of its output scaled
to the output's own lattice. Per layer:

- `own`: relative L2 error of the layer alone. It is given its own input, exactly shifted, and its
  answer is compared with its exactly shifted output. Nothing upstream counts.
- `accumulated`: relative L2 error of the whole path. The *image* is shifted and the layer's output
  is compared with the exactly shifted output for the unshifted image.
- `eq_t`: the same as `accumulated` in decibels, 20 log10(I) - 10 log10(MSE), where I is the
  peak-to-peak range of the layer's output: with the output scaled to [-1, 1], I = 2.

All shifts are the cyclic, band-limited ones of the protocol, on every lattice. Where a tensor lies
on the image is followed from the pixels (`places`), and only what reaches the logits counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from shiftbench.audit.calls import Key, tensors_in, watch, with_tensors
from shiftbench.audit.causes import NEGLIGIBLE, Cause, Split, find_cause, frame_width, split
from shiftbench.audit.lattice import CYCLIC, Layout
from shiftbench.audit.layer_report import UNCALLED, UNKNOWN, UNREACHED, LayerReport, eq_t
from shiftbench.audit.places import Tracker
from shiftbench.errors import DataError, ModelError
from shiftbench.grid import Offset

DEFAULT_OFFSETS = (Offset(1, 0), Offset(0, 1), Offset(0.5, 0.5))


@dataclass
class _Call:
    """What is known of one call of a layer."""

    module: nn.Module
    inputs: list[Layout | None]  # of every tensor among the arguments
    layout: Layout | None  # of the output
    part: str = "all"  # of the output that reaches the logits: all, placed, unplaced, none
    output: Tensor | None = None  # for the unshifted image
    own: Split | None = None
    cause: Cause | None = None
    path: list[tuple[float, float]] = field(default_factory=list)  # relative and mean squared error

    def select(self, x: Tensor) -> Tensor:
        """The part of an output that reaches the logits."""
        if self.layout is None or self.part == "all":
            return x
        return self.layout.placed(x) if self.part == "placed" else self.layout.unplaced(x)


# --- the passes ---------------------------------------------------------------------------------


def _reach(model: nn.Module, images: Tensor) -> dict[Key, Tensor] | None:
    """Which numbers of every output the logits depend on, by their gradients; None: unknown."""
    reached: dict[Key, Tensor] = {}

    def after(key: Key, module: nn.Module, output: Tensor) -> None:
        if not output.requires_grad:
            reached[key] = torch.ones_like(output, dtype=torch.bool)
            return
        reached[key] = torch.zeros_like(output, dtype=torch.bool)

        def keep(gradient: Tensor) -> None:
            reached[key] |= gradient != 0

        output.register_hook(keep)  # type: ignore[no-untyped-call]

    with torch.inference_mode(False), torch.enable_grad():
        pixels = images.clone().requires_grad_()
        try:
            with watch(model, after):
                logits = model(pixels)
            generator = torch.Generator().manual_seed(0)
            weights = torch.randn(logits.shape, generator=generator, dtype=logits.dtype)
            torch.autograd.grad((logits * weights.to(logits.device)).sum(), pixels)
        except RuntimeError:  # not differentiable; a fault of the model itself shows up later too
            return None
    return reached


def _locate(model: nn.Module, images: Tensor) -> dict[Key, _Call]:
    """Follows where every argument and every output lies on the image."""
    batch, size = len(images), (images.shape[2], images.shape[3])
    calls: dict[Key, _Call] = {}
    tracker = Tracker(images)
    arguments: dict[Key, list[Tensor]] = {}
    layouts: dict[Key, list[Layout | None]] = {}

    def layout(x: Tensor) -> Layout | None:
        return Layout.of(tracker.get(x), batch, size)

    def before(key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments[key] = tensors_in([args, kwargs])
        layouts[key] = [layout(x) for x in arguments[key]]

    def after(key: Key, module: nn.Module, output: Tensor) -> None:
        inputs = arguments.pop(key)
        if inputs and next(module.children(), None) is None:
            tracker.carry_over(inputs[0], output)
        found = layout(output)
        if found is None and key[0] == "":
            found = Layout(batch, size, ())  # logits have no place, whatever they are made of
        calls[key] = _Call(module, layouts.pop(key), found)

    with watch(model, after, before), tracker:
        model(images)
    return calls


def _narrow(call: _Call, reached: Tensor | None) -> None:
    """Finds which part of an output reaches the logits."""
    if reached is None:
        return
    if not reached.any():
        call.part = "none"
    elif call.layout is not None and call.layout.size is not None:
        placed, unplaced = (
            bool(part.any())
            for part in (call.layout.placed(reached), call.layout.unplaced(reached))
        )
        call.part = "all" if placed and unplaced else "placed" if placed else "unplaced"


def _split(call: _Call, found: Tensor, expected: Tensor) -> Split:
    """The relative error of an output, border and interior apart where it lies on one lattice."""
    assert call.layout is not None
    error = found - expected
    reference = float(call.select(expected).square().sum()) or torch.finfo(error.dtype).tiny
    if call.layout.size is None or call.part == "unplaced":
        return Split(0.0, math.sqrt(float(call.select(error).square().sum()) / reference))
    unplaced = call.layout.unplaced(error) if call.part == "all" else error.new_zeros(0)
    width = frame_width(call.module, call.layout.size)
    return split(call.layout.placed(error), float(unplaced.square().sum()), reference, width)


def _mean(splits: Sequence[Split]) -> Split:
    return Split(_rms([s.border for s in splits]), _rms([s.interior for s in splits]))


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(v * v for v in values) / len(values))


class _Unshifted:
    """The reference pass: keeps every output, and measures every layer alone on the way."""

    def __init__(self, calls: dict[Key, _Call], offsets: Sequence[Offset]) -> None:
        self.calls, self.offsets = calls, offsets
        self.arguments: dict[Key, Any] = {}  # as they were: a layer may write over them

    def before(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keeps the arguments."""
        copies = iter([x.clone() for x in tensors_in([args, kwargs])])
        self.arguments[key] = with_tensors([list(args), kwargs], copies)

    def after(self, key: Key, module: nn.Module, output: Tensor) -> None:
        """Keeps the output and measures the layer."""
        arguments, call = self.arguments.pop(key), self.calls.get(key)
        if call is None:
            return
        call.output = output.clone()
        inputs = call.inputs
        known = all(layout is not None for layout in inputs)
        if call.layout is None or call.part == "none" or not inputs or not known:
            return

        def at(offset: Offset) -> Split:
            assert call.layout is not None
            moved = iter(
                [
                    x.clone() if layout is None else layout.shift(x, offset)
                    for x, layout in zip(tensors_in(arguments), inputs, strict=True)
                ]
            )
            args, kwargs = with_tensors(arguments, moved)
            answer = tensors_in(module(*args, **kwargs))[0]
            return _split(call, answer, call.layout.shift(output, offset))

        call.own = _mean([at(offset) for offset in self.offsets])
        if call.own.total > NEGLIGIBLE and self._has_own_cause(key):
            call.cause, call.own = find_cause(call.own, *self._steps(call, at))

    def _has_own_cause(self, key: Key) -> bool:
        """Whether this layer's error is not merely that of the layers inside it."""
        name, _ = key
        if not name:
            return False
        if next(self.calls[key].module.children(), None) is None:
            return True
        inside = [
            call.own.total
            for (other, _), call in self.calls.items()
            if other.startswith(f"{name}.") and call.own is not None and call.cause is not None
        ]
        total = self.calls[key].own
        assert total is not None
        return total.total > 2 * math.sqrt(sum(own**2 for own in inside))

    def _steps(self, call: _Call, at: Callable[[Offset], Split]) -> tuple[Split, Split]:
        """The error at a whole step of the coarsest lattice, and of the input's."""
        sizes = [layout.size for layout in call.inputs if layout and layout.size]
        assert call.layout is not None
        image = call.layout.image
        source = sizes[0] if sizes else image
        coarsest = min([*sizes, call.layout.size or source])
        whole, step = (
            Offset(image[0] / size[0], image[1] / size[1]) for size in (coarsest, source)
        )
        found = at(whole)
        return found, found if step == whole else at(step)


def _shifted(model: nn.Module, images: Tensor, calls: dict[Key, _Call], offset: Offset) -> None:
    """A pass on the shifted image: measures the whole path up to every layer."""

    def after(key: Key, module: nn.Module, output: Tensor) -> None:
        call = calls.get(key)
        if call is None or call.layout is None or call.output is None or call.part == "none":
            return
        if call.output.shape != output.shape:
            return
        expected, got = call.select(call.layout.shift(call.output, offset)), call.select(output)
        if not key[0] and got.ndim == 2:  # logits: what all classes have in common decides nothing
            expected, got = (x - x.mean(1, keepdim=True) for x in (expected, got))
        error = got - expected
        norm = float(expected.norm()) or torch.finfo(error.dtype).tiny
        call.path.append((float(error.norm()) / norm, float(error.square().mean())))

    with watch(model, after):
        model(CYCLIC.views(images, 0)(offset))


def _report(key: Key, call: _Call) -> LayerReport:
    name, number = key
    output = call.output
    assert output is not None
    judged = bool(call.path)
    leaf = next(call.module.children(), None) is None
    own, split_known = call.own if judged else None, call.cause is not None
    decibels = None
    if judged:
        part = call.select(output)
        squared = sum(mse for _, mse in call.path) / len(call.path)
        decibels = eq_t(float(part.max() - part.min()), squared)
    return LayerReport(
        name=name if number == 1 else f"{name} ({number})",
        kind=type(call.module).__name__,
        depth=name.count(".") + 1 if name else 0,
        leaf=leaf,
        shape=tuple(output.shape[1:]),
        lattice=call.layout.size if call.layout and call.part != "unplaced" else None,
        own=own.total if own else None,
        border=own.border if own and split_known else None,
        interior=own.interior if own and split_known else None,
        cause=call.cause.name if call.cause else None,
        accumulated=_rms([error for error, _ in call.path]) if judged else None,
        eq_t=decibels,
        note=None if own else UNREACHED if call.part == "none" else UNKNOWN,
    )


def audit(
    model: nn.Module, images: Tensor, *, offsets: Sequence[Offset] = DEFAULT_OFFSETS
) -> list[LayerReport]:
    """Measures every layer of `model` on normalized `images`, (B, C, H, W).

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    >>> [report.cause for report in audit(model.eval(), torch.rand(2, 3, 16, 16))]
    ['border', 'non-linearity', None, None]

    Returns:
        A report per call of a layer, in the order in which calls finish: containers follow what
        they hold. Then leaves that were never called; these, and whatever else could not be judged,
        say so in `note`. The last one, with the empty name, is the model itself.
    """
    if images.ndim != 4 or images.shape[0] == 0:
        raise DataError(
            f"an audit needs images of shape (B, C, H, W) with B > 0, got {tuple(images.shape)}"
        )
    if model.training:
        raise ModelError("an audit needs a model in eval mode: call model.eval() first")
    reached = _reach(model, images)
    with torch.inference_mode():
        calls = _locate(model, images)
        for key, call in calls.items():
            _narrow(call, None if reached is None else reached.get(key))
        unshifted = _Unshifted(calls, offsets)
        with watch(model, unshifted.after, unshifted.before):
            model(images)
        for offset in offsets:
            _shifted(model, images, calls, offset)
        reports = [_report(key, call) for key, call in calls.items() if call.output is not None]
    return [*reports[:-1], *_uncalled(model, calls), reports[-1]]


def _uncalled(model: nn.Module, calls: Mapping[Key, _Call]) -> list[LayerReport]:
    """Leaves that a forward pass leaves out, or whose work is done without calling them."""
    called = {name for name, _ in calls}
    leaves = [
        (name, module)
        for name, module in model.named_modules()
        if name not in called and next(module.children(), None) is None
    ]
    return [
        LayerReport(
            name=name,
            kind=type(module).__name__,
            depth=name.count(".") + 1,
            leaf=True,
            shape=(),
            lattice=None,
            own=None,
            border=None,
            interior=None,
            cause=None,
            accumulated=None,
            eq_t=None,
            note=UNCALLED,
        )
        for name, module in leaves
    ]
