"""`shiftbench list`: what there is. Imports wait until a kind is listed: torch takes seconds."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence

import click

from shiftbench_cli import options, render

Entry = Mapping[str, str | bool]  # one line: its `name`, and what else there is to say


def _models() -> list[Entry]:
    from shiftbench.models import list_models

    return [
        {"name": entry.name, "source": entry.source, "weights": entry.weights}
        for entry in list_models()
    ]


def _datasets() -> list[Entry]:
    from shiftbench.data import DATA_SOURCES

    return [{"name": name, "summary": DATA_SOURCES.get(name).summary} for name in DATA_SOURCES]


def _attacks() -> list[Entry]:
    from shiftbench.shifts import ATTACKS

    attacks = [ATTACKS.get(name) for name in ATTACKS]
    return [{"name": a.name, "step": f"{a.step} {a.unit}", "summary": a.summary} for a in attacks]


def _metrics() -> list[Entry]:
    from shiftbench.metrics import METRICS

    return [
        {"name": f"{name}:{argument}" if argument else name, "summary": summary}
        for name in METRICS
        for argument, summary in METRICS.get(name).entries().items()
    ]


def _remedies() -> list[Entry]:
    from aft_models.repair import REMEDIES

    return [
        {"name": remedy.name, "fine-tune": remedy.needs_finetuning, "summary": remedy.summary}
        for remedy in REMEDIES.values()
    ]


def _recipes() -> list[Entry]:
    from aft_models.training.recipes import RECIPES

    return [{"name": recipe.name, "summary": recipe.summary} for recipe in RECIPES.values()]


def _formats() -> list[Entry]:
    from shiftbench.report.formats import FORMATS

    formats = {name: FORMATS.get(name) for name in FORMATS}
    return [
        {"name": name, "endings": ", ".join(form.endings), "summary": form.summary}
        for name, form in formats.items()
    ]


def _logs() -> list[Entry]:
    from shiftbench.logs import LOGS

    return [{"name": name, "package": LOGS.get(name).package} for name in LOGS]


KINDS: Mapping[str, Callable[[], Sequence[Entry]]] = {
    "models": _models,
    "datasets": _datasets,
    "attacks": _attacks,
    "metrics": _metrics,
    "remedies": _remedies,
    "recipes": _recipes,
    "formats": _formats,
    "logs": _logs,
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
