"""`shiftbench plot`: draw records."""

from __future__ import annotations

from pathlib import Path

import click

from shiftbench.errors import UsageError
from shiftbench.files import format_of
from shiftbench.records.result import RUNS, load_records, select
from shiftbench.report.plots import (
    ENDINGS,
    curves_figure,
    heatmap_figure,
    overview_figure,
    save_figure,
)
from shiftbench.report.scores import leaderboard, score_cells
from shiftbench_cli import options, render
from shiftbench_cli.options import OPTIONS, PATH, Choice


@options.command("plot")
@click.argument("folders", nargs=-1, metavar="[DIR]...", type=PATH)
@options.picture("curves.png")
@OPTIONS(
    "--kind",
    "KIND",
    "curves: adversarial accuracy against max shift; overview: against clean accuracy; heatmap: "
    "accuracy at each offset (of a --full-grid run).",
    type=Choice(["curves", "overview", "heatmap"]),
    default="curves",
)
@options.only_models
@options.only_data
@OPTIONS("-a --attack attacks", "NAME", "Only this attack; repeatable.", multiple=True)
@OPTIONS.flag("--allow-mixed", "Draw records of different images together.")
@OPTIONS("--dpi", "N", "Dots per inch.", type=click.IntRange(30), default=160)
@options.plugins()
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
    """Plot the records below each DIR (default results/runs)."""
    format_of(output, ENDINGS)
    records = load_records(folders or [RUNS], on_unreadable=render.left_out)
    records = select(records, models=models, data=data)
    if kind == "curves":
        figure = curves_figure(records, attacks=attacks, allow_mixed=allow_mixed)
    elif kind == "overview":
        tables = leaderboard(score_cells(records))
        if len(tables) > 1:
            labels = "; ".join(table.label for table in tables)
            raise UsageError(f"expected comparable records, got {labels}. Choose with --data")
        figure = overview_figure(tables[0])
    elif len(records) == 1:
        figure = heatmap_figure(records[0], attacks=attacks)
    else:
        names = ", ".join(f"{record.model.name} on {record.data.name}" for record in records)
        raise UsageError(
            f"expected one record for a heat map, got {len(records)} ({names}). Choose with "
            "--model and --data"
        )
    save_figure(figure, output, dpi=dpi)
    render.note(f"{output}: {kind} of {len(records)} record{'s' * (len(records) > 1)}")
