"""`shiftbench plot`: draw records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from matplotlib.figure import Figure

from shiftbench.errors import UsageError
from shiftbench.files import file_safe, format_of
from shiftbench.records.folder import RUNS, load_records, select
from shiftbench.records.result import Result
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

FIGURE_2 = (  # of the paper
    "XCiT-Small=xcit_small_12_p16",
    "XCiT-Small-APS=xcit_small_12_p16_aps",
    "XCiT-Small-AF (ours)=xcit_small_12_p16_af",
    "CvT-13=hf:microsoft/cvt-13",
    "Swin-T=timm:swin_tiny_patch4_window7_224",
    "ViT-Base=timm:vit_base_patch16_224",
)


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
@OPTIONS(
    "-m --model models",
    "[NAME=]MODEL",
    "Only this model or pattern, in this order; NAME is shown instead; repeatable.",
    multiple=True,
)
@OPTIONS.flag("--paper", "The paper's Figure 2: its six networks, attacks and names.")
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
    paper: bool,
    data: str | None,
    attacks: tuple[str, ...],
    allow_mixed: bool,
    dpi: int,
) -> None:
    """Plot the records below each DIR (default results/runs)."""
    format_of(output, ENDINGS)
    records = load_records(folders or [RUNS], on_unreadable=render.left_out)
    if paper:
        attacks, data = attacks or ("crop", "bilinear"), data or "imagenet"
        measured = {record.model.name for record in select(records, data=data)}
        models = tuple(m for m in FIGURE_2 if m.partition("=")[2] in measured)
        for missing in sorted({*FIGURE_2} - {*models}):
            render.note(f"not measured: {missing}. See `shiftbench reproduce realistic_shifts`")
        if not models:
            raise UsageError("expected a record of a network of Figure 2, got none")
    records, names = _named(select(records, data=data), models)
    if kind == "curves":
        groups = {record.data.name: None for record in records}
        for name in groups if len(groups) > 1 and not allow_mixed else ():
            own = [i for i, record in enumerate(records) if record.data.name == name]
            place = output.with_stem(f"{output.stem}-{file_safe(name)}")
            figure = curves_figure(
                [records[i] for i in own], attacks=attacks, names=[names[i] for i in own]
            )
            _save(figure, place, dpi, f"curves of {len(own)} records of {name}")
        if len(groups) > 1 and not allow_mixed:
            return
        figure = curves_figure(records, attacks=attacks, allow_mixed=allow_mixed, names=names)
    elif kind == "overview":
        tables = leaderboard(score_cells(records))
        if len(tables) > 1:
            labels = "; ".join(table.label for table in tables)
            raise UsageError(f"expected comparable records, got {labels}. Choose with --data")
        figure = overview_figure(tables[0])
    elif len(records) == 1:
        figure = heatmap_figure(records[0], attacks=attacks)
    else:
        listed = ", ".join(f"{record.model.name} on {record.data.name}" for record in records)
        raise UsageError(
            f"expected one record for a heat map, got {len(records)} ({listed}). Choose with "
            "--model and --data"
        )
    _save(figure, output, dpi, f"{kind} of {len(records)} record{'s' * (len(records) > 1)}")


def _named(records: Sequence[Result], models: Sequence[str]) -> tuple[list[Result], list[str]]:
    """Choose records by `[NAME=]MODEL`, in that order.

    Returns:
        The records, and the names to show.
    """
    if not models:
        return list(records), [record.model.name for record in records]
    chosen: list[Result] = []
    names: list[str] = []
    for text in models:
        label, equals, pattern = text.rpartition("=")
        exact = any(record.model.name == text for record in records)
        found = select(records, models=[text if exact else pattern])
        new = [record for record in found if record not in chosen]
        chosen += new
        named = bool(equals) and not exact
        names += [label if named else record.model.name for record in new]
    return chosen, names


def _save(figure: Figure, path: Path, dpi: int, about: str) -> None:
    save_figure(figure, path, dpi=dpi)
    render.note(f"{path}: {about}")
