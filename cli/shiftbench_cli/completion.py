"""What the shell offers after Tab for the names of models, data sets, attacks and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

FIRST = 200  # offers at most: a longer list helps nobody, and timm alone knows over a thousand


def _offering(names: Callable[[], Iterable[str]]) -> Complete:
    """Offers the names that begin with what was typed; imports wait until Tab is pressed."""

    def complete(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
        found = (name for name in names() if name.startswith(typed))
        return [CompletionItem(name) for name, _ in zip(found, range(FIRST), strict=False)]

    return complete


def _models() -> Iterable[str]:
    from shiftbench.models import list_models

    return (entry.name for entry in list_models())


def _datasets() -> Iterable[str]:
    from shiftbench.data import list_datasets

    return (entry.name for entry in list_datasets())


def _attacks() -> Iterable[str]:
    from shiftbench.shifts.attacks import ATTACKS

    return (*ATTACKS, "all", "none")


def _metrics() -> Iterable[str]:
    from shiftbench.metrics import METRICS

    return METRICS


def _recipes() -> Iterable[str]:
    from aft_models.training.recipes import RECIPES

    return RECIPES


models = _offering(_models)
datasets = _offering(_datasets)
attacks = _offering(_attacks)
metrics = _offering(_metrics)
recipes = _offering(_recipes)
