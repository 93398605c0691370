"""`FILE.py:FUNCTION`: a function of the user's returns a model, and may add its preprocessing.

The model is a module or any callable from images to logits. Beside it the function may return a
mapping such as `{"input_size": 96, "mean": 0.5, "std": 0.5}`, or the transform that the model was
evaluated with: any callable from a PIL image to a tensor.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shiftbench.errors import ModelError, UsageError, first_line
from shiftbench.identity import local_names, source_parts
from shiftbench.models.classifier import Classifier, as_classifier
from shiftbench.models.names import ModelSpec
from shiftbench.models.sources import building
from shiftbench.models.sources.timm import timm_preprocessing
from shiftbench.models.transforms import preprocessing_for
from shiftbench.registry import unknown_name

_IMPORTED: dict[Path, Mapping[str, str]] = {}  # the sources of each file when it was imported


def load(spec: ModelSpec) -> Classifier:
    """Imports the file, calls the function with the options, and takes what it returns."""
    file, _, function = spec.name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"no Python file {file!r} for the model {spec.text!r}")
    with _importing(path):
        build = _function(path, function)
        with building(spec):
            built = build(**spec.options)
    model, given = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not callable(model):
        raise ModelError(
            f"{path.name}:{function} must return a model (a torch module, or a callable from "
            f"images to logits) or a model and its preprocessing; it returned a "
            f"{type(model).__name__}"
        )
    name = spec.public_name()
    with building(spec):
        own = timm_preprocessing(model) if hasattr(model, "pretrained_cfg") else None
        return as_classifier(
            model,
            spec.sized(preprocessing_for(model, {} if given is None else given, name, own)),
            name=name,
            code={
                "function": function,
                "options": ",".join(f"{k}={v!r}" for k, v in sorted(spec.options.items())),
                **source_parts(path),
            },
        )


@contextmanager
def _importing(path: Path) -> Iterator[None]:
    """Lets a file import what is beside it, as it is now.

    Modules of that name that another folder had, or that were edited since, are forgotten.
    """
    folder, parts = path.resolve().parent, source_parts(path)
    own = {str(folder / name) for name in parts}
    names = local_names(path)
    edited = _IMPORTED.get(path.resolve(), parts) != parts
    for key in [key for key in sys.modules if key.partition(".")[0] in names]:
        origin = getattr(sys.modules[key], "__file__", None)
        if edited or (origin is not None and str(Path(origin).resolve()) not in own):
            del sys.modules[key]
    _IMPORTED[path.resolve()] = parts
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # its files are told apart by second, and edits are quicker
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = before


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
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise unknown_name(f"function of {path.name}", name, functions)
    return function  # type: ignore[no-any-return]
