"""`shiftbench audit`: which layers of a model break shift-equivariance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from shiftbench.datasets import Camera, load_dataset
from shiftbench.datasets.canvases import canvases
from shiftbench.datasets.geometry import geometry_for, normalise
from shiftbench.files import write_atomic
from shiftbench.grid import Offset
from shiftbench.measure.audit import DEFAULT_OFFSETS, LayerReport, audit, breakers, to_frame
from shiftbench.models import load_model
from shiftbench_cli import render


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
@click.option("-m", "--model", required=True, help="Model name, as for `shiftbench run`.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Weights for the model.")
@click.option("-d", "--data", default="scenes", show_default=True, help="NAME[:PATH].")
@click.option("--images", default=8, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--offset", "offsets", multiple=True, metavar="DY,DX", callback=_offsets, help="Repeatable."
)
@click.option("--top", default=15, show_default=True, help="How many layers the table shows.")
@click.option("--all", "everything", is_flag=True, help="Every layer, in order of execution.")
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Every layer, as CSV.")
def command(
    model: str,
    checkpoint: Path | None,
    data: str,
    images: int,
    offsets: list[Offset],
    top: int,
    everything: bool,
    form: str,
    output: Path | None,
) -> None:
    """Find the layers of a model that break shift-equivariance, and by how much.

    `own` is the relative error of a layer alone, given its exactly shifted input; `accumulated` is
    that of the whole path from the shifted image to this layer.
    """
    classifier = load_model(model, checkpoint=checkpoint)
    dataset = load_dataset(data, limit=images)
    geometry = geometry_for(
        classifier.preprocessing,
        finished=dataset.has_size(classifier.preprocessing.input_size),
        rendered=isinstance(dataset, Camera),
    )
    batch = next(canvases(dataset, geometry, batch_size=images))
    normalised = normalise(
        batch.canvas, classifier.preprocessing.mean, classifier.preprocessing.std
    )
    reports = [
        # A classifier wraps the network, as `model`; people know its layers without that.
        replace(report, name=report.name.removeprefix("model."))
        for report in audit(classifier.module, normalised, offsets=offsets or DEFAULT_OFFSETS)
        if report.name != "model"
    ]
    frame = to_frame(reports)
    if output is not None:
        write_atomic(output, frame.to_csv(index=False).encode())
    if form == "json":
        click.echo(frame.to_json(orient="records"))
    elif form == "csv":
        click.echo(frame.to_csv(index=False), nl=False)
    else:
        shown = reports if everything else breakers(reports)[:top]
        _print(shown, whole=reports[-1], model=model, images=len(dataset))


def _print(shown: list[LayerReport], *, whole: LayerReport, model: str, images: int) -> None:
    rows = [
        (
            report.name or "(whole model)",
            report.kind,
            "x".join(map(str, report.shape)),
            "" if report.own is None else f"{report.own:.1e}",
            f"{report.accumulated:.1e}",
        )
        for report in shown
    ]
    render.print_table(
        ("layer", "kind", "output", "own", "accumulated"),
        rows,
        title=f"{model}: relative equivariance error per layer, {images} images",
        caption=f"the logits change by {whole.accumulated:.1e} in all",
        numeric=("own", "accumulated"),
    )
