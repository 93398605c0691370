"""Model sources, one per file: the name of the file is the prefix of its models' names.

A file has a function `load(spec)`, and `entries()` where it knows what can be named. It is imported
when it is used, and torch not before a model is built: both take seconds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from shiftbench.errors import ModelError, ShiftbenchError, UsageError, first_line
from shiftbench.files import cache_folder, write_atomic
from shiftbench.registry import Registry

if TYPE_CHECKING:  # listing models must not wait for torch
    from shiftbench.models.classifier import Classifier
    from shiftbench.models.names import ModelSpec

# Types of several libraries (requests, httpx, huggingface_hub, urllib), none of which we import.
NETWORK_ERRORS = ("Connect", "URLError", "Timeout", "LocalEntryNotFound", "Offline", "HTTPError")


@dataclass(frozen=True)
class ModelEntry:
    """A line of `shiftbench list models`."""

    name: str  # as `--model` takes it
    source: str
    weights: bool  # whether the source has trained weights for it


class ModelSource(Protocol):
    """Where models come from: a module of `sources/`, or an object that a plug-in registers.

    One that knows what can be named has a function `entries() -> Iterable[ModelEntry]` too.
    """

    def load(self, spec: ModelSpec) -> Classifier:
        """The model with its preprocessing, and the source's own weights if `spec.pretrained`."""
        ...


@dataclass(frozen=True)
class SourceFile:
    """A source of ours, imported when it is used."""

    module: str

    def load(self, spec: ModelSpec) -> Classifier:
        """As the file does."""
        classifier: Classifier = import_module(self.module).load(spec)
        return classifier

    def entries(self) -> Iterable[ModelEntry]:
        """As the file does, if it does."""
        listed: Iterable[ModelEntry] = getattr(import_module(self.module), "entries", tuple)()
        return listed


SOURCES: Registry[ModelSource] = Registry("model source")
for _file in iter_modules(__path__):
    SOURCES.register(_file.name, SourceFile(f"{__name__}.{_file.name}"))


def list_models() -> list[ModelEntry]:
    """Every model that can be named, bundled ones first."""
    return [*_own_entries(), *_entries(own=False)]


def _entries(*, own: bool) -> list[ModelEntry]:
    """What our sources list, or those of plug-ins; a source that cannot know lists nothing."""
    sources = (SOURCES.get(name) for name in SOURCES)
    chosen = (source for source in sources if isinstance(source, SourceFile) == own)
    return [entry for source in chosen for entry in getattr(source, "entries", tuple)()]


def _own_entries() -> list[ModelEntry]:
    """What our sources list, remembered for this installation: timm takes seconds to import."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    for package in ("aft_models", "timm", "torchvision"):
        spec = find_spec(package)
        assert spec is not None
        place = Path(spec.origin or "").parent
        files += [place, place / "version.py", place / "presets.py", place / "weights"]
    stamps = [f"{file} {file.stat().st_mtime_ns}" for file in files if file.exists()]
    key = hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]
    memory = cache_folder() / "models" / f"{key}.json"
    with suppress(OSError, ValueError, TypeError):
        return [ModelEntry(**entry) for entry in json.loads(memory.read_text("utf-8"))]
    entries = _entries(own=True)
    with suppress(OSError):  # a folder that cannot be written to costs time, nothing else
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(memory, json.dumps([asdict(entry) for entry in entries]).encode())
    return entries


def default_models(data: str) -> list[str]:
    """The bundled models that were trained on a data set."""
    names = [entry.name for entry in _own_entries() if entry.source == "bundled"]
    names = [name for name in names if name.endswith(f".{data}")]
    if not names:
        raise UsageError(f"no bundled model was trained on {data}: name one with --model")
    return names


@contextmanager
def building(spec: ModelSpec, *, hub: bool = False) -> Iterator[None]:
    """Builds with fixed randomness, and words the errors of a library in one sentence.

    `hub`: files may come from the Hugging Face hub.

    Untrained weights come from the spec's seed, so that every process of a run, and a resumed run,
    has the same ones; the caller's own random state is left as it was.
    """
    import torch

    from aft_models.errors import AftModelsError

    try:
        with torch.random.fork_rng(devices=[]), _quick_offline() if hub else nullcontext():
            torch.default_generator.manual_seed(spec.seed)
            yield
    except ShiftbenchError:
        raise
    except AftModelsError as error:
        raise ModelError(str(error)) from error
    except ImportError as error:
        raise ModelError(f"cannot load {spec.text}: {first_line(error)}") from error
    except TypeError as error:
        raise UsageError(f"cannot build {spec.text}: {first_line(error)}") from error
    except Exception as error:
        if _is_network_error(error):
            raise ModelError(
                f"cannot download the weights of {spec.text} ({first_line(error)}): check the "
                "network, or give a folder that holds them, or a file with --checkpoint"
            ) from error
        raise ModelError(f"cannot load {spec.text}: {first_line(error)}") from error


def _is_network_error(error: BaseException | None) -> bool:
    """Whether a connection failed anywhere down the chain of causes."""
    while error is not None:
        names = [kind.__name__ for kind in type(error).__mro__]
        if isinstance(error, ConnectionError) or any(n in x for n in NETWORK_ERRORS for x in names):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _quick_offline() -> Iterator[None]:
    """Uses only the hub's cache when its host has no address: its retries take most of a minute.

    Behind a proxy the address is the proxy's to find, so nothing changes there.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    level = (hub := logging.getLogger("huggingface_hub")).level
    hub.setLevel(logging.ERROR)
    constants.HF_HUB_OFFLINE = before or not _has_address(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
        hub.setLevel(level)


def _has_address(url: str) -> bool:
    parts = urlsplit(url)
    if urllib.request.getproxies() or not parts.hostname:
        return True
    try:
        socket.getaddrinfo(parts.hostname, parts.port or 443)
    except OSError:
        return False
    return True
