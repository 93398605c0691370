"""What runs the forward pass: PyTorch, its compiler, or ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shiftbench.errors import ModelError
from shiftbench.models.onnx_network import OnnxNetwork

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
CHECKED = 8  # images that two engines are compared on
# Largest difference of two logits, over the largest logit, that is put down to rounding. Two
# engines differ by 1e-6 to 1e-5; a graph that lost an operation, by more than 1e-2.
AGREEMENT = 1e-3

Forward = Callable[[Tensor], Tensor]
Make = Callable[[nn.Module, tuple[int, int, int], str], Forward]


def memory_format(module: nn.Module) -> torch.memory_format:
    """Channels last for networks that are mostly convolutions.

    EfficientNet-Lite0 takes a quarter less time so, on one core of a CPU; networks of linear
    layers gain nothing. A rule rather than a race, so that every run rounds alike.
    """
    convolved = sum(
        parameter.numel()
        for layer in module.modules()
        if isinstance(layer, nn.Conv2d)
        for parameter in layer.parameters(recurse=False)
    )
    total = sum(parameter.numel() for parameter in module.parameters())
    return torch.channels_last if 2 * convolved > total else torch.contiguous_format


class TorchForward:
    """The module itself, in its memory format and precision."""

    def __init__(self, module: nn.Module, precision: str) -> None:
        self._format = memory_format(module)
        self._call: Forward = module.to(memory_format=self._format)
        self._dtype = AUTOCAST.get(precision)

    def __call__(self, images: Tensor) -> Tensor:
        """Returns logits in float32."""
        images = images.contiguous(memory_format=self._format)
        mixed = torch.autocast(images.device.type, self._dtype, enabled=self._dtype is not None)
        with torch.no_grad(), mixed:
            return self._call(images).float()


class CompiledForward(TorchForward):
    """The module through `torch.compile`."""

    def __init__(self, module: nn.Module, precision: str, *, on_cpu: bool) -> None:
        super().__init__(module, precision)
        # On a CPU, constant weights are laid out for its matrix products beforehand.
        options: dict[str, Any] | None = {"freezing": True} if on_cpu else None
        # The last batches of a search are of any size: dynamic shapes, or each would compile anew.
        self._call = torch.compile(module, dynamic=True, options=options)


def _torch(module: nn.Module, shape: tuple[int, int, int], precision: str) -> Forward:
    return TorchForward(module, precision)


def _compiled(module: nn.Module, shape: tuple[int, int, int], precision: str) -> Forward:
    like = next(module.parameters(), torch.empty(0))
    return CompiledForward(module, precision, on_cpu=like.device.type == "cpu")


def _onnx(module: nn.Module, shape: tuple[int, int, int], precision: str) -> Forward:
    if is_onnx(module):  # a file of the user's runs there already
        return TorchForward(module, precision)
    from aft_models.onnx import export_onnx

    content = export_onnx(module, shape)
    return OnnxNetwork(content, name=type(module).__name__, tf32=precision == "tf32")


def is_onnx(module: nn.Module) -> bool:
    """Whether a model is an ONNX file, which ONNX Runtime runs whatever the engine."""
    return any(isinstance(part, OnnxNetwork) for part in module.modules())


FORWARDS: Mapping[str, Make] = {"torch": _torch, "compile": _compiled, "onnx": _onnx}
ENGINES = tuple(FORWARDS)


def is_translated(forward: Forward) -> bool:
    """Whether it is a copy of the module in another runtime, which has to prove itself."""
    return isinstance(forward, OnnxNetwork)


def check_forward(name: str, forward: Forward, module: nn.Module, images: Tensor) -> None:
    """Compares the logits of a translated module with its own on a few images.

    Raises:
        ModelError: They differ by more than rounding.
    """
    with torch.no_grad():
        expected = module(images[:CHECKED]).float()
    difference = (forward(images[:CHECKED]) - expected).abs().max()
    allowed = AGREEMENT * expected.abs().max()
    if not difference <= allowed:  # NaN is no agreement either
        raise ModelError(
            f"{name} answers differently in ONNX Runtime: on the first images its logits are off "
            f"by {difference:.2g}, and rounding explains {allowed:.2g}; use --engine torch"
        )
