"""`shiftbench list`: what there is."""

from __future__ import annotations

import fnmatch
import json
import sys
from collections.abc import Callable, Iterable, Mapping

import click

from shiftbench_cli import options, render

Entry = Mapping[str, str | bool]  # one line: its `name`, and what else there is to say


def _models(pattern: str | None) -> Iterable[Entry]:
    from shiftbench.models import list_models

    return [
        {"name": entry.name, "source": entry.source, "weights": entry.weights}
        for entry in list_models(pattern)
    ]


def _datasets(pattern: str | None) -> Iterable[Entry]:
    from shiftbench.data import list_datasets

    return _filter(({"name": e.name, "summary": e.summary} for e in list_datasets()), pattern)


def _attacks(pattern: str | None) -> Iterable[Entry]:
    from shiftbench.shifts.attacks import ATTACKS

    attacks = (ATTACKS.get(name) for name in ATTACKS)
    return _filter(
        ({"name": a.name, "step": f"{a.step} px", "summary": a.summary} for a in attacks), pattern
    )


def _metrics(pattern: str | None) -> Iterable[Entry]:
    from shiftbench.metrics import METRICS

    entries = []
    for name in METRICS:
        metric = METRICS.get(name)
        entries += [
            {"name": f"{name}:{argument}" if argument else name, "summary": metric.about(argument)}
            for argument in metric.arguments() or ("",)
        ]
    return _filter(entries, pattern)


def _formats(pattern: str | None) -> Iterable[Entry]:
    from shiftbench.report.formats import FORMATS

    forms = ((name, FORMATS.get(name)) for name in FORMATS)
    return _filter(({"name": n, "endings": ", ".join(f.endings)} for n, f in forms), pattern)


def _logs(pattern: str | None) -> Iterable[Entry]:
    from shiftbench.logs import LOGS

    return _filter(({"name": name, "package": LOGS.get(name).package} for name in LOGS), pattern)


def _recipes(pattern: str | None) -> Iterable[Entry]:
    from aft_models.training.recipes import RECIPES

    return _filter(({"name": r.name, "summary": r.summary} for r in RECIPES.values()), pattern)


KINDS: Mapping[str, Callable[[str | None], Iterable[Entry]]] = {
    "models": _models,
    "datasets": _datasets,
    "attacks": _attacks,
    "metrics": _metrics,
    "formats": _formats,
    "logs": _logs,
    "recipes": _recipes,
}


def _filter(entries: Iterable[Entry], pattern: str | None) -> list[Entry]:
    """Keeps the names that match, as in a shell; a plain word matches anywhere."""
    if not pattern:
        return list(entries)
    if not any(character in pattern for character in "*?["):
        pattern = f"*{pattern}*"
    return [entry for entry in entries if fnmatch.fnmatch(str(entry["name"]), pattern)]


@click.command(name="list")
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("pattern", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="json: a list of objects with at least a name.",
)
@options.plugins
def command(kind: str, pattern: str | None, form: str) -> int:
    """List everything of a kind; PATTERN filters by name, for example 'xcit*af*'."""
    entries = list(KINDS[kind](pattern))
    if form == "json":
        json.dump(entries, sys.stdout, indent=2)
        sys.stdout.write("\n")
    elif entries:
        columns = list(entries[0])
        rows = [[_cell(entry[column]) for column in columns] for entry in entries]
        render.print_table(columns, rows)
    if not entries:
        click.echo(f"no {kind} match {pattern!r}: see `shiftbench list {kind}`", err=True)
    return 0 if entries else 1


def _cell(value: str | bool) -> str:
    return value if isinstance(value, str) else ("yes" if value else "no")
