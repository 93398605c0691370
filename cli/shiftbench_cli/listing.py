"""`shiftbench list`: names for other commands. Modules are imported when a kind is listed."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from operator import attrgetter
from typing import Any

import click

from shiftbench_cli import options, render
from shiftbench_cli.options import Choice

PAPER_MODELS = tuple(
    f"xcit_{size}_12_p16{variant}" for size in ("nano", "small") for variant in ("", "_aps", "_af")
)
Entry = Mapping[str, str | bool]  # columns of a line; the first one is `name`


def _models() -> list[Entry]:
    from shiftbench.models import list_models

    return [asdict(entry) for entry in list_models()]


def _metrics() -> list[Entry]:
    from shiftbench.metrics import METRICS

    summaries = {name: (METRICS.get(name).__doc__ or "").splitlines()[0] for name in METRICS}
    return [{"name": name, "summary": summary} for name, summary in summaries.items()]


def _suites() -> list[Entry]:
    from shiftbench.running.suite import SUITES, suite_names

    first = {
        name: (SUITES / f"{name}.yaml").read_text("utf-8").splitlines()[0] for name in suite_names()
    }
    return [{"name": name, "summary": line.lstrip("# ")} for name, line in first.items()]


def _registered(
    module: str, registry: str, **columns: Callable[[Any], str | bool]
) -> Callable[[], list[Entry]]:
    """Return a function that lists a registry, with a column per value of its entries."""

    def entries() -> list[Entry]:
        things = getattr(import_module(module), registry)
        return [
            {"name": name, **{c: value(things.get(name)) for c, value in columns.items()}}
            for name in things
        ]

    return entries


SUMMARY = attrgetter("summary")
KINDS: Mapping[str, Callable[[], Sequence[Entry]]] = {
    "models": _models,
    "datasets": _registered("shiftbench.data", "DATA_SOURCES", summary=SUMMARY),
    "attacks": _registered(
        "shiftbench.shifts", "ATTACKS", step=lambda a: f"{a.step} {a.unit}", summary=SUMMARY
    ),
    "metrics": _metrics,
    "remedies": _registered(
        "aft_models.remedies",
        "REMEDIES",
        **{"fine-tune": attrgetter("needs_finetuning")},
        summary=SUMMARY,
    ),
    "recipes": _registered("aft_models.training.recipes", "RECIPES", summary=SUMMARY),
    "suites": _suites,
}


def _recipe_fields(name: str) -> list[Entry]:
    """List every field of a recipe, with a column per group of models that it adjusts to."""
    from aft_models.training.recipes import get_recipe

    recipe = get_recipe(name)
    groups: dict[tuple[str, ...], list[str]] = {}  # values -> models
    for model in PAPER_MODELS if recipe.adjust else ("value",):
        own = recipe.for_model(model)
        fields = {**own.settings(), "peak_lr": own.peak_lr}
        groups.setdefault(tuple(map(str, fields.values())), []).append(model)
    columns = {"\n".join(models): values for values, models in groups.items()}
    return [
        {"name": field, **{models: values[i] for models, values in columns.items()}}
        for i, field in enumerate(fields)
    ]


def _matches(name: str, pattern: str) -> bool:
    """Match like a shell; a plain word matches anywhere, and `swin*` also timm:swin_..."""
    if not any(character in pattern for character in "*?["):
        pattern = f"*{pattern}*"
    return any(fnmatch.fnmatch(part, pattern) for part in (name, name.rpartition(":")[2]))


@options.command("list")
@click.argument("what", type=Choice(list(KINDS)), metavar="KIND")
@click.argument("pattern", default="*")
@options.printed("json")
@options.plugins()
def command(what: str, pattern: str, kind: str) -> int:
    """List names of a KIND; PATTERN filters them, for example 'xcit*af*'.

    KIND is models, datasets, attacks, metrics, remedies, recipes or suites. The name of a recipe
    lists its fields, with a column per group of models that it adjusts to.
    """
    entries = [entry for entry in KINDS[what]() if _matches(str(entry["name"]), pattern)]
    if what == "recipes" and [entry["name"] for entry in entries] == [pattern]:
        entries = _recipe_fields(pattern)
    if kind == "json":
        render.print_json(entries)
    elif entries:
        columns = list(entries[0])
        rows = [[_cell(entry[column]) for column in columns] for entry in entries]
        render.print_table(columns, rows)
    if not entries:
        render.note(f"no {what} match {pattern!r}. See `shiftbench list {what}`")
    return 0 if entries else 1


def _cell(value: str | bool) -> str:
    return value if isinstance(value, str) else ("yes" if value else "no")
