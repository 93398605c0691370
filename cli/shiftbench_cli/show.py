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
@options.plugins()
def command(image: Path, output: Path, offsets: tuple[str, ...], size: int) -> None:
    """Draw IMAGE under each shift type, and what each shift changes."""
    format_of(output, ENDINGS)
    chosen = {**default_offsets(size), **dict(parse_offset(text) for text in offsets)}
    save_figure(show_image(image, offsets=chosen, view=size), output)
    render.note(f"{output}: {image.name} under {len(chosen)} shifts")
