"""Model sources, one per file: the name of the file is the prefix of its models' names.

A file has a function `build(name, request) -> Built`. It builds a network and never runs it. The
file is imported when a model is built: libraries take seconds to import.
"""

from __future__ import annotations

import json
import logging
import socket
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.metadata import version
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

from aft_models.cards import list_weights
from aft_models.errors import AftModelsError
from aft_models.files import write_atomic
from aft_models.preprocessing import Preprocessing
from aft_models.presets import PRESETS
from shiftbench.errors import ModelError, ShiftbenchError, UsageError, first_line
from shiftbench.files import cache_folder
from shiftbench.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from shiftbench.models.exported import ExportInfo
    from shiftbench.models.names import ModelName

LIBRARIES = {"timm": "timm", "tv": "torchvision"}  # sources with a list -> distribution
OFFLINE = ("hf:microsoft/cvt-13",)  # repositories whose network is built without a download
TITLES = {"tv": "torchvision", "hf": "huggingface"}  # in records, if not the prefix itself
# Error types of requests, httpx, huggingface_hub and urllib, which need not be installed.
NETWORK_ERRORS = ("Connect", "URLError", "Timeout", "LocalEntryNotFound", "Offline", "HTTPError")


@dataclass(frozen=True)
class Request:
    """Everything that a caller requests of a source besides the name."""

    pretrained: bool = True  # with the source's own weights; False: they are replaced later
    classes: int | None = None  # outputs of the classifier; None: the source's own number
    size: int | None = None  # side of the images in pixels; None: the source's own
    options: Mapping[str, Any] = field(default_factory=dict)  # of the name and of a card
    class_names: tuple[str, ...] = ()  # of the data, for zero-shot models

    def take_pretrained(self, text: str) -> tuple[bool, dict[str, Any]]:
        """Return True if the source shall load its own weights, and the other options."""
        options = dict(self.options)
        pretrained = options.pop("pretrained", self.pretrained)
        if not isinstance(pretrained, bool):
            raise UsageError(
                f"expected the model option pretrained as true or false, got {pretrained!r}: "
                "correct it"
            )
        if pretrained and not self.pretrained:
            raise UsageError(f"{text} is given other weights: leave pretrained=true out")
        return pretrained, options

    def require_own_weights(self, text: str) -> None:
        """Raise UsageError if a model whose file contains its weights is given others."""
        if not self.pretrained:
            raise UsageError(
                f"{text} contains its weights: it cannot be trained and takes no others. Leave "
                "--checkpoint out"
            )


@dataclass(frozen=True)
class Built:
    """A network that has not run yet, and the facts about it."""

    network: Callable[[Tensor], Any]  # a torch module or any callable, from images to logits
    preprocessing: Preprocessing | Mapping[str, Any]
    class_names: tuple[str, ...] = ()  # by index; empty if unknown
    code: Mapping[str, str] = field(default_factory=dict)  # part of the identity, see `Identity`
    weights: str = ""  # digest of the weights, if the network has no state dict
    parameters: int | None = None  # number of parameters, if the network has none
    exported: ExportInfo | None = None  # metadata of a file that `shiftbench export` wrote
    score_threshold: float | None = None  # of detections that count; None: the default


@dataclass(frozen=True)
class ModelEntry:
    """A line of `shiftbench list models`."""

    name: str  # as `--model` takes it
    source: str
    weights: bool  # True if the source has trained weights for it


class ModelSource(Protocol):
    """A module of `sources/`, or an object that a plug-in registers.

    A source that can list its models has a function `entries() -> Iterable[ModelEntry]` too.
    """

    def build(self, name: ModelName, request: Request) -> Built:
        """Build a network, with the source's own weights if the request includes them."""
        ...


SOURCES: Registry[ModelSource | str] = Registry("model source")  # or the name of a module
for _file in iter_modules(__path__):
    SOURCES.register(_file.name, f"{__name__}.{_file.name}")


def get_source(name: str) -> ModelSource:
    """Return a source by its name, imported if it is a module."""
    source = SOURCES.get(name)
    return cast(ModelSource, import_module(source)) if isinstance(source, str) else source


def list_models() -> list[ModelEntry]:
    """List every model that can be named, bundled ones first."""
    entries = _bundled_entries()
    for name in LIBRARIES:
        entries += _library_entries(name)
    entries += [ModelEntry(name, "hf", True) for name in OFFLINE]
    for name in SOURCES:
        if not isinstance(source := SOURCES.get(name), str):  # of a plug-in
            entries += getattr(source, "entries", tuple)()
    return entries


def _bundled_entries() -> list[ModelEntry]:
    return [ModelEntry(name, "bundled", True) for name in list_weights()] + [
        ModelEntry(name, "bundled", False) for name in PRESETS
    ]


def _library_entries(source: str) -> list[ModelEntry]:
    """List the models of a library from a file per version: importing it takes seconds."""
    library = LIBRARIES[source]
    memory = cache_folder() / "models" / f"{library}-{version(library)}.json"
    with suppress(OSError, ValueError, TypeError):
        return [ModelEntry(**entry) for entry in json.loads(memory.read_text("utf-8"))]
    listing: Any = get_source(source)
    entries: list[ModelEntry] = list(listing.entries())
    with suppress(OSError):  # a read-only cache costs time alone
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(memory, json.dumps([asdict(entry) for entry in entries]).encode())
    return entries


def default_models(data: str) -> list[str]:
    """List the bundled models that were trained on a data set."""
    names = [name for name in list_weights() if name.endswith(f".{data}")]
    if not names:
        raise UsageError(f"no bundled model was trained on {data}: name one with --model")
    return names


@contextmanager
def clear_errors(text: str) -> Iterator[None]:
    """Turn the errors of libraries into one line each, with the name of the model."""
    try:
        yield
    except ShiftbenchError:
        raise
    except AftModelsError as error:
        raise ModelError(str(error)) from error
    except TypeError as error:
        raise UsageError(f"cannot build {text}: {first_line(error)}") from error
    except Exception as error:
        if _is_network_error(error):
            raise ModelError(
                f"cannot download the weights of {text} ({first_line(error)}): check the "
                "network, or give a folder that contains them, or a file with --checkpoint"
            ) from error
        raise ModelError(f"cannot load {text}: {first_line(error)}") from error


def _is_network_error(error: BaseException | None) -> bool:
    """Return True if a connection failed anywhere in the chain of causes."""
    while error is not None:
        names = [kind.__name__ for kind in type(error).__mro__]
        if isinstance(error, ConnectionError) or any(n in x for n in NETWORK_ERRORS for x in names):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def hub_access() -> Iterator[None]:
    """Use only the cache of the Hugging Face hub if its host has no address.

    The retries of the hub's library take most of a minute. Behind a proxy nothing changes: there
    the proxy finds the address.
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
