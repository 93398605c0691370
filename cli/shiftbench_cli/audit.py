"""`shiftbench audit`: which layers of a model break shift-equivariance, and why."""

from __future__ import annotations

from pathlib import Path

import click
import pandas as pd

import shiftbench
from shiftbench.auditing.figure import depth_figure
from shiftbench.auditing.layers import DEFAULT_OFFSETS
from shiftbench.data import load_dataset
from shiftbench.files import format_of, require_place, write_text
from shiftbench.grid import Offset
from shiftbench.models.names import require_one_model
from shiftbench.report.plots import ENDINGS, save_figure
from shiftbench_cli import options, render

OUTPUTS = {".csv": "csv", **ENDINGS}


def _offsets(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> list[Offset]:
    """Reads `DY,DX` in pixels, such as `0.5,0`."""
    try:
        return [Offset(*map(float, text.split(","))) for text in texts]
    except (ValueError, TypeError):
        raise click.BadParameter(
            f"expected two numbers of pixels as DY,DX, such as 0.5,0; got {', '.join(texts)}"
        ) from None


@click.command("audit")
@options.models(required=True)
@options.checkpoint
@options.data("Images to measure on.", default="scenes", show_default=True)
@options.images(8)
@click.option(
    "--offset",
    "offsets",
    multiple=True,
    metavar="DY,DX",
    callback=_offsets,
    help="Shift in pixels; repeatable. Default: 1,0 and 0,1 and 0.5,0.5.",
)
@click.option("--top", default=15, show_default=True, help="How many layers the table shows.")
@click.option("--all", "everything", is_flag=True, help="Every layer, in order of execution.")
@options.printed("json", "csv")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Every layer as .csv, or error along the depth as .png, .pdf or .svg.",
)
@options.plugins
def command(
    models: tuple[str, ...],
    checkpoint: Path | None,
    data: str,
    images: int,
    offsets: list[Offset],
    top: int,
    everything: bool,
    kind: str,
    output: Path | None,
) -> None:
    """Find the layers of a model that break shift-equivariance, by how much, and why.

    `own` is the relative error of a layer alone, given its exactly shifted input, and `border` the
    part of it caused by padding; `path` is the error of the whole path from the shifted
    image to this layer, and EQ-T the same in dB.
    """
    if checkpoint is not None:
        require_one_model(models)
    if output is not None:
        require_place(output)
        format_of(output, OUTPUTS)
    dataset = load_dataset(data, limit=images)
    frames = {}
    for model in dict.fromkeys(models):
        audit = shiftbench.auditing(
            model, dataset, checkpoint=checkpoint, offsets=offsets or DEFAULT_OFFSETS
        )
        frames[model] = audit.to_frame()
        if kind == "table":
            title = f"{model}: relative error of shifts per layer, {len(dataset)} images"
            _print(audit, title, None if everything else top)
    table = pd.concat(frames, names=["model"]).reset_index("model").reset_index(drop=True)
    if kind == "json":
        click.echo(table.to_json(orient="records"))
    elif kind == "csv":
        click.echo(table.to_csv(index=False), nl=False)
    if output is None:
        return
    if format_of(output, OUTPUTS) == "csv":
        write_text(output, table.to_csv(index=False))
    else:
        save_figure(depth_figure(frames), output)
    click.echo(f"{output}: {len(frames)} model{'s' * (len(frames) > 1)}", err=True)


def _print(audit: shiftbench.Audit, title: str, top: int | None) -> None:
    """Prints the worst layers, or all of them in order of execution."""
    breakers = audit.breakers()
    columns = ("layer", "kind", "own", "border", "path", "EQ-T", "cause")
    rows = [
        (
            layer.name or "(whole model)",
            layer.kind,
            *map(_short, (layer.own, layer.border or None, layer.accumulated)),
            "" if layer.eq_t is None else f"{layer.eq_t:.0f}",
            layer.cause or "",
        )
        for layer in (audit.layers if top is None else breakers[:top])
    ]
    lines = audit.summary()
    if top is not None and len(breakers) > top:
        lines.append(f"{len(breakers) - top} more layers break less: see --top, --all.")
    caption, numeric = "\n".join(lines), columns[2:6]
    render.print_table(columns, rows, title=title, caption=caption, numeric=numeric, cut=["kind"])


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
