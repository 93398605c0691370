"""Training and evaluation modes of modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Running statistics and dropout stand still for a while; then each module's mode is back.

    >>> model = nn.Dropout()
    >>> with evaluating(model):
    ...     print(model.training)
    False
    >>> model.training
    True
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
