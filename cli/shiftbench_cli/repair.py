"""`shiftbench repair`: which remedies apply to a model, what each changes, and what it costs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch

from aft_models.repair import REMEDIES
from shiftbench.audit.trials import RepairTrial, try_remedies
from shiftbench.data import RenderedSet, canvas_batches, load_dataset, relabeled
from shiftbench.errors import UsageError
from shiftbench.models import load_model
from shiftbench.models.classifier import LogitsOnly
from shiftbench.models.repaired import split_remedies
from shiftbench.preprocessing import geometry_for, normalize
from shiftbench.statistics import wilson
from shiftbench_cli import completion, options, render

PAIRS = ("circular+blurpool", "circular+flc", "circular+aps")  # often tried together


@click.command("repair")
@click.option(
    "-m",
    "--model",
    required=True,
    help="Model name, as for `shiftbench run`.",
    shell_complete=completion.models,
)
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Weights for the model.")
@click.option(
    "-r",
    "--remedy",
    "chosen",
    multiple=True,
    help="Remedies to try, such as circular+aps; repeatable. Default: all.",
)
@click.option(
    "-d",
    "--data",
    metavar="NAME[:PATH]",
    help="Images to use; accuracy is measured too.",
    shell_complete=completion.datasets,
)
@click.option(
    "--images",
    default=8,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many images to measure on.",
)
@click.option("--explain", is_flag=True, help="List the layers that each remedy changes.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Output format on stdout.",
)
@options.plugins
def command(
    model: str,
    checkpoint: Path | None,
    chosen: tuple[str, ...],
    data: str | None,
    images: int,
    explain: bool,
    form: str,
) -> None:
    """Show which remedies apply to a model, what each changes, and what it costs.

    Change: how much the logits move, relative to their size, under a cyclic shift by one pixel and
    by half a pixel on both axes, for the first eight images. Cost: CPU time of a forward pass
    relative to the original. No remedy is trained here. Use one by its name: `shiftbench run -m
    MODEL+circular+aps`.
    """
    if split_remedies(model)[1]:
        raise UsageError(f"{model} has remedies already: give the model without them")
    classifier = load_model(model, checkpoint=checkpoint)
    network = classifier.module
    assert isinstance(network, LogitsOnly)
    if not isinstance(network.model, torch.nn.Module):
        raise UsageError(f"remedies change the layers of a PyTorch network, and {model} shows none")
    pixels, labels = _images(classifier, data, images)
    remedies = list(chosen) or [*REMEDIES, *PAIRS]
    found = try_remedies(network.model, pixels, remedies, labels=labels)
    if form == "json":
        click.echo(json.dumps([_plain(t, len(pixels)) for t in found], indent=2))
        return
    _print(model, found, len(pixels))
    if explain:
        _explain(found)


def _images(classifier: Any, data: str | None, count: int) -> tuple[Any, Any]:
    """Normalized images of the data, with labels where the user named the data."""
    dataset = load_dataset(data or "scenes", limit=count)
    recipe = classifier.preprocessing
    if data is not None:
        dataset = relabeled(dataset, classifier.num_classes, classifier.class_names)
    geometry = geometry_for(
        recipe,
        finished=dataset.has_size(recipe.input_size),
        rendered=isinstance(dataset, RenderedSet),
    )
    batch = next(canvas_batches(dataset, geometry, batch_size=count, workers=0))
    pixels = normalize(batch.canvas, recipe.mean, recipe.std)
    return pixels, None if data is None else batch.labels


def _plain(treatment: RepairTrial, images: int) -> dict[str, Any]:
    return {
        **{k: v for k, v in vars(treatment).items() if k != "reports"},
        "images": images,
        "new_parameters": treatment.new_parameters,
        "needs_finetuning": treatment.needs_finetuning,
        "reports": [asdict(report) for report in treatment.reports],
    }


def _print(model: str, found: list[RepairTrial], images: int) -> None:
    measured = [t for t in found if not t.refused]
    with_labels = any(t.correct is not None for t in measured)
    columns = [
        "remedy",
        "layers\nchanged",
        "not\nreached",
        "change\n1 px",
        "change\n1/2 px",
        "cost",
    ]
    columns += ["new\nparams", "fine-\ntune"] + (["top-1"] if with_labels else [])
    rows = []
    for t in measured:
        row = [
            t.remedies or "(as it is)",
            f"{t.changed:,}" if t.remedies else "",
            f"{t.unchanged:,}" if t.unchanged else "",
            f"{t.whole:.1e}",
            f"{t.half:.1e}",
            f"{t.cost:.1f}x",
            f"{t.new_parameters:,}" if t.new_parameters else "",
            "yes" if t.needs_finetuning else "",
        ]
        right = "" if t.correct is None else render.shown(wilson(t.correct, images))
        rows.append([*row, *([right] if with_labels else [])])
    render.print_table(
        columns,
        rows,
        title=f"{model}: remedies, {images} images, nothing trained",
        numeric=columns[1:],
    )
    for t in found:
        if t.refused:
            render.note(f"{t.remedies}: {t.refused}")


def _explain(found: list[RepairTrial]) -> None:
    for treatment in found:
        for report in treatment.reports:
            rows = [(c.layer or "(the model)", c.kind, c.what) for c in report.changed]
            rows += [(o.where, "", f"not reached: {o.why}") for o in report.unchanged]
            title = f"{treatment.remedies}: {report.remedy}"
            render.print_table(("layer", "kind", "what"), rows, title=title)
