"""`shiftbench audit`: which layers of a model break shift-equivariance, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import pandas as pd

from shiftbench.audit.causes import CAUSES
from shiftbench.audit.figure import depth_figure
from shiftbench.audit.layer_report import LayerReport, breakers, to_frame, unjudged
from shiftbench.audit.layers import DEFAULT_OFFSETS, audit
from shiftbench.data import ImageSet, RenderedSet, canvas_batches, load_dataset
from shiftbench.files import format_of, require_place, write_text
from shiftbench.grid import Offset
from shiftbench.models import load_model
from shiftbench.models.names import require_one_model
from shiftbench.preprocessing import geometry_for, normalize
from shiftbench.report.plots import ENDINGS, save_figure
from shiftbench_cli import completion, options, render

OUTPUTS = {".csv": "csv", **ENDINGS}
NAMED = 3  # layers that are named of those that could not be judged


def _offsets(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[Offset]:
    """Reads `DY,DX` in pixels, such as `0.5,0`."""
    offsets = []
    for value in values:
        try:
            dy, dx = (float(part) for part in value.split(","))
        except ValueError:
            raise click.BadParameter(
                f"expected two numbers of pixels as DY,DX, such as 0.5,0; got {value!r}"
            ) from None
        offsets.append(Offset(dy, dx))
    return offsets


@click.command("audit")
@click.option(
    "-m",
    "--model",
    "models",
    multiple=True,
    required=True,
    help="Model to audit, named as for `run`; repeatable.",
    shell_complete=completion.models,
)
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), help="Weights for one model and its remedies."
)
@click.option(
    "-d",
    "--data",
    default="scenes",
    show_default=True,
    metavar="NAME[:PATH]",
    help="Images to use.",
    shell_complete=completion.datasets,
)
@click.option(
    "--images",
    default=8,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many images to measure on.",
)
@click.option(
    "--offset",
    "offsets",
    multiple=True,
    metavar="DY,DX",
    callback=_offsets,
    help="Shift in pixels; repeatable.",
)
@click.option("--top", default=15, show_default=True, help="How many layers the table shows.")
@click.option("--all", "everything", is_flag=True, help="Every layer, in order of execution.")
@options.printed
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
    audits: dict[str, list[LayerReport]] = {}
    for model in dict.fromkeys(models):
        audits[model] = _audit(model, checkpoint, dataset, offsets)
        if kind == "table":
            _print(audits[model], model=model, images=len(dataset), top=None if everything else top)
    frames = {model: to_frame(reports) for model, reports in audits.items()}
    table = pd.concat(
        [frame.assign(model=model) for model, frame in frames.items()], ignore_index=True
    )
    table.insert(0, "model", table.pop("model"))
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
    click.echo(f"{output}: {len(audits)} model{'s' * (len(audits) > 1)}", err=True)


def _audit(
    model: str, checkpoint: Path | None, dataset: ImageSet, offsets: list[Offset]
) -> list[LayerReport]:
    classifier = load_model(model, checkpoint=checkpoint)
    geometry = geometry_for(
        classifier.preprocessing,
        finished=dataset.has_size(classifier.preprocessing.input_size),
        rendered=isinstance(dataset, RenderedSet),
    )
    batch = next(canvas_batches(dataset, geometry, batch_size=len(dataset)))
    normalized = normalize(
        batch.canvas, classifier.preprocessing.mean, classifier.preprocessing.std
    )
    return [
        # A classifier wraps the network, as `model`; people know its layers without that.
        replace(report, name=report.name.removeprefix("model."), depth=max(0, report.depth - 1))
        for report in audit(classifier.module, normalized, offsets=offsets or DEFAULT_OFFSETS)
        if report.name != "model"
    ]


def _print(reports: list[LayerReport], *, model: str, images: int, top: int | None) -> None:
    found, whole = breakers(reports), reports[-1]
    shown = reports if top is None else found[:top]
    rows = [
        (
            report.name or "(whole model)",
            report.kind,
            _short(report.own),
            _short(report.border or None),
            _short(report.accumulated),
            "" if report.eq_t is None else f"{report.eq_t:.0f}",
            report.cause or "",
        )
        for report in shown
    ]
    columns = ("layer", "kind", "own", "border", "path", "EQ-T", "cause")
    assert whole.accumulated is not None
    assert whole.eq_t is not None
    lines = [f"The logits change by {whole.accumulated:.2g} in all: EQ-T {whole.eq_t:.0f} dB."]
    if top is not None and len(found) > top:
        lines.append(f"{len(found) - top} more layers break less: see --top, --all.")
    for name in dict.fromkeys(report.cause for report in found if report.cause):
        cause, count = CAUSES[name], sum(report.cause == name for report in found)
        lines.append(f"{name} ({count}): {cause.about}. Treated by {', '.join(cause.remedies)}.")
    for reason, names in unjudged(reports).items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        lines.append(f"Not judged, {reason}: {', '.join(names[:NAMED])}{more}.")
    render.print_table(
        columns,
        rows,
        title=f"{model}: relative error of shifts per layer, {images} images",
        caption="\n".join(lines),
        numeric=columns[2:6],
        cut=["kind"],
    )


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
