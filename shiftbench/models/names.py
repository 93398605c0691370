"""Model names: `mine=timm:resnet18,pretrained=false+circular+aps`, taken apart."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shiftbench.errors import UsageError
from shiftbench.files import file_safe
from shiftbench.models.source import SOURCES
from shiftbench.registry import unknown_name

if TYPE_CHECKING:
    from shiftbench.preprocessing import Preprocessing


@dataclass(frozen=True)
class ModelSpec:
    """A model name taken apart: `timm:resnet18,pretrained=false` without its prefix."""

    text: str  # as the user wrote it
    source: str  # which of `SOURCES` it belongs to
    name: str  # what the source knows it by
    options: Mapping[str, Any] = field(default_factory=dict)  # what follows the commas
    pretrained: bool = True  # with the source's own weights; else random ones, to be replaced
    # Asked of a model that is built without its weights, where its architecture leaves a choice.
    classes: int | None = None
    size: int | None = None  # side of its images in pixels
    seed: int = 0  # of its random weights
    # For models without classes or a head of their own: the classes of the data, and remedies.
    class_names: tuple[str, ...] = ()
    remedies: str = ""  # "circular+aps"; `loading` applies them where a source does not

    @property
    def path(self) -> Path | None:
        """The file or folder of this machine that the name holds, if any."""
        name = self.name.rpartition(":")[0] if self.source == "python" else self.name
        if self.source == "knn":  # the name of a backbone
            name = name.partition(":")[2]
        return Path(name) if name and Path(name).exists() else None

    def public_name(self, parents: int = 0) -> str:
        """How records call the model: without the folders of this machine but the last `parents`.

        >>> parse_name("timm:resnet18,pretrained=false").public_name()
        'timm:resnet18,pretrained=false'
        """
        words = [value for value in self.options.values() if isinstance(value, str)]
        words += [word.partition(":")[2] for word in words]  # reference=folder:/data/birds
        places = [str(self.path or ""), *(word for word in words if word and Path(word).exists())]
        text = self.text
        for place in filter(None, places):
            text = text.replace(place, "/".join(Path(place).resolve().parts[-1 - parents :]), 1)
        return text

    @property
    def architecture(self) -> str:
        """The public name alone, without options: what a card of weights calls the network."""
        if self.source == "bundled":
            return self.name.partition(".")[0]
        return parse_options(self.public_name())[0]

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


def parse_name(text: str) -> ModelSpec:
    """Takes a model name apart and finds the source that it belongs to.

    >>> parse_name("timm:resnet18,pretrained=false").options
    {'pretrained': False}
    """
    if not text.strip():
        raise UsageError("a model name cannot be empty: see `shiftbench list models`")
    name, options = parse_options(text)
    prefix, colon, rest = name.partition(":")
    file, _, function = name.rpartition(":")
    if file.endswith(".py") and function.isidentifier():
        return ModelSpec(text, "python", name, options)
    if colon and prefix in SOURCES:
        return ModelSpec(text, prefix, rest, options)
    if name.endswith(".onnx"):
        return ModelSpec(f"onnx:{text}", "onnx", name, options)
    if name.endswith(".py"):
        raise UsageError(f"expected FILE.py:FUNCTION, got {text!r}: name the function to call")
    if name.endswith((".pt", ".pth", ".ckpt", ".safetensors")):
        raise UsageError(
            f"{text!r} holds weights, and the network is not in it: name the network with --model, "
            f"and give --checkpoint {name}"
        )
    if colon and not Path(name).exists():
        raise unknown_name("model source", prefix, SOURCES)
    return ModelSpec(text, "bundled", name, options)


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


_SUFFIX = re.compile(r"^(.+?)((?:\+[a-z]\w*(?::\w*)?)+)$")


def split_remedies(text: str) -> tuple[str, str]:
    """A model's name, and the remedies that follow it.

    >>> split_remedies("timm:resnet50,pretrained=false+circular+blurpool:3")
    ('timm:resnet50,pretrained=false', 'circular+blurpool:3')
    >>> split_remedies("a+b/net.py:build")
    ('a+b/net.py:build', '')
    """
    match = _SUFFIX.match(text.strip())
    if match is None:
        return text, ""
    from aft_models.errors import AftModelsError
    from aft_models.repair import parse

    try:
        return match[1], "+".join(map(str, parse(match[2][1:])))
    except AftModelsError as error:
        raise UsageError(str(error)) from error


def require_one_model(names: Sequence[str]) -> None:
    """Refuses one file of weights for several models; those that differ in remedies share it.

    >>> require_one_model(["timm:resnet50", "timm:resnet50+circular+aps"])
    """
    models = {split_remedies(name)[0] for name in names}
    if len(models) != 1:
        raise UsageError(
            f"--checkpoint holds the weights of one --model, and {len(models)} were given"
        )


@dataclass(frozen=True)
class NamedModel:
    """A model of a command, and how its record and tables call it."""

    name: str | None  # None: as the model is called by itself
    text: str  # what `load_model` takes


_NAMED = re.compile(r"^\s*([^=,:/\\]+?)\s*=(.+)$", re.DOTALL)


def name_models(texts: Iterable[str]) -> list[NamedModel]:
    """Reads `NAME=MODEL` or `MODEL`, and tells models of the same file name apart by folder.

    >>> [model.name for model in name_models(["mine=timm:resnet18", "timm:resnet18"])]
    ['mine', None]

    Raises:
        UsageError: Two models are given the same name.
    """
    models = []
    for text in dict.fromkeys(texts):
        match = _NAMED.match(text)
        models.append(NamedModel(match[1], match[2].strip()) if match else NamedModel(None, text))
    plain = [model.name or _public_name(model.text) for model in models]
    shown, parents = plain, 0
    while again := _repeated(shown):
        parents += 1
        longer = [
            _public_name(model.text, parents) if name in again and not model.name else name
            for model, name in zip(models, shown, strict=True)
        ]
        if longer == shown:
            raise UsageError(
                f"two models are called {min(again)!r}: give each a name of its own, as in "
                "--model first=FILE.py:build"
            )
        shown = longer
    return [
        model if name == before else replace(model, name=name)
        for model, name, before in zip(models, shown, plain, strict=True)
    ]


def _repeated(names: list[str]) -> set[str]:
    """The names that would share the folder of a record."""
    folders = [file_safe(name) for name in names]
    return {name for name, folder in zip(names, folders, strict=True) if folders.count(folder) > 1}


def _public_name(text: str, parents: int = 0) -> str:
    """How a model is called by itself, with some of its folders."""
    plain, remedies = split_remedies(text)
    if Path(plain).is_dir():  # exported by training: the files have the name of their card
        weights = [file.stem for file in Path(plain).glob("*.safetensors")]
        name = "/".join([*Path(plain).resolve().parts[-parents:]] if parents else weights)
    else:
        name = parse_name(plain).public_name(parents)
    return f"{name}+{remedies}" if remedies else name
