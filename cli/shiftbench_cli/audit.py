"""`shiftbench audit`: find the layers of a model that break shift equivariance."""

from __future__ import annotations

from pathlib import Path

import click
import pandas as pd

from shiftbench.auditing.figure import depth_figure
from shiftbench.auditing.layers import DEFAULT_OFFSETS, audit
from shiftbench.auditing.report import Audit
from shiftbench.data import load_dataset
from shiftbench.files import csv_safe, format_of, write_text
from shiftbench.grid import Offset
from shiftbench.models.names import require_one_model
from shiftbench.report.plots import ENDINGS, save_figure
from shiftbench_cli import options, render
from shiftbench_cli.options import OPTIONS, PATH

OUTPUTS = {".csv": "csv", **ENDINGS}
COLUMNS = ("layer", "kind", "layer\nerror", "border", "cumulative\nerror", "EQ-T", "cause")


def _offsets(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> list[Offset]:
    """Read `DY,DX` in pixels, such as `0.5,0`."""
    try:
        return [Offset(*map(float, text.split(","))) for text in texts]
    except (ValueError, TypeError):
        raise click.BadParameter(
            f"expected two numbers of pixels as DY,DX, such as 0.5,0; got {', '.join(texts)}"
        ) from None


@options.command("audit")
@options.models("Model to audit, e.g. timm:resnet50; repeatable.", required=True)
@options.checkpoint()
@options.strip_prefix()
@options.data("Images to audit on.", default="scenes")
@options.limit("Number of images.", default=8)
@OPTIONS(
    "--offset offsets",
    "DY,DX",
    "Shift in pixels; repeatable.  [default: 1,0 and 0,1 and 0.5,0.5]",
    multiple=True,
    callback=_offsets,
)
@OPTIONS("--top", "N", "Layers in the table.", default=15)
@OPTIONS.flag("--all everything", "Show every layer, in order of execution.")
@options.printed("json", "csv")
@OPTIONS(
    "-o --output",
    "FILE",
    "Every layer as .csv, or error along the depth as .png, .pdf or .svg.",
    type=PATH,
)
@options.plugins()
def command(
    models: tuple[str, ...],
    checkpoint: Path | None,
    strip_prefix: str | None,
    data: str,
    limit: int,
    offsets: list[Offset],
    top: int,
    everything: bool,
    kind: str,
    output: Path | None,
) -> None:
    """Measure the shift equivariance error of each layer of a model, and its cause.

    The layer error is that of a layer alone, given an exactly shifted input; `border` is the share
    caused by padding. The cumulative error is that of the path from the image to the layer, and
    EQ-T the same in dB. Errors are relative.
    """
    if checkpoint is not None:
        require_one_model(models)
    if output is not None:
        format_of(output, OUTPUTS)
    dataset = load_dataset(data, limit=limit)
    frames = {}
    for model in dict.fromkeys(models):
        found = audit(
            model,
            dataset,
            checkpoint=checkpoint,
            strip_prefix=strip_prefix,
            offsets=offsets or DEFAULT_OFFSETS,
        )
        frames[model] = found.to_frame()
        if kind == "table":
            title = f"{model}: shift equivariance error per layer, {len(dataset)} images"
            _print(found, title, None if everything else top)
    table = pd.concat(frames, names=["model"]).reset_index("model").reset_index(drop=True)
    safe = table.map(csv_safe)
    if kind == "json":
        render.print_text(table.to_json(orient="records") + "\n")
    elif kind == "csv":
        render.print_text(safe.to_csv(index=False))
    if output is None:
        return
    if format_of(output, OUTPUTS) == "csv":
        write_text(output, safe.to_csv(index=False))
    else:
        save_figure(depth_figure(frames), output)
    render.note(f"{output}: {len(frames)} model{'s' * (len(frames) > 1)}")


def _print(found: Audit, title: str, top: int | None) -> None:
    """Print the layers with the largest error, or all layers in order of execution."""
    ranked = found.breakers()
    rows = [
        (
            layer.name or "(whole model)",
            layer.kind,
            *map(_short, (layer.own, layer.border or None, layer.accumulated)),
            "" if layer.eq_t is None else f"{layer.eq_t:.0f}",
            layer.cause or "",
        )
        for layer in (found.layers if top is None else ranked[:top])
    ]
    lines = found.summary()
    if top is not None and len(ranked) > top:
        lines.append(f"{len(ranked) - top} more layers have smaller errors: see --top, --all.")
    caption = "\n".join(lines)
    render.print_table(
        COLUMNS, rows, title=title, caption=caption, numeric=COLUMNS[2:6], cut=["kind"]
    )


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
