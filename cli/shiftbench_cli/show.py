"""`shiftbench show`: draw an image under shifts."""

from __future__ import annotations

from pathlib import Path

import click

from shiftbench.files import format_of
from shiftbench.pictures.show import (
    DEFAULT_OFFSETS,
    default_offsets,
    parse_offset,
    show_image,
)
from shiftbench.report.plots import ENDINGS, save_figure
from shiftbench_cli import options, render
from shiftbench_cli.options import OPTIONS, PATH

_DEFAULTS = ", ".join(f"{name}={o.dy:g},{o.dx:g}" for name, o in DEFAULT_OFFSETS.items())


@options.command("show")
@click.argument("image", type=PATH)
@options.picture("shifts.png")
@OPTIONS(
    "--offset offsets",
    "ATTACK=DY,DX",
    f"Offset in pixels; repeatable.  [default: {_DEFAULTS}]",
    multiple=True,
)
@OPTIONS("--size", "PIXELS", "Side of the view.", type=click.IntRange(16), default=224)
@options.model("Detector: draw the objects it always, sometimes or never detects.", required=False)
@options.data("Dataset with the objects of IMAGE.  [default: what the detector finds]")
@OPTIONS(
    "--max-shift", "PIXELS", "Largest crop of the detector.", type=click.IntRange(1), default=3
)
@OPTIONS("--score-threshold", "SCORE", "Score from which a detection counts.", type=float)
@options.plugins()
def command(
    image: Path,
    output: Path,
    offsets: tuple[str, ...],
    size: int,
    model: str | None,
    data: str | None,
    max_shift: int,
    score_threshold: float | None,
) -> None:
    """Draw IMAGE under each shift type, or with a detector's objects over a grid of crops."""
    format_of(output, ENDINGS)
    if model is not None:
        from shiftbench.data import load_dataset
        from shiftbench.models import load_model
        from shiftbench.pictures.detections import show_detections

        figure, counts = show_detections(
            image,
            load_model(model),
            max_shift=max_shift,
            score_threshold=score_threshold,
            dataset=None if data is None else load_dataset(data),
        )
        save_figure(figure, output)
        words = ", ".join(f"{count} {often}" for often, count in counts.items())
        render.note(f"{output}: objects detected at crops up to {max_shift} px: {words}")
        return
    chosen = {**default_offsets(size), **dict(parse_offset(text) for text in offsets)}
    save_figure(show_image(image, offsets=chosen, view=size), output)
    render.note(f"{output}: {image.name} under {len(chosen)} shifts")
