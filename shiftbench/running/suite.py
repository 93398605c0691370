"""Suites: a YAML file with defaults and a flat list of runs.

    defaults: {data: imagenet:/data, attacks: [crop, bilinear]}
    runs:
      - {model: timm:resnet50}
      - {model: timm:resnet50+align:8, attacks: [crop, {attack: half, max_shift: 3, limit: 200}]}

Keys are the fields of `RunSpec`; the options of `shiftbench run` fill the same fields.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from aft_models.errors import AftModelsError
from aft_models.remedies.inputs import unbound
from shiftbench.data import DATA_SOURCES, ImageSet, load_dataset
from shiftbench.errors import ShiftbenchError, UsageError, first_line
from shiftbench.files import file_safe
from shiftbench.models import Model, load_model, parse_model
from shiftbench.models.exported import stated_view
from shiftbench.models.names import FILE_SOURCES
from shiftbench.models.sources import SOURCES
from shiftbench.records.folder import record_folder
from shiftbench.registry import unknown_name
from shiftbench.running import ProgressCallback
from shiftbench.running.finished import find_finished, note_finished, run_digest
from shiftbench.running.job import AttackSpec, Settings
from shiftbench.running.runner import Execution, RunResult, run

SUITES = Path(__file__).resolve().parents[1] / "suites"  # those of the package
ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True, kw_only=True)
class RunSpec(Settings):
    """One run: a model, a data set and settings.

    >>> RunSpec(model="timm:resnet50+align:12", attacks=("crop",)).shown
    'timm:resnet50+align:12'
    """

    model: str  # as `--model` spells it
    name: str | None = None  # in records and tables; None: follows from the model
    checkpoint: Path | None = None  # weights: a file, or a folder of `shiftbench train`
    strip_prefix: str | None = None  # part of the checkpoint's keys to remove
    data: str = "scenes"  # as `--data` spells it
    split: str | None = None  # None: the usual test split
    class_map: Path | None = None  # JSON or CSV: class name to class index
    download: bool = False  # download the data set if it is missing

    @property
    def shown(self) -> str:
        """Name of the model in records and tables."""
        return self.name or str(parse_model(self.model))

    def changed(self, **given: Any) -> RunSpec:
        """Replace fields; a new max shift, step or attack limit is that of every attack."""
        own = {"max_shift": "max_shift", "step": "step", "attack_limit": "limit"}
        unset: dict[str, Any] = {key: None for name, key in own.items() if name in given}
        attacks = tuple(replace(attack, **unset) for attack in self.attack_specs())
        return replace(self, **{"attacks": attacks, **given})

    def load_data(self) -> ImageSet:
        """Open the data set."""
        return load_dataset(
            self.data, split=self.split, download=self.download, class_map=self.class_map
        )

    def load_model(self, dataset: ImageSet) -> Model:
        """Load the model for a data set."""
        spec = parse_model(self.model)
        return load_model(
            replace(spec, label=self.name or spec.label),
            checkpoint=self.checkpoint,
            strip_prefix=self.strip_prefix,
            class_names=dataset.class_names,
        )


@dataclass(frozen=True)
class Outcome:
    """The end of one of several runs."""

    spec: RunSpec
    result: RunResult | None  # None: the run failed
    error: ShiftbenchError | AftModelsError | None = None


def run_all(
    specs: Sequence[RunSpec],
    output: str | Path = "results/runs",
    *,
    execution: Execution | None = None,
    fresh: bool = False,
    prepare: Callable[[ImageSet], ImageSet] = lambda dataset: dataset,
    callback: Callable[[str], ProgressCallback | None] = lambda title: None,
) -> Iterator[Outcome]:
    """Run one specification after the other; a run that fails does not stop the others.

    All models on the same images have one task and one scale, and their random crops have one span,
    the largest that all allow.

    Args:
        specs: Of `read_suite`, or made in Python.
        output: Folder of records.
        execution: Device, batch size, workers, shard.
        fresh: Discard existing records.
        prepare: Applied to every data set, for example to take a subset.
        callback: Called with the title of each run; returns the callback of its progress.
    """
    opened: dict[tuple[str, str | None, Path | None], ImageSet] = {}
    tasks: dict[tuple[str, str | None], tuple[str, str]] = {}  # images -> first model, its task
    for number, spec in enumerate(with_shared_view(specs), 1):
        source = spec.data, spec.split, spec.class_map
        title = f"{number}/{len(specs)} {spec.shown}" if len(specs) > 1 else spec.shown
        try:
            if source not in opened:
                opened[source] = prepare(spec.load_data())
            dataset = opened[source]
            folder = record_folder(Path(output), spec.shown, dataset.name)
            digest = run_digest(spec, spec.model, spec.checkpoint, dataset)
            done = None if fresh else find_finished(folder, digest)
            if done is None:
                model = spec.load_model(dataset)
                _require_one_task(tasks, spec, model.task.name)
                show = callback(title)
                done = run(
                    model, dataset, spec, output, execution=execution, fresh=fresh, callback=show
                )
                note_finished(folder, digest, done)
            elif done.record is not None:
                _require_one_task(tasks, spec, done.record.conditions["task"])
            yield Outcome(spec, done)
        except (ShiftbenchError, AftModelsError) as error:
            yield Outcome(spec, None, error)


def _require_one_task(
    tasks: dict[tuple[str, str | None], tuple[str, str]], spec: RunSpec, task: str
) -> None:
    """Raise UsageError if an earlier model on the same images has another task."""
    name, first = tasks.setdefault((spec.data, spec.split), (spec.shown, task))
    if task != first:
        raise UsageError(
            f"expected models of one task on {spec.data}, got {name} for {first} and "
            f"{spec.shown} for {task}. Use a command for each task"
        )


def with_shared_view(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """Set the margin and the scale to the largest that runs on the same images need.

    >>> plain, wide = RunSpec(model="timm:resnet50"), RunSpec(model="timm:resnet50+align:8")
    >>> [(spec.remedy_margin, spec.scale) for spec in with_shared_view([plain, wide])]
    [(8, 2), (8, 2)]
    """
    margins: dict[tuple[str, str | None], int] = {}
    scales: dict[tuple[str, str | None], int] = {}
    for spec in specs:
        images = spec.data, spec.split
        margin, scale = _view(spec.model)
        margins[images] = max(margins.get(images, 0), margin, spec.remedy_margin)
        source = spec.data.partition(":")[0]
        rendered = source in DATA_SOURCES and DATA_SOURCES.get(source).rendered
        scales[images] = max(scales.get(images, 1), scale, spec.needed_scale(rendered=rendered))
    return [
        replace(
            spec,
            remedy_margin=margins[spec.data, spec.split],
            scale=spec.scale or scales[spec.data, spec.split],
        )
        for spec in specs
    ]


def _view(text: str) -> tuple[int, int]:
    """Return margin (network pixels) and scale of a model's input remedies; (0, 1) if unknown."""
    try:
        name = parse_model(text)
        margin, scale = stated_view(Path(name.name)) if name.source in FILE_SOURCES else (0, 1)
        for spec in name.remedies:
            if spec.remedy.input:
                remedy = unbound(spec)
                margin, scale = margin + remedy.margin, scale * remedy.scale
    except (ShiftbenchError, AftModelsError):
        return 0, 1  # the run itself reports the error
    return margin, scale


def suite_names() -> list[str]:
    """List the suites that come with the package.

    >>> suite_names()
    ['paper']
    """
    return sorted(file.stem for file in SUITES.glob("*.yaml"))


def read_suite(
    name: str | Path,
    *,
    root: Path | None = None,
    data: Sequence[str] = (),
    models: Sequence[str] = (),
) -> list[RunSpec]:
    """Read the runs of a suite, in the order of the file.

    Args:
        name: A file, or the name of a suite that comes with the package.
        root: Start of relative paths. Default: the folder of the file, or the current folder for a
            suite of the package.
        data: `NAME:PATH`, a path for every data set of that name.
        models: Keep only these models, or patterns such as `xcit*`.

    >>> [spec.shown for spec in read_suite("paper", models=["*nano*af"])]
    ['xcit_nano_12_p16_af']

    Raises:
        UsageError: The file cannot be read, a key or value is wrong, or a record appears twice.
    """
    file = _file(str(name))
    start = root or (Path() if file.parent == SUITES else file.parent)
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        runs = _located(_runs(content, start), data)
        names = Counter((file_safe(run.shown), run.data) for run in runs)
        for run in runs:
            if names[file_safe(run.shown), run.data] > 1:
                raise UsageError(
                    f"expected one run per record, got {run.shown} on {run.data} twice. Remove "
                    "one, or set its name"
                )
        return _chosen(runs, models)
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"cannot read suite {file}: {first_line(error)}") from error
    except UsageError as error:
        raise UsageError(f"suite {file}: {error}") from error


def _file(name: str) -> Path:
    if name.endswith(ENDINGS):
        if not Path(name).is_file():
            raise UsageError(f"cannot read suite {name}: there is no such file")
        return Path(name)
    if name not in suite_names():
        error = unknown_name("suite", name, suite_names())
        raise UsageError(f"{error}. A suite of your own is a file that ends in .yaml")
    return SUITES / f"{name}.yaml"


def _runs(content: Any, root: Path) -> list[RunSpec]:
    keys = ("defaults", "runs")
    if not isinstance(content, Mapping) or not isinstance(content.get("runs"), list):
        raise UsageError("expected the keys defaults and runs, where runs is a list")
    for key in content.keys() - {*keys}:
        raise unknown_name("key", str(key), keys)
    defaults = content.get("defaults") or {}
    for entry in [defaults, *content["runs"]]:
        if not isinstance(entry, Mapping):
            raise UsageError(f"expected keys and values such as {{model: NAME}}, got {entry!r}")
    return [_run({**defaults, **entry}, root) for entry in content["runs"]]


def _run(values: Mapping[str, Any], root: Path) -> RunSpec:
    if not values.get("model"):
        raise UsageError(f"expected the key model beside {', '.join(map(str, values)) or 'it'}")
    run = _build(RunSpec, values)
    paths = {
        key: root / path
        for key in ("checkpoint", "class_map")
        if (path := getattr(run, key)) is not None
    }
    return replace(
        run, model=_located_name(run.model, root), data=_located_name(run.data, root), **paths
    )


def _located_name(text: str, root: Path) -> str:
    """Put paths below the root that exist there: `imagenet:photos`, `net.py:build,weights=x.onnx`.

    Other names stay: those of models, and of data sets on a hub.
    """
    names = {*SOURCES, *DATA_SOURCES, ""}
    parts = re.split("([:,]|[^:,=]+=)", text)
    for i, part in enumerate(parts):
        file, plus, remedies = part.partition("+")
        if part not in names and (root / part).exists():
            parts[i] = str(root / part)
        elif plus and file and (root / file).exists():
            parts[i] = f"{root / file}+{remedies}"
    return "".join(parts)


Built = TypeVar("Built", RunSpec, AttackSpec)
WORDS = {int: "an integer", bool: "true or false", str: "a text", Path: "a path"}


def _build(kind: type[Built], values: Mapping[str, Any]) -> Built:
    """Build a dataclass from YAML; an unknown key or a value of another type is an error."""
    hints = get_type_hints(kind)
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key not in hints:
            raise unknown_name("key", str(key), [field.name for field in fields(kind)])
        if value is not None:
            checked[key] = _value(key, value, hints[key])
    return kind(**checked)


def _value(key: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        items = value if isinstance(value, list) else [value]
        return tuple(
            _build(AttackSpec, item)
            if key == "attacks" and isinstance(item, Mapping)
            else _value(key, item, str)
            for item in items
        )
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
    kind = kinds[0]
    written = {str: (str, int, float), Path: (str,)}.get(kind, (kind,))  # crop_pct: 0.9
    if not isinstance(value, written) or isinstance(value, bool) != (kind is bool):
        raise UsageError(f"expected {WORDS[kind]} for {key}, got {value!r}")
    return kind(value)


def _located(runs: Sequence[RunSpec], data: Sequence[str]) -> list[RunSpec]:
    """Apply `NAME:PATH` to the data sets of that name."""
    paths = {text.partition(":")[0]: text for text in data}
    known = {run.data.partition(":")[0] for run in runs}
    for name in paths.keys() - known:
        raise unknown_name("data set of the suite", name, known)
    return [replace(run, data=paths.get(run.data.partition(":")[0], run.data)) for run in runs]


def _chosen(runs: Sequence[RunSpec], models: Sequence[str]) -> list[RunSpec]:
    """Keep the runs whose model matches a name or pattern."""

    def matches(run: RunSpec, pattern: str) -> bool:
        names = (run.shown, run.model)
        return pattern in names or any(fnmatchcase(name, pattern) for name in names)

    for pattern in models:
        if not any(matches(run, pattern) for run in runs):
            raise unknown_name("model of the suite", pattern, {run.shown for run in runs})
    return [run for run in runs if not models or any(matches(run, p) for p in models)]
