"""Exported graphs in the cache folder: a network is exported once, whatever process needs it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import nn

from aft_models.checkpoint import state_dict_digest
from shiftbench.files import cache_folder, write_atomic

log = logging.getLogger(__name__)

PACKAGES = ("shiftbench", "torch", "onnx", "onnxscript", "onnxruntime")
PATIENCE = 600.0  # seconds to wait for the process that exports; then this one does it itself


def graph_file(module: nn.Module, shape: tuple[int, int, int]) -> Path:
    """Where the graph of a network is kept: named by weights, architecture and versions.

    What no digest can see, such as a function that was replaced at run time, is found out when
    the graph is compared with the network.
    """
    parts = list(_parts(module))
    words = [f"{name} {_called(part)} {_options(part)}" for name, part in parts]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    total = hashlib.sha256("\n".join([str(shape), *versions, *words]).encode())
    total.update(state_dict_digest(module.state_dict()).encode())
    for file in sorted({file for _, part in parts if (file := _source(part))}):
        total.update(Path(file).read_bytes())
    return cache_folder() / "graphs" / f"{total.hexdigest()[:32]}.onnx"


def _parts(module: nn.Module) -> Iterator[tuple[str, object]]:
    """List the layers, their hooks with the values in them, and input remedies.

    >>> [type(part).__name__ for _, part in _parts(nn.ReLU())]
    ['ReLU']
    """
    for name, layer in module.named_modules():
        yield name, layer
        for hook in (*layer._forward_pre_hooks.values(), *layer._forward_hooks.values()):
            yield name, hook
            yield from ((name, held) for held in getattr(hook, "__dict__", {}).values())
        yield from ((name, remedy) for remedy in getattr(layer, "remedies", ()))


def _called(part: object) -> str:
    """The name of a function or of a class, and what a layer says of itself."""
    name = getattr(part, "__qualname__", type(part).__qualname__)
    return f"{name}({part.extra_repr()})" if isinstance(part, nn.Module) else name


def _options(part: object) -> list[tuple[str, Any]]:
    """Numbers, words and functions that a layer or a hook may branch on."""
    values = getattr(part, "__dict__", {})
    plain = {key: getattr(value, "__qualname__", value) for key, value in values.items()}
    return sorted((k, v) for k, v in plain.items() if isinstance(v, bool | int | float | str))


def _source(part: object) -> str | None:
    with suppress(TypeError, OSError):  # built in, or typed into an interpreter
        file = inspect.getfile(part if inspect.isroutine(part) else type(part))
        return file if Path(file).is_file() else None
    return None


def exported(module: nn.Module, shape: tuple[int, int, int], *, anew: bool = False) -> bytes:
    """The graph of a network: from the cache, or exported and kept there; `anew` replaces it.

    Of several processes that need it at once, the first exports for all.
    """
    from aft_models.onnx import export_onnx

    file = graph_file(module, shape)
    if anew or not file.is_file():
        with _locked(file):
            if anew or not file.is_file():
                content = export_onnx(module, shape)
                try:
                    write_atomic(file, content)
                except OSError as error:
                    log.warning("%s: the exported network is not kept for the next run", error)
                return content
    return file.read_bytes()


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Lets one process at a time in, where the file system has locks."""
    lock = FileLock(file.with_suffix(".lock"))
    with suppress(OSError, NotImplementedError, Timeout):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=PATIENCE)
    try:
        yield
    finally:
        lock.release()
