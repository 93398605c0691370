"""`shiftbench leaderboard`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from shiftbench.errors import UsageError
from shiftbench.files import format_of, require_place, write_text
from shiftbench.records.choose import filter_by_dataset, filter_by_model, load_records
from shiftbench.report.board import board_tables, read_board
from shiftbench.report.formats import FORMATS
from shiftbench.report.formats.base import Report
from shiftbench.report.formats.markdown import to_markdown, update_between_markers
from shiftbench.report.published import read_published, side_by_side
from shiftbench.report.table import DEFAULT_SORT, build_tables
from shiftbench_cli import options, render, scoreboard


@click.command()
@click.argument("folders", nargs=-1, metavar="[DIR]...", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File to write instead of stdout."
)
@click.option(
    "--format",
    "kind",
    help="table, csv, markdown, latex, html or model-card (the model-index block of Hugging Face). "
    "Default: by the ending of --output; else table.",
)
@click.option("--sort", default=DEFAULT_SORT, show_default=True, help="Column to sort by.")
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--max-shift", type=click.IntRange(min=0), help="Radius of the adversarial columns.")
@click.option(
    "--columns",
    metavar="NAME,...",
    help="Columns besides the model, such as top1,adversarial_crop. Default: all; not for html.",
)
@options.only_data
@options.only_models
@click.option(
    "--intervals/--no-intervals",
    default=None,
    help="95% intervals in Markdown (default: with) and LaTeX (default: without).",
)
@click.option(
    "--update",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Replace the table between the leaderboard markers of this Markdown file.",
)
@options.board
@options.paper
@options.plugins
def command(
    folders: tuple[Path, ...],
    output: Path | None,
    kind: str | None,
    sort: str,
    reverse: bool,
    max_shift: int | None,
    columns: str | None,
    data: str | None,
    models: tuple[str, ...],
    intervals: bool | None,
    update: Path | None,
    board: bool,
    paper: Path | None,
) -> None:
    """Turn the records below each DIR (default results/runs) into a table per comparable group."""
    kind = _format(kind, output)
    records = load_records(folders or [Path("results/runs")], on_unreadable=render.left_out)
    records = filter_by_model(filter_by_dataset(records, data), models)
    build = partial(board_tables, board=read_board()) if board else build_tables
    tables = build(records, sort=sort, reverse=reverse, max_shift=max_shift)
    if columns is not None:
        if kind == "html":
            raise UsageError("the page chooses its columns itself: leave --columns out")
        names = [name.strip() for name in columns.split(",")]
        tables = [table.only(names) for table in tables]
    if update is not None:
        changed = update_between_markers(update, to_markdown(tables, intervals is not False))
        click.echo(f"{update}: {'updated' if changed else 'up to date'}", err=True)
        if output is None:
            return
    if kind == "table":
        scoreboard.print_leaderboards(tables)
        return
    form = FORMATS.get(kind)
    place = options.paper_folder(paper)
    published = read_published(place) if paper is not None or place.is_dir() else []
    shown = form.intervals if intervals is None else intervals
    text = form.render(Report(tables, shown, published, side_by_side(records, place)))
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)
        click.echo(f"{output}: {len(records)} records", err=True)


def _format(kind: str | None, output: Path | None) -> str:
    """The format that was asked for, by name or by the ending of the file."""
    if output is not None:
        require_place(output)
        endings = {ending: name for name in FORMATS for ending in FORMATS.get(name).endings}
        kind = kind or format_of(output, endings)
    kind = kind or "table"
    if kind == "table" and output is not None:
        raise UsageError(
            f"a terminal table cannot be written to {output}: use --format {' or '.join(FORMATS)}"
        )
    if kind != "table":
        FORMATS.get(kind)
    return kind
