"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def records(command: Command) -> Command:
    """Folders with records, as `folders`."""
    return click.option(
        "-r",
        "--records",
        "folders",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Where to look for records; repeatable. Default: results/runs.",
    )(command)


def printed(command: Command) -> Command:
    """What stdout gets, as `kind`."""
    return click.option(
        "--format",
        "kind",
        type=click.Choice(["table", "json", "csv"]),
        default="table",
        show_default=True,
        help="What stdout gets.",
    )(command)


def picture(default: str) -> Callable[[Command], Command]:
    """The picture to write, as `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        default=Path(default),
        show_default=True,
        help="Picture to write: .png, .pdf or .svg.",
    )


def plugins(command: Command) -> Command:
    """Files to import before anything else; installed plug-ins are imported too."""

    def load(ctx: click.Context, param: click.Parameter, files: tuple[Path, ...]) -> None:
        from shiftbench.plugins import load_plugins

        load_plugins(files)

    return click.option(
        "--plugin",
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=load,
        type=click.Path(path_type=Path),
        metavar="FILE.py",
        help="Shifts, attacks, metrics, sources, formats of your own; repeatable.",
    )(command)
