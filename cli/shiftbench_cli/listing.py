"""`shiftbench list`: what there is. Imports wait until a kind is listed: torch takes seconds."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from operator import attrgetter
from typing import Any

import click

from shiftbench_cli import options, render

Entry = Mapping[str, str | bool]  # one line: its `name`, and what else there is to say


def _models() -> list[Entry]:
    from shiftbench.models import list_models

    return [asdict(entry) for entry in list_models()]


def _metrics() -> list[Entry]:
    from shiftbench.metrics import METRICS

    return [
        {"name": f"{name}:{argument}" if argument else name, "summary": summary}
        for name in METRICS
        for argument, summary in METRICS.get(name).entries().items()
    ]


def _registered(
    module: str, registry: str, **columns: Callable[[Any], str | bool]
) -> Callable[[], list[Entry]]:
    """Lists a registry: the name of each thing, and a column for each of its values."""

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
    "formats": _registered(
        "shiftbench.report.formats",
        "FORMATS",
        endings=lambda form: ", ".join(form.endings),
        summary=SUMMARY,
    ),
    "logs": _registered("shiftbench.logs", "LOGS", package=attrgetter("package")),
}


def _matches(name: str, pattern: str) -> bool:
    """As in a shell; a plain word matches anywhere, and `swin*` means timm:swin_... too."""
    if not any(character in pattern for character in "*?["):
        pattern = f"*{pattern}*"
    return any(fnmatch.fnmatch(part, pattern) for part in (name, name.rpartition(":")[2]))


@click.command(name="list")
@click.argument("what", type=click.Choice(list(KINDS)))
@click.argument("pattern", default="*")
@options.printed("json")
@options.plugins
def command(what: str, pattern: str, kind: str) -> int:
    """List everything of a kind; PATTERN filters by name, for example 'xcit*af*'."""
    entries = [entry for entry in KINDS[what]() if _matches(str(entry["name"]), pattern)]
    if kind == "json":
        render.print_json(entries)
    elif entries:
        columns = list(entries[0])
        rows = [[_cell(entry[column]) for column in columns] for entry in entries]
        render.print_table(columns, rows)
    if not entries:
        click.echo(f"no {what} match {pattern!r}: see `shiftbench list {what}`", err=True)
    return 0 if entries else 1


def _cell(value: str | bool) -> str:
    return value if isinstance(value, str) else ("yes" if value else "no")
