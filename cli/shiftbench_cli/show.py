"""`shiftbench show`."""

from __future__ import annotations

from pathlib import Path

import click

from shiftbench.files import format_of
from shiftbench.pictures.show import DEFAULT_OFFSETS, parse_offset, show_image
from shiftbench.report.plots import ENDINGS, save_figure
from shiftbench_cli import options

_DEFAULTS = ", ".join(f"{name}={o.dy:g},{o.dx:g}" for name, o in DEFAULT_OFFSETS.items())


@click.command()
@click.argument("image", type=click.Path(path_type=Path))
@options.picture("shifts.png")
@click.option(
    "--offset",
    "offsets",
    multiple=True,
    metavar="ATTACK=DY,DX",
    help=f"Pixels to shift by; repeatable. Default: {_DEFAULTS}.",
)
@click.option(
    "--size",
    type=click.IntRange(min=16),
    default=224,
    show_default=True,
    help="Side of the view a model would see, in pixels.",
)
@options.plugins
def command(image: Path, output: Path, offsets: tuple[str, ...], size: int) -> None:
    """Draw IMAGE under each kind of shift.

    Cyclic whole-pixel, cyclic half-pixel (sinc), crop and bilinear; what each changes; and how the
    sinc shift rings near edges.
    """
    format_of(output, ENDINGS)
    chosen = {**DEFAULT_OFFSETS, **dict(parse_offset(text) for text in offsets)}
    save_figure(show_image(image, offsets=chosen, view=size), output)
    click.echo(f"{output}: {image.name} under {len(chosen)} shifts", err=True)
