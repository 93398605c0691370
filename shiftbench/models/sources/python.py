"""`FILE.py:FUNCTION`: the user's function returns a model, and may add its preprocessing.

The model is a module or any callable from images to logits; to torchvision's list of dicts with
boxes, labels and scores; or to maps (B, classes, h, w). Beside it the function may return a mapping
such as `{"input_size": 96, "mean": 0.5, "std": 0.5}`, or the transform of the evaluation. The
mapping of a detector may also contain `class_names` and `score_threshold`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aft_models.preprocessing import Preprocessing
from shiftbench.errors import ModelError, UsageError, first_line
from shiftbench.identity import file_digests
from shiftbench.models.names import ModelName
from shiftbench.models.sources import Built, Request
from shiftbench.models.transforms import read_preprocessing
from shiftbench.registry import unknown_name

_IMPORTED: dict[Path, Mapping[str, str]] = {}  # digests of each file when it was imported last


def build(name: ModelName, request: Request) -> Built:
    """Import the file, call the function with the options, and read its result."""
    file, _, function = name.name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"no Python file {file!r} for the model {name.text!r}")
    digests = file_digests(path)
    with _importing(path, digests):
        result = _function(path, function)(**request.options)
    network, given = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    if not callable(network):
        raise ModelError(
            f"expected a model from {path.name}:{function} (a torch module, or a callable from "
            f"images to logits), or a model and its preprocessing, got a {type(network).__name__}: "
            "return one of them"
        )
    further = {}
    if isinstance(given, Mapping):
        further = {key: given[key] for key in ("class_names", "score_threshold") if key in given}
        given = {key: value for key, value in given.items() if key not in further}
    own = Preprocessing.of(network) if hasattr(network, "pretrained_cfg") else None
    options = ",".join(f"{k}={_stated(value)!r}" for k, value in sorted(request.options.items()))
    return Built(
        network,
        read_preprocessing({} if given is None else given, name.public_name(), own),
        tuple(map(str, further.get("class_names", ()))),
        code={"function": function, "options": options, **digests},
        score_threshold=further.get("score_threshold"),
    )


def _stated(value: Any) -> Any:
    """Return the value of an option; of a file its name and digest, since its content decides."""
    if not isinstance(value, str) or not Path(value).is_file():
        return value
    return f"{Path(value).name} sha256:{hashlib.sha256(Path(value).read_bytes()).hexdigest()}"


@contextmanager
def _importing(path: Path, digests: Mapping[str, str]) -> Iterator[None]:
    """Let a file import the modules beside it, in their present version.

    Modules of the same name in another folder, or edited since their import, are removed.
    """
    path = path.resolve()
    own = {str(path.parent / name) for name in digests}
    names = {Path(name).parts[0].removesuffix(".py") for name in digests} - {path.stem}
    edited = _IMPORTED.get(path, digests) != digests
    for key in [key for key in sys.modules if key.partition(".")[0] in names]:
        origin = getattr(sys.modules[key], "__file__", None)
        if edited or (origin is not None and str(Path(origin).resolve()) not in own):
            del sys.modules[key]
    _IMPORTED[path] = digests
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # bytecode is dated to the second; an edit may be faster
    sys.path.insert(0, str(path.parent))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(path.parent))
        sys.dont_write_bytecode = before


def _function(path: Path, name: str) -> Callable[..., Any]:
    """Import a file under a name of its own and return one of its functions."""
    module_name = f"_shiftbench_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickling in the file find it there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ModelError(f"cannot import {path}: {first_line(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise unknown_name(f"function of {path.name}", name, functions)
    return function  # type: ignore[no-any-return]
