"""Names of models: `mine=timm:resnet50,drop_path_rate=0.1+circular+align:12:1`. Needs no torch.

    model  = [ label "=" ] , base , { "+" , remedy } ;
    base   = [ source ":" ] , name , { "," , key , "=" , value } ;
    remedy = word , { ":" , digits } ;
    value  = Python literal | "true" | "false" | "none" | word ;
    name   = FILE.py ":" function | FILE.onnx | FILE.pt2 | TorchScript file | FOLDER with a card
           | architecture [ "." tag ] | the source's own name ;

A text that exists as a path is a path. Separators inside brackets and quotes do not count.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aft_models.errors import AftModelsError
from aft_models.names import literal, split
from aft_models.remedies import RemedySpec, join_remedies, parse_remedies
from shiftbench.errors import UsageError
from shiftbench.files import file_safe
from shiftbench.models.sources import SOURCES
from shiftbench.registry import unknown_name

EXPORTED = "exported"  # source of a folder that training wrote: its card names the network
WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors")  # files of weights, unless they are TorchScript

_REMEDIES = re.compile(r"^(.+?)((?:\+[a-z]\w*(?::\w*)*)*)$", re.DOTALL)
_LABEL = re.compile(r"^\s*([^=,\\]+?)\s*=\s*(.+)$", re.DOTALL)
_FUNCTION = re.compile(r"[^,]+\.py:[^\W\d]\w*")  # FILE.py:FUNCTION


FILE_SOURCES = ("onnx", "script", "pt2")  # one file per model, which names it


@dataclass(frozen=True)
class ModelName:
    """A model's name, split into its parts.

    >>> name = parse_model("mine=timm:resnet18,pretrained=false+circular")
    >>> name.label, name.source, name.name, name.options, str(name.remedies[0])
    ('mine', 'timm', 'resnet18', {'pretrained': False}, 'circular')
    """

    text: str  # source, name and options, as written
    source: str  # a name of SOURCES, or EXPORTED
    name: str  # the source's own name of the model
    options: Mapping[str, Any] = field(default_factory=dict)  # after the commas
    remedies: tuple[RemedySpec, ...] = ()  # in the order of application
    label: str | None = None  # name in records and tables, if the user gave one

    def __str__(self) -> str:
        return self.shown()

    def shown(self, parents: int = 0) -> str:
        """Return the name in records and tables; see `public_name` for `parents`."""
        words = filter(None, (self.public_name(parents), join_remedies(self.remedies)))
        return self.label or "+".join(words)

    def public_name(self, parents: int = 0) -> str:
        """Return source, name and options, without the folders of paths except the last `parents`.

        >>> parse_model("timm:resnet18,pretrained=false+circular").public_name()
        'timm:resnet18,pretrained=false'
        """
        if self.source == EXPORTED and not parents:  # files are named by their card
            return "/".join(file.stem for file in Path(self.name).glob("*.safetensors"))
        if self.source in FILE_SOURCES and not parents:  # options are part of a record's identity
            return Path(self.name).name
        words = [self.name, *(word for word in self.options.values() if isinstance(word, str))]
        words += [word.rpartition(":")[0] for word in words]  # FILE.py:FUNCTION
        text = self.text
        for path in (word for word in words if word and _exists(word)):
            text = text.replace(path, "/".join(Path(path).resolve().parts[-1 - parents :]), 1)
        return text

    @property
    def architecture(self) -> str:
        """The public name without options: the name of the network on a card of weights."""
        if self.source == "bundled":
            return self.name.partition(".")[0]
        return split(self.public_name(), ",")[0].strip()


def parse_model(text: str | ModelName) -> ModelName:
    """Split `[LABEL=]MODEL[,key=value...][+REMEDY...]` and find the source of the model.

    >>> parse_model("tv:mobilenet_v2=tv:mobilenet_v2,weights=IMAGENET1K_V1").label
    'tv:mobilenet_v2'
    """
    if isinstance(text, ModelName):
        return text
    label, text = _split_label(text)
    base, remedies = _split_remedies(text.strip())
    if _exists(base) and Path(base).is_dir():
        return ModelName(base, EXPORTED, base, remedies=remedies, label=label)
    name, *pairs = split(base, ",")
    source, name = _split_source(name.strip(), base)
    return ModelName(base, source, name, _options(pairs, base), remedies, label)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # longer than a file name can be, such as a list of prompts
        return False


def _split_label(text: str) -> tuple[str | None, str]:
    match = _LABEL.match(text)
    if match is None or _exists(text):
        return None, text
    label, model = match.groups()
    # A path may contain "=": behind a colon only a model with a source can follow.
    has_source = model.partition(":")[0] in SOURCES or _FUNCTION.match(model)
    named = has_source if ":" in label else "/" not in label
    return (label, model) if named else (None, text)


def _split_remedies(text: str) -> tuple[str, tuple[RemedySpec, ...]]:
    match = _REMEDIES.match(text)
    if match is None:
        raise UsageError("a model name cannot be empty: see `shiftbench list models`")
    if _exists(text):  # the "+" of a path is no remedy
        return text, ()
    try:
        return match[1], parse_remedies(match[2][1:])
    except AftModelsError as error:
        raise UsageError(str(error)) from error


def _split_source(name: str, text: str) -> tuple[str, str]:
    """Return the source of a model, and the source's own name of the model."""
    prefix, colon, rest = name.partition(":")
    suffix = Path(name).suffix
    if _FUNCTION.fullmatch(name):
        return "python", name
    if colon and prefix in SOURCES:
        return prefix, rest
    if suffix in (".onnx", ".pt2"):
        return suffix[1:], name
    if suffix == ".torchscript" or (suffix in WEIGHTS and _is_script(Path(name))):
        return "script", name
    if suffix == ".py":
        raise UsageError(f"expected FILE.py:FUNCTION, got {text!r}. Name the function to call")
    if suffix in WEIGHTS:
        raise UsageError(
            f"{text!r} contains weights but no network. Name the network with --model, and give "
            f"--checkpoint {name}"
        )
    if colon and not _exists(name):
        raise unknown_name("model source", prefix, SOURCES)
    return "bundled", name


def _is_script(path: Path) -> bool:
    """Return True if a file is a TorchScript archive: a zip file with code beside the weights."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in entry for entry in archive.namelist())


def _options(pairs: list[str], text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip().isidentifier():
            raise UsageError(
                f"expected key=value after the comma in model {text!r}, got {pair!r}. Add a value"
            )
        options[key.strip()] = literal(value.strip())
    return options


def require_one_model(names: Iterable[str]) -> None:
    """Raise UsageError if a checkpoint is given for several models; remedies may differ.

    >>> require_one_model(["timm:resnet50", "timm:resnet50+circular+aps"])
    """
    models = {parse_model(name).text for name in names}
    if len(models) != 1:
        raise UsageError(
            f"expected one --model for the weights of --checkpoint, got {len(models)}. Evaluate "
            "them one at a time"
        )


def parse_models(texts: Iterable[str]) -> list[ModelName]:
    """Parse the models of one command; equal names are distinguished by their folders.

    >>> [str(model) for model in parse_models(["mine=timm:resnet18", "timm:resnet18"])]
    ['mine', 'timm:resnet18']

    Raises:
        UsageError: Two models have the same name.
    """
    models = [parse_model(text) for text in dict.fromkeys(texts)]
    names, parents = [str(model) for model in models], 0
    while repeated := _repeated(names):
        parents += 1
        longer = [
            model.shown(parents) if name in repeated else name
            for model, name in zip(models, names, strict=True)
        ]
        if longer == names:
            raise UsageError(
                f"two models are called {min(repeated)!r}. Give each a name of its own, as in "
                "--model first=FILE.py:build"
            )
        names = longer
    return [
        model if name == str(model) else replace(model, label=name)
        for model, name in zip(models, names, strict=True)
    ]


def _repeated(names: list[str]) -> set[str]:
    """Return the names that would share the folder of a record."""
    folders = [file_safe(name) for name in names]
    return {name for name, folder in zip(names, folders, strict=True) if folders.count(folder) > 1}
