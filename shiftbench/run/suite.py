"""A whole benchmark as one YAML file: models, data, and what to measure of each.

    data: imagenet:/data
    attacks: [crop, bilinear]
    models:
      - timm:resnet50
      - {model: timm:resnet50, remedies: [circular, aps], limit: 5000}
      - pad: reflect  # a group: what it says holds for the models below it
        models: [timm:resnet18, timm:resnet34]

Keys are the fields of `Measurement` and `Settings`. What stands above holds for everything below,
unless that says otherwise. A list `measure` has one block of settings per run, for attacks of
different radii or limits; all of them go into one record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from shiftbench.data import DATA_SOURCES
from shiftbench.errors import UsageError, first_line
from shiftbench.files import file_safe
from shiftbench.models import name_models
from shiftbench.models.source import SOURCES
from shiftbench.registry import unknown_name
from shiftbench.run.job import Settings

SUITES = Path(__file__).resolve().parents[1] / "suites"
ENDINGS = (".yaml", ".yml")
_TYPES = {"int": int, "int | None": int, "bool": bool, "tuple[str, ...]": tuple}
_WORDS = {
    int: "a whole number",
    bool: "true or false",
    str: "a word",
    tuple: "a list of words",
    list: "a list",
}
_SETTINGS = {field.name: _TYPES.get(str(field.type), str) for field in fields(Settings)}
_ABOUT_MODEL = ("model", "name", "checkpoint", "strip_prefix", "data", "split", "class_map")
_KEYS = {**_SETTINGS, **dict.fromkeys(_ABOUT_MODEL, str), "remedies": tuple, "measure": list}


@dataclass(frozen=True)
class Measurement:
    """One run of a suite: a model on a data set with some settings."""

    model: str  # what `load_model` takes, remedies included
    settings: Settings
    data: str = "scenes"
    name: str | None = None  # None: as the model is called by itself
    checkpoint: Path | None = None
    strip_prefix: str | None = None
    split: str | None = None
    class_map: Path | None = None

    @property
    def shown(self) -> str:
        """What messages call the model."""
        return self.name or self.model


def suite_names() -> list[str]:
    """The suites that come with the package.

    >>> suite_names()
    ['board', 'paper']
    """
    return sorted(file.stem for file in SUITES.glob("*.yaml"))


def read_suite(
    name: str,
    *,
    root: Path | None = None,
    data: Sequence[str] = (),
    models: Sequence[str] = (),
) -> list[Measurement]:
    """The runs of a suite, in the order of the file.

    Args:
        name: A file, or the name of a suite that comes with the package.
        root: Where relative paths begin. By default the folder of the file; of a suite that comes
            with the package, the current one.
        data: `NAME:PATH` for data sets of that name.
        models: Only these, or patterns such as `xcit*`.

    >>> [run.model for run in read_suite("board", models=["*_af.scenes"])]
    ['xcit_pico_6_p8_af.scenes']

    Raises:
        UsageError: The file cannot be read, has unknown keys or values, or a model twice.
    """
    file = _file(name)
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"cannot read the suite {file}: {first_line(error)}") from error
    start = root or (Path() if file.parent == SUITES else file.parent)
    if not isinstance(content, Mapping) or "models" not in content:
        raise UsageError(f"expected a key models in the suite {file}, such as models: [timm:vit]")
    try:
        runs = _named(list(_below(content, {}, start, ())))
        return _chosen(_at_places(runs, data), models)
    except UsageError as error:
        raise UsageError(f"suite {file}: {error}") from error


def _file(name: str) -> Path:
    if name.endswith(ENDINGS):
        if not Path(name).is_file():
            raise UsageError(f"there is no suite {name}: check the path")
        return Path(name)
    if name not in suite_names():
        raise UsageError(
            f"{unknown_name('suite', name, suite_names())}, or a file of yours: *.yaml"
        )
    return SUITES / f"{name}.yaml"


def _below(
    node: Any, above: Mapping[str, Any], root: Path, parents: tuple[int, ...]
) -> Iterator[Measurement]:
    """The runs of a model, or of all models of a group."""
    node = {"model": node} if isinstance(node, str) else node
    if not isinstance(node, Mapping):
        raise UsageError(f"expected a model's name, or keys and values, got {node!r}")
    if id(node) in parents:
        raise UsageError("a group of models contains itself: write its models out")
    _check(node, {**_KEYS, "models": list})
    own = {**above, **node}
    members = own.pop("models", None)
    if members is not None:
        if "model" in own:
            raise UsageError(f"model {own['model']!r} stands beside models: make it one of them")
        for member in members:
            yield from _below(member, own, root, (*parents, id(node)))
        return
    if "model" not in own:
        raise UsageError(f"expected a key model or models beside {', '.join(node)}")
    for block in own.pop("measure", None) or [{}]:
        if not isinstance(block, Mapping):
            raise UsageError(f"expected keys and values in measure, got {block!r}")
        _check(block, _SETTINGS)
        yield _measurement({**own, **block}, root)


def _check(node: Mapping[str, Any], known: Mapping[str, type]) -> None:
    """Refuses keys that nobody reads, and values of another type."""
    for key, value in node.items():
        if key not in known:
            raise unknown_name("key", str(key), known)
        if value is not None and not _fits(value, known[key]):
            raise UsageError(f"expected {_WORDS[known[key]]} for {key}, got {value!r}")


def _fits(value: Any, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return kind is bool and isinstance(value, bool)
    wider: dict[type, Any] = {
        str: str | int | float,
        tuple: str | list,
    }  # crop_pct: 0.9; attacks: crop
    return isinstance(value, wider.get(kind, kind))


def _measurement(values: dict[str, Any], root: Path) -> Measurement:
    values = {key: value for key, value in values.items() if value is not None}
    for key in [key for key in values if _KEYS[key] is tuple]:
        given = values[key]
        values[key] = (given,) if isinstance(given, str) else tuple(map(str, given))
    for key in [key for key in values if _KEYS[key] is str]:
        values[key] = str(values[key])
    model = "+".join([_at(root, values.pop("model")), *values.pop("remedies", ())])
    settings = {key: values.pop(key) for key in _SETTINGS if key in values}
    for key in {"checkpoint", "class_map"} & values.keys():
        values[key] = root / values[key]
    if "data" in values:
        values["data"] = _at(root, values["data"])
    return Measurement(model, Settings(**{"engine": "auto", **settings}), **values)


def _at(root: Path, text: str) -> str:
    """`imagenet:photos` or `net.py:build` with its path below the root, where there is such a file.

    Anything else keeps its meaning: names of models, and of data sets on the Hub.
    """
    sources = {*SOURCES, *DATA_SOURCES}
    parts = text.split(":")
    found = [part not in sources and part != "" and (root / part).exists() for part in parts]
    return ":".join(str(root / p) if at else p for p, at in zip(parts, found, strict=True))


def _named(runs: Sequence[Measurement]) -> list[Measurement]:
    """Gives models of one data set names that tell their records apart; refuses a model twice."""
    named = list(runs)
    for data in dict.fromkeys(run.data for run in runs):
        own = [i for i, run in enumerate(runs) if run.data == data]
        # The blocks of a measure stand together.
        models = [model for model, _ in groupby((runs[i].model, runs[i].name) for i in own)]
        folders = [file_safe(name or model) for model, name in models]
        for (model, name), folder in zip(models, folders, strict=True):
            if folders.count(folder) > 1:
                raise UsageError(
                    f"{name or model} on {data} stands twice: remove one, or give it a name"
                )
        texts = [model for model, name in models if name is None]
        names = dict(zip(texts, name_models(texts), strict=True))
        for i in own:
            if runs[i].name is None:
                named[i] = replace(runs[i], name=names[runs[i].model].name)
    return named


def _at_places(runs: Sequence[Measurement], data: Sequence[str]) -> list[Measurement]:
    places = {text.partition(":")[0]: text for text in data}
    known = {run.data.partition(":")[0] for run in runs}
    for name in places:
        if name not in known:
            raise unknown_name("data set", name, known)
    return [replace(run, data=places.get(run.data.partition(":")[0], run.data)) for run in runs]


def _chosen(runs: Sequence[Measurement], models: Sequence[str]) -> list[Measurement]:
    for pattern in models:
        if not any(_is_called(run, pattern) for run in runs):
            raise unknown_name("model", pattern, {run.shown for run in runs})
    return [run for run in runs if not models or any(_is_called(run, p) for p in models)]


def _is_called(run: Measurement, pattern: str) -> bool:
    names = {run.shown, run.model}
    return pattern in names or any(fnmatchcase(name, pattern) for name in names)
