"""Model names: `mine=timm:resnet18,pretrained=false+circular+aps`, taken apart."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shiftbench.errors import UsageError
from shiftbench.files import file_safe
from shiftbench.models.sources import SOURCES
from shiftbench.registry import unknown_name

if TYPE_CHECKING:
    from shiftbench.preprocessing import Preprocessing

EXPORTED = "exported"  # stands for the source of a folder that training wrote

_REMEDIES = re.compile(r"^(.+?)((?:\+[a-z]\w*(?::\w*)?)+)$")
_LABEL = re.compile(r"^\s*([^=,\\]+?)\s*=\s*(.+)$", re.DOTALL)
_FUNCTION = re.compile(r"[^,]+\.py:[^\W\d]\w*")  # FILE.py:FUNCTION


@dataclass(frozen=True)
class ModelSpec:
    """A model's name taken apart, and what is asked of its source.

    >>> spec = parse_model("mine=timm:resnet18,pretrained=false+circular")
    >>> spec.label, spec.source, spec.name, spec.options, spec.remedies
    ('mine', 'timm', 'resnet18', {'pretrained': False}, 'circular')
    """

    text: str  # source, name and options, as they were written
    source: str  # which of `SOURCES` it belongs to
    name: str  # what the source knows it by
    options: Mapping[str, Any] = field(default_factory=dict)  # what follows the commas
    remedies: str = ""  # "circular+aps"; `loading` applies them where a source does not
    label: str | None = None  # what records and tables call it, where the user says so
    pretrained: bool = True  # with the source's own weights; else random ones, to be replaced
    # Asked of a model that is built without its weights, where its architecture leaves a choice.
    classes: int | None = None
    size: int | None = None  # side of its images in pixels
    seed: int = 0  # of its random weights
    class_names: tuple[str, ...] = ()  # of the data, for models without classes of their own

    def __str__(self) -> str:
        return self.shown()

    def shown(self, parents: int = 0) -> str:
        """What records and tables call it; `parents`: see `public_name`."""
        return self.label or "+".join(filter(None, (self.public_name(parents), self.remedies)))

    def public_name(self, parents: int = 0) -> str:
        """Source, name and options without the folders of this machine but the last `parents`.

        >>> parse_model("timm:resnet18,pretrained=false+circular").public_name()
        'timm:resnet18,pretrained=false'
        """
        if self.source == EXPORTED and not parents:  # the files have the name of their card
            return "/".join(file.stem for file in Path(self.name).glob("*.safetensors"))
        words = [self.name, *(word for word in self.options.values() if isinstance(word, str))]
        # FILE.py:FUNCTION, knn:hf:FOLDER, reference=folder:FOLDER
        words += [part for w in words for part in (w.rpartition(":")[0], w.partition(":")[2])]
        text = self.text
        for place in (word for word in words if word and _exists(word)):
            text = text.replace(place, "/".join(Path(place).resolve().parts[-1 - parents :]), 1)
        return text

    @property
    def architecture(self) -> str:
        """The public name alone, without options: what a card of weights calls the network."""
        if self.source == "bundled":
            return self.name.partition(".")[0]
        return _split_options(self.public_name())[0]

    def sized(self, recipe: Preprocessing) -> Preprocessing:
        """A preprocessing for the size of images that is asked for."""
        return replace(recipe, input_size=self.size or recipe.input_size)

    def take_pretrained(self) -> tuple[bool, dict[str, Any]]:
        """Whether to load the source's own weights, and the other options."""
        options = dict(self.options)
        wanted = options.pop("pretrained", self.pretrained)
        if not isinstance(wanted, bool):
            raise UsageError(f"model option pretrained must be true or false, got {wanted!r}")
        if wanted and not self.pretrained:
            raise UsageError(f"{self.text} is given other weights: leave pretrained=true out")
        return wanted, options

    def require_own_weights(self) -> None:
        """Refuses to train or fill a model that holds its weights itself."""
        if not self.pretrained:
            raise UsageError(
                f"{self.text} holds its weights itself: it cannot be trained, and takes no others, "
                "so leave --checkpoint out"
            )


def parse_model(text: str | ModelSpec) -> ModelSpec:
    """Takes `[NAME=]MODEL[,key=value...][+REMEDY...]` apart and finds the source of the model.

    >>> parse_model("tv:mobilenet_v2=tv:mobilenet_v2,weights=IMAGENET1K_V1").label
    'tv:mobilenet_v2'
    """
    if isinstance(text, ModelSpec):
        return text
    label, text = _split_label(text)
    text, remedies = _split_remedies(text)
    if not text.strip():
        raise UsageError("a model name cannot be empty: see `shiftbench list models`")
    if _exists(text) and Path(text).is_dir():
        return ModelSpec(text, EXPORTED, text, remedies=remedies, label=label)
    name, options = _split_options(text)
    source, name = _split_source(name, text)
    if source == "onnx":
        text = f"onnx:{text.removeprefix('onnx:')}"
    return ModelSpec(text, source, name, options, remedies, label)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # longer than a file's name can be, as a list of prompts is
        return False


def _split_label(text: str) -> tuple[str | None, str]:
    match = _LABEL.match(text)
    if match is None or _exists(text):
        return None, text
    label, model = match.groups()
    # A path may hold `=`: behind a colon, what follows must be a model that says its source.
    has_source = model.partition(":")[0] in SOURCES or _FUNCTION.match(model)
    named = has_source if ":" in label else "/" not in label
    return (label, model) if named else (None, text)


def _split_source(name: str, text: str) -> tuple[str, str]:
    """Which source a name belongs to, and what that knows it by."""
    prefix, colon, rest = name.partition(":")
    if _FUNCTION.fullmatch(name):
        return "python", name
    if colon and prefix in SOURCES:
        return prefix, rest
    if name.endswith(".onnx"):
        return "onnx", name
    if name.endswith(".py"):
        raise UsageError(f"expected FILE.py:FUNCTION, got {text!r}: name the function to call")
    if name.endswith((".pt", ".pth", ".ckpt", ".safetensors")):
        raise UsageError(
            f"{text!r} holds weights, and the network is not in it: name the network with --model, "
            f"and give --checkpoint {name}"
        )
    if colon and not _exists(name):
        raise unknown_name("model source", prefix, SOURCES)
    return "bundled", name


def _split_options(text: str) -> tuple[str, dict[str, Any]]:
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
    """Splits at commas outside brackets and quotes, so that `img_size=(64,64)` stays whole."""
    words, depth, start, quote = [], 0, 0, ""
    for i, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and text[i - 1 : i] in ("=", "(", "[", ","):
            quote = character
        depth += 0 if quote else (character in "([{") - (character in ")]}")
        if character == "," and depth == 0 and not quote:
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


def _split_remedies(text: str) -> tuple[str, str]:
    """A model's name, and the remedies that follow it; the `+` of a+b/net.py:build is no remedy."""
    match = _REMEDIES.match(text.strip())
    if match is None:
        return text, ""
    from aft_models.errors import AftModelsError
    from aft_models.repair import parse

    try:
        return match[1], "+".join(map(str, parse(match[2][1:])))
    except AftModelsError as error:
        raise UsageError(str(error)) from error


def require_one_model(names: Iterable[str]) -> None:
    """Refuses one file of weights for several models; those that differ in remedies share it.

    >>> require_one_model(["timm:resnet50", "timm:resnet50+circular+aps"])
    """
    models = {parse_model(name).text for name in names}
    if len(models) != 1:
        raise UsageError(
            f"--checkpoint holds the weights of one --model, and {len(models)} were given"
        )


def parse_models(texts: Iterable[str]) -> list[ModelSpec]:
    """The models of one command; those of the same name are told apart by their folders.

    >>> [str(model) for model in parse_models(["mine=timm:resnet18", "timm:resnet18"])]
    ['mine', 'timm:resnet18']

    Raises:
        UsageError: Two models are given the same name.
    """
    specs = [parse_model(text) for text in dict.fromkeys(texts)]
    names, parents = [str(spec) for spec in specs], 0
    while repeated := _repeated(names):
        parents += 1
        longer = [
            spec.shown(parents) if name in repeated else name
            for spec, name in zip(specs, names, strict=True)
        ]
        if longer == names:
            raise UsageError(
                f"two models are called {min(repeated)!r}: give each a name of its own, as in "
                "--model first=FILE.py:build"
            )
        names = longer
    return [
        spec if name == str(spec) else replace(spec, label=name)
        for spec, name in zip(specs, names, strict=True)
    ]


def _repeated(names: list[str]) -> set[str]:
    """The names that would share the folder of a record."""
    folders = [file_safe(name) for name in names]
    return {name for name, folder in zip(names, folders, strict=True) if folders.count(folder) > 1}
