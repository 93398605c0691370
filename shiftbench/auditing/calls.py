"""Hooks around every call of every layer of a model, and its input and output tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Key = tuple[str, int]  # name of a layer, and number of the call


def tensors_in(value: Any) -> list[Tensor]:
    """List the tensors in arguments or in an output, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [x for v in value for x in tensors_in(v)] if isinstance(value, list | tuple) else []


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """Replace the tensors in arguments by other tensors."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {key: with_tensors(v, tensors) for key, v in value.items()}
    if isinstance(value, list | tuple):
        make = getattr(type(value), "_make", type(value))  # _make: a named tuple accepts no list
        return make([with_tensors(v, tensors) for v in value])
    return value


Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]
After = Callable[[Key, nn.Module, Any, Tensor], None]


@contextmanager
def watch(
    model: nn.Module, after: After, before: Before = lambda args, kwargs: None
) -> Iterator[None]:
    """Call `before` and `after` around every call of every layer, except calls made by these hooks.

    `after` receives the value that `before` returned, and the first tensor of the output. It is not
    called for an output without tensors.
    """
    counts: Counter[str] = Counter()
    stack: list[tuple[Key, Any]] = []
    in_callback = False

    def entering(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal in_callback
            if in_callback:
                return
            counts[name] += 1
            in_callback = True
            stack.append(((name, counts[name]), before(args, kwargs)))
            in_callback = False

        return hook

    def leaving(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        nonlocal in_callback
        if in_callback:
            return
        (key, given), tensors = stack.pop(), tensors_in(output)
        if tensors:
            in_callback = True
            after(key, module, given, tensors[0])
            in_callback = False

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(entering(name), with_kwargs=True))
        handles.append(module.register_forward_hook(leaving, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
