"""`FILE.py:FUNCTION`: a function of the user's returns a module, and may add its preprocessing."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn

from shiftbench.errors import ModelError, UsageError
from shiftbench.models.blueprint import Blueprint
from shiftbench.models.classifier import (
    Classifier,
    as_preprocessing,
    first_line,
)
from shiftbench.models.source import SOURCES, ModelEntry, ModelSpec, building
from shiftbench.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from shiftbench.registry import unknown_name


class PythonFileSource:
    """Models that a Python file builds."""

    def load(self, spec: ModelSpec) -> Classifier:
        """The weights are those that the function returns."""
        blueprint = self.build(spec)
        with building(spec):
            return blueprint.classifier()

    def build(self, spec: ModelSpec) -> Blueprint:
        """Imports the file, calls the function with the options, and takes what it returns."""
        file, _, function = spec.name.rpartition(":")
        path = Path(file)
        if not path.is_file():
            raise UsageError(f"no Python file {file!r} for the model {spec.text!r}")
        build = _function(path, function)
        with building(spec):
            built = build(**spec.options)
            model, recipe = built if isinstance(built, tuple) else (built, None)
            if not isinstance(model, nn.Module):
                raise ModelError(
                    f"{path.name}:{function} must return a torch module, or a module and its "
                    f"preprocessing; it returned a {type(model).__name__}"
                )
            return Blueprint(
                model,
                as_preprocessing(recipe or default_preprocessing(model)),
                name=spec.public_text,
                architecture=f"{path.name}:{function}",
                source="python",
                code=path.read_bytes(),
            )

    def entries(self) -> Iterable[ModelEntry]:
        """Nothing: the user's files are the user's."""
        return ()


def default_preprocessing(model: nn.Module) -> Preprocessing:
    """What the module says of itself in timm's `pretrained_cfg`, or ImageNet's custom."""
    if hasattr(model, "pretrained_cfg"):
        from shiftbench.models.timm_zoo import timm_preprocessing

        return timm_preprocessing(model)
    return Preprocessing(224, IMAGENET_MEAN, IMAGENET_STD)


def _function(path: Path, name: str) -> Callable[..., Any]:
    identity = f"_shiftbench_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(identity, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[identity] = module  # dataclasses and pickling in the file look it up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ModelError(f"cannot import {path}: {first_line(error)}") from error
    found = getattr(module, name, None)
    if not callable(found):
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise unknown_name(f"function of {path.name}", name, functions)
    return found  # type: ignore[no-any-return]


SOURCES.register("python", PythonFileSource())
