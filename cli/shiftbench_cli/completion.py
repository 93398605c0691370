"""What the shell offers after Tab for the names of models, data sets, attacks, metrics, recipes."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

FIRST = 200  # offers at most: a longer list helps nobody, and timm alone has over a thousand
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _names_of(kind: str, *more: str) -> Complete:
    """Offers the names that begin with what was typed; imports wait until Tab is pressed."""

    def complete(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
        from shiftbench_cli.listing import KINDS

        names = [*(str(entry["name"]) for entry in KINDS[kind]()), *more]
        return [CompletionItem(name) for name in names if name.startswith(typed)][:FIRST]

    return complete


models = _names_of("models")
datasets = _names_of("datasets")
attacks = _names_of("attacks", "all", "none")
metrics = _names_of("metrics")
recipes = _names_of("recipes")


def suites(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offers suites that come with the package, and files."""
    from shiftbench.run.suite import suite_names

    names = [CompletionItem(name) for name in suite_names() if name.startswith(typed)]
    return [*names, CompletionItem(typed, type="file")]
