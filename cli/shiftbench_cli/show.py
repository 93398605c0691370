"""`shiftbench show`: draw an image under shifts, or the predictions of models over offsets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shiftbench.errors import UsageError
from shiftbench.files import format_of
from shiftbench.models.names import parse_models, require_one_model
from shiftbench.pictures.show import (
    DEFAULT_OFFSETS,
    default_offsets,
    parse_offset,
    show_image,
)
from shiftbench.report.plots import ENDINGS, save_figure
from shiftbench_cli import options, render
from shiftbench_cli.options import COUNT, PATH, Choice, Group

if TYPE_CHECKING:  # imported in functions: help needs no torch
    from shiftbench.models import Model

_DEFAULTS = ", ".join(f"{name}={o.dy:g},{o.dx:g}" for name, o in DEFAULT_OFFSETS.items())
PREDICTIONS = Group("Predictions")
SHIFTS = Group("Shift types (without a model)")
OUTPUT = Group("Output")


@options.command("show")
@click.argument("image")
@options.models(
    "Model whose predictions are drawn, e.g. timm:resnet50; repeatable.", group=PREDICTIONS
)
@options.checkpoint(PREDICTIONS)
@options.strip_prefix(PREDICTIONS)
@PREDICTIONS(
    "--label",
    "CLASS",
    "Correct class, by name or index.  [default: the class predicted without a shift]",
)
@PREDICTIONS("-a --attack", "NAME[:STEP]", "Shift type and step.", default="crop")
@PREDICTIONS("--max-shift", "STEPS", "Grid radius.", type=click.IntRange(1), default=3)
@PREDICTIONS(
    "--crop-pct", "RULE", "Resize: paper (256/224), model, or a fraction.", default="paper"
)
@PREDICTIONS(
    "--pad",
    "MODE",
    "If the image is too small to shift: none, reflect, zeros.",
    type=Choice(["none", "reflect", "zeros"]),
    default="none",
)
@PREDICTIONS(
    "--scale",
    "N",
    "Camera px per network px.  [default: 2 with align or camera on files, else 1]",
    type=COUNT,
)
@options.data(
    "Dataset with the objects of IMAGE, for a detector.  [default: its detections]",
    group=PREDICTIONS,
)
@PREDICTIONS("--score-threshold", "SCORE", "Score from which a detection counts.", type=float)
@options.device(PREDICTIONS)
@SHIFTS(
    "--offset offsets",
    "ATTACK=DY,DX",
    f"Offset in pixels; repeatable.  [default: {_DEFAULTS}]",
    multiple=True,
)
@SHIFTS("--size", "PIXELS", "Side of the view.", type=click.IntRange(16), default=224)
@OUTPUT(
    "-o --output",
    "FILE",
    "Picture to write: .png, .pdf or .svg.",
    type=PATH,
    default=Path("shifts.png"),
)
@options.plugins(OUTPUT)
def command(
    image: str,
    models: tuple[str, ...],
    output: Path,
    offsets: tuple[str, ...],
    size: int,
    **settings: Any,
) -> None:
    r"""Draw IMAGE and the class that each model predicts at every offset of a grid.

    IMAGE is a file, or scenes:N for an image of the embedded dataset. With a detector, draw the
    objects that are always, sometimes and never detected. Without --model, draw the file under each
    shift type.

    \b
    shiftbench show photo.jpg -m timm:resnet50 -m timm:resnet50+align:8
    shiftbench show scenes:7 -m xcit_pico_6_p8.scenes -m xcit_pico_6_p8_af.scenes
    """
    format_of(output, ENDINGS)
    if models:
        _draw_predictions(image, models, output, **settings)
        return
    chosen = {**default_offsets(size), **dict(parse_offset(text) for text in offsets)}
    save_figure(show_image(Path(image), offsets=chosen, view=size), output)
    render.note(f"{output}: {Path(image).name} under {len(chosen)} shifts")


def _draw_predictions(
    image: str,
    texts: tuple[str, ...],
    output: Path,
    *,
    checkpoint: Path | None,
    strip_prefix: str | None,
    label: str | None,
    attack: str,
    max_shift: int,
    crop_pct: str,
    pad: str,
    scale: int | None,
    data: str | None,
    score_threshold: float | None,
    device: str,
) -> None:
    from shiftbench.data import RenderedSet
    from shiftbench.models import load_model
    from shiftbench.pictures.predictions import open_image, predict_image, predictions_figure
    from shiftbench.running.suite import RunSpec, with_shared_view

    if attack in ("all", "none"):
        raise UsageError(f"expected one attack, got {attack!r}. Use --attack crop")
    if checkpoint is not None:
        require_one_model(texts)
    names = parse_models(list(dict.fromkeys(texts)))
    if len(names) == 1:
        model = load_model(names[0], checkpoint=checkpoint, strip_prefix=strip_prefix)
        if model.task.has_parts:
            _draw_objects(Path(image), model, output, max_shift, scale, data, score_threshold)
            return
    if data is not None or score_threshold is not None:
        raise UsageError(
            "--data and --score-threshold need one detector as --model. Leave them out"
        )
    opened = open_image(image)
    source = "scenes" if isinstance(opened, RenderedSet) else f"folder:{image}"
    specs = with_shared_view(
        [
            RunSpec(
                model=text,
                data=source,
                attacks=(attack,),
                max_shift=max_shift,
                crop_pct=crop_pct,
                pad=pad,
                scale=scale,
            )
            for text in dict.fromkeys(texts)
        ]
    )
    grids = []
    for name, spec in zip(names, specs, strict=True):
        model = load_model(
            name,
            checkpoint=checkpoint,
            strip_prefix=strip_prefix,
            class_names=opened.class_names,
        )
        grids.append(predict_image(model, opened, spec, label=label, device=device))
    save_figure(predictions_figure(opened, grids), output)
    for grid in grids:
        right = grid.predicted - sum(grid.wrong.values())
        what = "correct" if grid.labeled else "the class of the unshifted image"
        render.note(f"{grid.model}: {what} at {right} of {grid.predicted} offsets")
    render.note(f"{output}: {Path(image).name}, {len(grids)} models")


def _draw_objects(
    image: Path,
    model: Model,
    output: Path,
    max_shift: int,
    scale: int | None,
    data: str | None,
    score_threshold: float | None,
) -> None:
    from shiftbench.data import load_dataset
    from shiftbench.pictures.detections import show_detections

    figure, counts = show_detections(
        image,
        model,
        max_shift=max_shift,
        score_threshold=score_threshold,
        scale=scale,
        dataset=None if data is None else load_dataset(data),
    )
    save_figure(figure, output)
    words = ", ".join(f"{count} {often}" for often, count in counts.items())
    render.note(f"{output}: objects detected at crops up to {max_shift} px: {words}")
