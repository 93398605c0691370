"""`shiftbench leaderboard`."""

from __future__ import annotations

from pathlib import Path

import click

from shiftbench.errors import UsageError
from shiftbench.files import format_of, require_place, write_text
from shiftbench.records.choose import load_records, of_data, of_models
from shiftbench.records.record import Record
from shiftbench.report.page import render_page
from shiftbench.report.table import DEFAULT_SORT, Table, build_table, to_csv
from shiftbench.report.typeset import to_latex, to_markdown, update_between_markers
from shiftbench_cli import render

ENDINGS = {
    ".csv": "csv",
    ".md": "markdown",
    ".tex": "latex",
    ".html": "html",
    ".htm": "html",
}
FORMATS = ("table", "csv", "markdown", "latex", "html")


def _text(kind: str, table: Table, records: list[Record], sort: str, intervals: bool | None) -> str:
    if kind == "csv":
        return to_csv(table)
    if kind == "markdown":
        return to_markdown(table, intervals=True if intervals is None else intervals)
    if kind == "latex":
        return to_latex(table, intervals=False if intervals is None else intervals)
    return render_page(records, sort=sort)


@click.command()
@click.argument("folders", nargs=-1, metavar="[DIR]...", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write here, not to stdout.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    help="Default: by the ending of --output (.csv, .md, .tex, .html); on stdout, table.",
)
@click.option("--sort", default=DEFAULT_SORT, show_default=True, help="Column to sort by.")
@click.option("--reverse", is_flag=True, help="Turn the order around.")
@click.option("--max-shift", type=click.IntRange(min=0), help="Radius of the adversarial columns.")
@click.option("-d", "--data", help="Only records of this data set.")
@click.option("-m", "--model", "models", multiple=True, help="Only this model; repeatable.")
@click.option(
    "--intervals/--no-intervals",
    default=None,
    help="Wilson 95% intervals in Markdown (default: with) and LaTeX (default: without).",
)
@click.option(
    "--update",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Replace the table between the leaderboard markers of this Markdown file.",
)
def command(
    folders: tuple[Path, ...],
    output: Path | None,
    kind: str | None,
    sort: str,
    reverse: bool,
    max_shift: int | None,
    data: str | None,
    models: tuple[str, ...],
    intervals: bool | None,
    update: Path | None,
) -> None:
    """Turn the records below each DIR (default results/runs) into one table."""
    if output is not None:
        require_place(output)
        kind = kind or format_of(output, ENDINGS)
    kind = kind or "table"
    if kind == "table" and output is not None:
        raise UsageError(
            f"a terminal table cannot be written to {output}: "
            "use --format csv, markdown, latex or html"
        )
    records = load_records(folders or [Path("results/runs")])
    records = of_models(of_data(records, data), models)
    table = build_table(records, sort=sort, reverse=reverse, max_shift=max_shift)
    if update is not None:
        changed = update_between_markers(
            update, to_markdown(table, intervals=True if intervals is None else intervals)
        )
        click.echo(f"{update}: {'updated' if changed else 'up to date'}", err=True)
        if output is None:
            return
    if kind == "table":
        render.print_leaderboard(table)
        return
    text = _text(kind, table, records, sort, intervals)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)
        click.echo(f"{output}: {len(table.rows)} records", err=True)
