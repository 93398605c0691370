"""`shiftbench plot`."""

from __future__ import annotations

from pathlib import Path

import click

from shiftbench.errors import UsageError
from shiftbench.files import format_of
from shiftbench.records.choose import filter_by_dataset, filter_by_model, load_records
from shiftbench.records.comparable import require_comparable
from shiftbench.report.plots import (
    ENDINGS,
    curves_figure,
    heatmap_figure,
    overview_figure,
    save_figure,
)
from shiftbench.report.table import build_tables
from shiftbench_cli import options, render


@click.command()
@click.argument("folders", nargs=-1, metavar="[DIR]...", type=click.Path(path_type=Path))
@options.picture("curves.png")
@options.plugins
@click.option(
    "--kind",
    type=click.Choice(["curves", "overview", "heatmap"]),
    default="curves",
    show_default=True,
    help="curves: against max shift; overview: clean accuracy against what is left under crops, a "
    "dot per model; heatmap: accuracy at each offset (of a --full-grid run).",
)
@options.only_models
@options.only_data
@click.option("-a", "--attack", "attacks", multiple=True, help="Only this attack; repeatable.")
@click.option("--allow-mixed", is_flag=True, help="Draw records of different images together.")
@click.option(
    "--dpi", type=click.IntRange(min=30), default=160, show_default=True, help="Dots per inch."
)
def command(
    folders: tuple[Path, ...],
    output: Path,
    kind: str,
    models: tuple[str, ...],
    data: str | None,
    attacks: tuple[str, ...],
    allow_mixed: bool,
    dpi: int,
) -> None:
    """Draw the records below each DIR (default results/runs)."""
    format_of(output, ENDINGS)
    records = load_records(folders or [Path("results/runs")], on_unreadable=render.left_out)
    records = filter_by_model(filter_by_dataset(records, data), models)
    if kind == "curves":
        figure = curves_figure(records, attacks=attacks, allow_mixed=allow_mixed)
    elif kind == "overview":
        require_comparable(records, what="an overview")
        figure = overview_figure(build_tables(records)[0])
    elif len(records) == 1:
        figure = heatmap_figure(records[0], attacks=attacks)
    else:
        names = ", ".join(f"{r.model.name} on {r.data.name}" for r in records)
        raise UsageError(
            f"a heat map shows one record, got {len(records)} ({names}): "
            "choose with --model and --data"
        )
    save_figure(figure, output, dpi=dpi)
    click.echo(f"{output}: {kind} of {len(records)} record{'s' * (len(records) > 1)}", err=True)
