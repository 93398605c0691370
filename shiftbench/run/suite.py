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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from aft_models.errors import AftModelsError
from shiftbench.data import DATA_SOURCES, ImageSet, load_dataset
from shiftbench.errors import ShiftbenchError, UsageError, first_line
from shiftbench.files import file_safe
from shiftbench.models import Model, load_model
from shiftbench.models.names import ModelName, parse_model
from shiftbench.models.sources import SOURCES
from shiftbench.registry import unknown_name
from shiftbench.run.engine import Engine, choose_device
from shiftbench.run.job import Settings, make_job
from shiftbench.run.progress import ProgressCallback
from shiftbench.run.runner import Execution, RunResult, measure, run
from shiftbench.run.store import Store

SUITES = Path(__file__).resolve().parents[1] / "suites"
ENDINGS = (".yaml", ".yml")
_TYPES = {"int": int, "int | None": int, "bool": bool, "tuple[str, ...]": tuple}
# What a value of each type may be written as (crop_pct: 0.9, attacks: crop), and its name.
_WRITTEN: dict[type, tuple[Any, str]] = {
    int: (int, "a whole number"),
    bool: (bool, "true or false"),
    str: (str | int | float, "a word"),
    tuple: (str | list, "a list of words"),
    list: (list, "a list"),
}
_SETTINGS = {field.name: _TYPES.get(str(field.type), str) for field in fields(Settings)}
_ABOUT_MODEL = ("model", "name", "checkpoint", "strip_prefix", "data", "split", "class_map")
_KEYS = {**_SETTINGS, **dict.fromkeys(_ABOUT_MODEL, str), "remedies": tuple, "measure": list}


@dataclass(frozen=True)
class Measurement:
    """One run of a suite: a model on a data set with some settings."""

    model: ModelName
    settings: Settings
    data: str = "scenes"
    checkpoint: Path | None = None
    strip_prefix: str | None = None
    split: str | None = None
    class_map: Path | None = None


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

    >>> [str(run.model) for run in read_suite("board", models=["*_af.scenes"])]
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
        entries = list(_entries(content, {}, start, ()))
        _refuse_twice(entries)
        return _chosen(_at_places([one for entry in entries for one in entry], data), models)
    except UsageError as error:
        raise UsageError(f"suite {file}: {error}") from error


def open_data(one: Measurement) -> ImageSet:
    """The images of a run."""
    return load_dataset(one.data, split=one.split, class_map=one.class_map)


@dataclass(frozen=True)
class Outcome:
    """How a run of a suite ended."""

    name: str  # of the model
    result: RunResult | None  # None: it failed
    error: ShiftbenchError | AftModelsError | None = None


def run_suite(
    runs: Sequence[Measurement],
    output: str | Path = "results/runs",
    *,
    load_data: Callable[[Measurement], ImageSet] = open_data,
    execution: Execution | None = None,
    fresh: bool = False,
    callback: Callable[[str], ProgressCallback | None] = lambda name: None,
) -> Iterator[Outcome]:
    """Measures what the records of a suite lack; a run that fails does not stop the others.

    Args:
        runs: Of `read_suite`.
        output: Folder of records.
        load_data: Opens the data set of a run.
        execution: How it is done: device, batch size, processes.
        fresh: Drop records and unfinished parts that are there, and start over.
        callback: Called with a title before each run; what it returns follows the progress.
    """
    execution = execution or Execution()
    previous, classifier = None, None  # the runs of a measure, which stand together, share theirs
    for number, one in enumerate(runs, 1):
        same_model = replace(one, settings=Settings())
        again = same_model == previous and classifier is not None
        classifier, previous = classifier if again else None, same_model
        try:
            with execution.group.raise_on_all_ranks():
                dataset = load_data(one)
                classifier = classifier or _load(one, dataset)
            title = f"{number}/{len(runs)} {classifier.name}" if len(runs) > 1 else classifier.name
            result = run(
                classifier,
                dataset,
                one.settings,
                output,
                execution=execution,
                fresh=fresh and not again,
                callback=callback(title),
            )
            yield Outcome(classifier.name, result)
        except (ShiftbenchError, AftModelsError) as error:
            yield Outcome(str(one.model), None, error)


@dataclass(frozen=True)
class Check:
    """What a run of a suite may take, or why it cannot be done."""

    model: str
    data: str
    images: int = 0
    passes: int = 0  # forward passes, at most: an image that breaks early needs fewer
    seconds: float = 0.0  # of this device, in PyTorch
    problem: str = ""  # empty: weights and data are at hand, and fit


def check_suite(
    runs: Sequence[Measurement],
    *,
    load_data: Callable[[Measurement], ImageSet] = open_data,
    device: str = "auto",
) -> Iterator[Check]:
    """Loads every model and data set of a suite, and measures one image of each, in memory.

    Weights that a source has to download are in its cache afterwards.

    >>> (check,) = check_suite(read_suite("board", models=["*_af.scenes"]), device="cpu")
    >>> check.images, check.problem
    (120, '')
    """
    place = choose_device(device)
    for one in runs:
        try:
            dataset = load_data(one)
            job = make_job(_load(one, dataset), dataset, one.settings, workers=0)
            engine = Engine(job.classifier, device=place, precision=one.settings.precision)
            first = job.keys[job.metrics[0].name][:1]
            images = replace(job, metrics=job.metrics[:1], keys={job.metrics[0].name: first})
            measure(images, Store(), engine)
            count = len(job.keys[job.metrics[0].name])
            passes = count + job.passes()
            seconds = passes * engine.seconds_per_image()
            yield Check(str(one.model), one.data, count, passes, seconds)
        except (ShiftbenchError, AftModelsError) as error:
            yield Check(str(one.model), one.data, problem=str(error))


def _load(one: Measurement, dataset: ImageSet) -> Model:
    names = dataset.class_names
    return load_model(
        one.model, checkpoint=one.checkpoint, strip_prefix=one.strip_prefix, class_names=names
    )


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


def _entries(
    node: Any, above: Mapping[str, Any], root: Path, parents: tuple[int, ...]
) -> Iterator[list[Measurement]]:
    """The runs of a model, or of each model of a group."""
    node = {"model": node} if isinstance(node, str) else node
    if not isinstance(node, Mapping):
        raise UsageError(f"expected a model's name, or keys and values, got {node!r}")
    if id(node) in parents:
        raise UsageError("a group of models contains itself: write its models out")
    own = {**above, **_checked(node, {**_KEYS, "models": list})}
    members = own.pop("models", None)
    if members is not None:
        if "model" in own:
            raise UsageError(f"model {own['model']!r} stands beside models: make it one of them")
        for member in members:
            yield from _entries(member, own, root, (*parents, id(node)))
        return
    if "model" not in own:
        raise UsageError(f"expected a key model or models beside {', '.join(node)}")
    blocks = own.pop("measure", None) or [{}]
    for block in blocks:
        if not isinstance(block, Mapping):
            raise UsageError(f"expected keys and values in measure, got {block!r}")
    yield [_measurement({**own, **_checked(block, _SETTINGS)}, root) for block in blocks]


def _checked(node: Mapping[str, Any], known: Mapping[str, type]) -> dict[str, Any]:
    """The values, each of its type; refuses keys that nobody reads, and other values."""
    values: dict[str, Any] = {}
    for key, value in node.items():
        if key not in known:
            raise unknown_name("key", str(key), known)
        kind = known[key]
        written, words = _WRITTEN[kind]
        fits = isinstance(value, written) and isinstance(value, bool) == (kind is bool)
        if value is not None and not fits:
            raise UsageError(f"expected {words} for {key}, got {value!r}")
        if kind is tuple and value is not None:
            value = (value,) if isinstance(value, str) else tuple(map(str, value))
        values[key] = str(value) if kind is str and value is not None else value
    return values


def _measurement(values: dict[str, Any], root: Path) -> Measurement:
    values = {key: value for key, value in values.items() if value is not None}
    model = parse_model("+".join([_at(root, values.pop("model")), *values.pop("remedies", ())]))
    model = replace(model, label=values.pop("name", model.label))
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


def _refuse_twice(entries: Sequence[Sequence[Measurement]]) -> None:
    """Refuses two models that would share a record."""
    folders = set[tuple[str, str]]()
    for first, *_ in entries:
        folder = file_safe(str(first.model)), first.data
        if folder in folders:
            raise UsageError(
                f"{first.model} on {first.data} stands twice: remove one, or give it a name"
            )
        folders.add(folder)


def _at_places(runs: Sequence[Measurement], data: Sequence[str]) -> list[Measurement]:
    places = {text.partition(":")[0]: text for text in data}
    known = {one.data.partition(":")[0] for one in runs}
    for name in places:
        if name not in known:
            raise unknown_name("data set", name, known)
    return [replace(one, data=places.get(one.data.partition(":")[0], one.data)) for one in runs]


def _chosen(runs: Sequence[Measurement], models: Sequence[str]) -> list[Measurement]:
    def is_called(one: Measurement, pattern: str) -> bool:
        names = (str(one.model), one.model.text)
        return pattern in names or any(fnmatchcase(name, pattern) for name in names)

    for pattern in models:
        if not any(is_called(one, pattern) for one in runs):
            raise unknown_name("model", pattern, {str(one.model) for one in runs})
    return [one for one in runs if not models or any(is_called(one, p) for p in models)]
