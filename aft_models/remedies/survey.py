"""A survey of one forward pass: its layers, the sizes of their maps, and functional operations.

Remedies replace layers. Operations of a model's own code between its layers (``F.max_pool2d``,
slicing with a step, ``F.relu``) do not change; the survey lists them for the report.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from aft_models.layers.polyphase import Pair
from aft_models.modes import evaluating
from aft_models.remedies.layer import Repaired
from aft_models.remedies.window import read_window

_SAMPLING = {
    "max_pool2d", "avg_pool2d", "lp_pool2d", "fractional_max_pool2d", "conv2d", "conv_transpose2d",
    "interpolate", "upsample", "grid_sample", "pixel_unshuffle", "unfold",
}  # fmt: skip
_NONLINEAR = {
    "relu", "relu_", "relu6", "gelu", "silu", "silu_", "hardswish", "hardswish_", "elu", "elu_",
    "leaky_relu", "leaky_relu_", "mish", "softplus", "sigmoid", "sigmoid_", "tanh", "tanh_",
    "hardsigmoid", "hardtanh", "clamp", "clamp_",
}  # fmt: skip
_NOT_POINTWISE = {"Softmax", "Softmax2d", "LogSoftmax", "Softmin", "MultiheadAttention", "GLU"}


@dataclass(frozen=True)
class FunctionalOp:
    """An operation on feature maps outside of layers, which no remedy changes."""

    kind: str  # "sampling", "border" or "activation"
    operator: str  # name of the function in the code
    where: str  # module and line


@dataclass(frozen=True)
class Call:
    """Layer whose input is a map."""

    layer: str
    channels: int
    size: Pair  # rows, columns


@dataclass(frozen=True)
class Survey:
    """One forward pass."""

    calls: tuple[Call, ...] = ()  # in order
    tokens: frozenset[str] = frozenset()  # layers with tokens (B, N, C) instead of maps
    functional: tuple[FunctionalOp, ...] = ()
    failure: str | None = None  # error of the model for the image; the lists are empty then

    def sizes(self, name: str) -> list[Pair]:
        """Return the sizes of the input maps of a layer."""
        return [call.size for call in self.calls if call.layer == name]


def _configured_shape(model: object) -> tuple[int, ...]:
    """Return the image shape (C, H, W) in the configuration of a model, else (C, 224, 224)."""
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    modules = model.modules() if isinstance(model, nn.Module) else ()
    first = next((m for m in modules if isinstance(m, nn.Conv2d)), None)
    shape = tuple(config.get("input_size") or (first.in_channels if first else 3, 224, 224))
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)  # timm's transformers
    return shape if size is None else (shape[0], *size)


def default_size(model: object) -> int:
    """Return the side of a model's input (pixels): as configured, else 224."""
    return int(_configured_shape(model)[-1])


def default_image(model: nn.Module, side: int | None = None) -> Tensor:
    """Draw an input image of a model.

    Args:
        model: Any network.
        side: Side of the image in pixels. Default: as in the model's configuration, else 224.

    Returns:
        An image (1, C, H, W) with the dtype and on the device of the parameters.
    """
    shape = _configured_shape(model)
    shape = shape if side is None else (shape[0], side, side)
    like = next(model.parameters(), torch.zeros(()))
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, *shape, generator=generator)
    return image.to(device=like.device, dtype=like.dtype)


@torch.no_grad()
def survey(model: nn.Module, image: Tensor) -> Survey:
    """Run a model once, in evaluation mode, and list its calls."""
    calls: list[Call] = []
    tokens: set[str] = set()
    watch = _Watch()

    def before(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            watch.depth += 1
            if inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim == 4:
                channels, rows, columns = inputs[0].shape[1:]
                calls.append(Call(name, channels, (rows, columns)))
            elif inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim == 3:
                tokens.add(name)

        return hook

    def after(*_: Any) -> None:
        watch.depth -= 1

    handles = []
    for name, module in model.named_modules():
        if _is_layer(module):
            handles.append(module.register_forward_pre_hook(before(name), prepend=True))
            handles.append(module.register_forward_hook(after, always_call=True))
    try:
        with evaluating(model), watch:
            model(image)
    except Exception as error:  # the model's code may raise any error
        reason, _, _ = str(error).partition("\n")
        return Survey(failure=f"{type(error).__name__}: {reason}")
    finally:
        for handle in handles:
            handle.remove()
    return Survey(tuple(calls), frozenset(tokens), tuple(dict.fromkeys(watch.functional)))


def is_activation(module: nn.Module) -> bool:
    """Return True if a module applies a function to each element.

    >>> is_activation(nn.ReLU()), is_activation(nn.Softmax()), is_activation(nn.Linear(1, 1))
    (True, False, False)
    """
    home = type(module).__module__
    known = home == "torch.nn.modules.activation" or home.startswith("timm.layers.activations")
    return known and type(module).__name__ not in _NOT_POINTWISE


def _is_layer(module: nn.Module) -> bool:
    """Return True if a module is one layer, whose operations are not listed."""
    if isinstance(module, Repaired) or is_activation(module) or read_window(module) is not None:
        return True
    return next(module.children(), None) is None and type(module).__module__.startswith("torch.nn.")


class _Watch(TorchFunctionMode):
    """Mode that lists operations on maps outside of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0  # layers that are running
        self.functional: list[FunctionalOp] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.depth == 0 and args and isinstance(args[0], Tensor) and args[0].ndim == 4:
            name = getattr(func, "__name__", "")
            kind = _kind(name, args, kwargs)
            if kind is not None:
                label = "slicing" if name == "__getitem__" else name
                self.functional.append(FunctionalOp(kind, label, _caller()))
        return func(*args, **kwargs)


def _kind(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return the kind of an operation on a map; None if no remedy addresses it."""
    if max(args[0].shape[1:3]) == 1 or max(args[0].shape[2:]) == 1:
        return None  # a vector per image
    if name in _SAMPLING:
        return "sampling"
    if name in _NONLINEAR:
        return "activation"
    if name == "pad" and kwargs.get("mode", args[2] if len(args) > 2 else "constant") != "circular":
        return "border"
    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(isinstance(i, slice) and isinstance(i.step, int) and i.step > 1 for i in index):
            return "sampling"
    return None


def _caller() -> str:
    """Return module and line of the code that called the operation."""
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("torch", "aft_models.remedies")) or name.startswith("torchvision."):
            return f"{name}, line {frame.f_lineno}"
        frame = frame.f_back
    return "the model's own code"
