"""The seam every model source implements, and the words of a model name."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from aft_models.errors import AftModelsError
from shiftbench.errors import ModelError, ShiftbenchError, UsageError
from shiftbench.models.blueprint import Blueprint
from shiftbench.models.classifier import Classifier, first_line
from shiftbench.models.network import is_network_error, quick_offline
from shiftbench.registry import Registry


@dataclass(frozen=True)
class ModelSpec:
    """A model name taken apart: `timm:resnet18,pretrained=false` without its prefix."""

    text: str  # as the user wrote it; how records call the model
    name: str  # what the source knows it by
    options: Mapping[str, Any] = field(default_factory=dict)  # what follows the commas
    # Asked of a model that is built without its weights, where its architecture leaves a choice.
    classes: int | None = None
    size: int | None = None  # side of its images in pixels
    seed: int = 0  # of its random weights

    @property
    def public_text(self) -> str:
        """As the user wrote it, without the folders of this machine; for names of files."""
        return self.text.replace(self.name, Path(self.name).name, 1)


@dataclass(frozen=True)
class ModelEntry:
    """A line of `shiftbench list models`."""

    name: str  # as `--model` takes it
    source: str
    weights: bool  # whether the source has trained weights for it


class ModelSource(Protocol):
    """Where models come from."""

    def load(self, spec: ModelSpec) -> Classifier:
        """The model with the source's own weights and its preprocessing."""
        ...

    def entries(self) -> Iterable[ModelEntry]:
        """What can be named; empty where the source cannot know."""
        ...


@runtime_checkable
class Builder(Protocol):
    """A source whose models can be trained, and filled with weights from a file."""

    def build(self, spec: ModelSpec) -> Blueprint:
        """The model without trained weights."""
        ...


SOURCES: Registry[ModelSource] = Registry("model source")


def parse_options(text: str) -> tuple[str, dict[str, Any]]:
    """Splits `NAME,key=value,...`; values are Python literals, true/false/none, or words."""
    name, *pairs = _split_commas(text)
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip().isidentifier():
            raise UsageError(f"expected key=value after the comma in model {text!r}, got {pair!r}")
        options[key.strip()] = _literal(value.strip())
    return name.strip(), options


def _split_commas(text: str) -> list[str]:
    """Splits at commas outside brackets, so that `img_size=(64,64)` stays whole."""
    words, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            words.append(text[start:i])
            start = i + 1
    return [*words, text[start:]]


def _literal(value: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return words[value.lower()]
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def take_bool(options: dict[str, Any], key: str, default: bool) -> bool:
    """Removes a yes/no option."""
    value = options.pop(key, default)
    if not isinstance(value, bool):
        raise UsageError(f"model option {key} must be true or false, got {value!r}")
    return value


def without_weights(spec: ModelSpec) -> dict[str, Any]:
    """The options of a model that shall not load weights of its own."""
    options = dict(spec.options)
    if take_bool(options, "pretrained", False):
        raise UsageError(f"{spec.text} is given other weights: leave pretrained=true out")
    return options


@contextmanager
def building(spec: ModelSpec, *, hub: bool = False) -> Iterator[None]:
    """Builds with fixed randomness, and words the errors of a library in one sentence.

    `hub`: files may come from the Hugging Face hub.

    Untrained weights come from the spec's seed, so that every process of a run, and a resumed run,
    has the same ones; the caller's own random state is left as it was.
    """
    try:
        with torch.random.fork_rng(devices=[]), quick_offline() if hub else nullcontext():
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
        if is_network_error(error):
            raise ModelError(
                f"cannot download the weights of {spec.text} ({first_line(error)}): check the "
                "network, or give a file with --checkpoint"
            ) from error
        raise ModelError(f"cannot load {spec.text}: {first_line(error)}") from error
