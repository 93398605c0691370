"""Speed and contact sheet of the `scenes` renderer.

    python benchmarks/scenes.py                         # speed, and how shifts imitate the camera
    python benchmarks/scenes.py --sheet docs/images/scenes.png

Speeds are images per second of processor time on one thread, which other jobs disturb least.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from shiftbench.data import Scenes
from shiftbench.grid import ORIGIN, Grid, Offset
from shiftbench.scenes.world import CLASS_NAMES, OUTLINES, WEAVES
from shiftbench.shifts import SHIFTS

VIEW, MARGIN, INSIDE = 64, 6, 12
ZOOM, GAP, CAPTION = 2, 4, 26


def speed(work: Callable[[], int], repeats: int = 3) -> float:
    """Return the best images per second of processor time."""
    work()
    rates = []
    for _ in range(repeats):
        began = time.process_time()
        rates.append(work() / (time.process_time() - began))
    return max(rates)


def measure_speed(scenes: Scenes) -> None:
    """Print the speed of rendering and of the views of the camera attack."""
    print("| what | images a second per core |\n| --- | --- |")
    for view in (64, 128, 224):
        count = 256 * 64 * 64 // view**2
        rate = speed(lambda n=count, v=view: len(scenes.render(range(n), v)))  # type: ignore[misc]
        print(f"| `render`, {view} px | {rate:,.0f} |")

    grid = Grid(6, Fraction(1, 6))

    def camera() -> int:
        views = scenes.views(range(24), VIEW)
        return sum(len(views(offset)) for offset in grid)

    print(f"| `views` over the {len(grid)} offsets of `camera`, 64 px | {speed(camera, 1):,.0f} |")


def rms(difference: Tensor) -> float:
    """Return the root mean square in gray levels."""
    return float(difference.square().mean().sqrt())


def measure_imitation(scenes: Scenes, images: int) -> None:
    """Print the distance of bilinear, Lanczos and sinc shifts to the camera that they imitate."""
    canvas = scenes.render(range(images), VIEW, MARGIN).double()
    still = canvas[:, :, MARGIN:-MARGIN, MARGIN:-MARGIN]
    bilinear, lanczos = (SHIFTS.get(kind).views(canvas, MARGIN) for kind in ("bilinear", "lanczos"))
    cyclic = SHIFTS.get("cyclic").views(still, 0)
    inner = slice(INSIDE, -INSIDE)
    print("\n| offset (dy, dx) | not moved | bilinear | lanczos | sinc | sinc, borders left out |")
    print("| --- | --- | --- | --- | --- | --- |")
    for dy, dx in ((1, 1), (0, Fraction(1, 2)), *((Fraction(i, 6),) * 2 for i in (1, 2, 3))):
        offset = Offset(float(dy), float(dx))
        truth = scenes.render(range(images), VIEW, offset=offset).double()
        sinc = cyclic(offset) - truth
        canvases = (views(offset) - truth for views in (bilinear, lanczos))
        cells = (still - truth, *canvases, sinc, sinc[:, :, inner, inner])
        print(f"| ({dy}, {dx}) | " + " | ".join(f"{rms(cell):.2f}" for cell in cells) + " |")


def contact_sheet(scenes: Scenes, across: int = 2) -> Image.Image:
    """Draw several scenes of every class: a row per outline, a column per weave."""
    cell = across * (VIEW * ZOOM + GAP)
    sheet = Image.new(
        "RGB",
        (len(WEAVES) * (cell + 3 * GAP), len(OUTLINES) * (2 * cell // across + CAPTION + GAP)),
        "white",
    )
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=17)
    for label, name in enumerate(CLASS_NAMES):
        row, column = divmod(label, len(WEAVES))
        left = column * (cell + 3 * GAP) + 2 * GAP
        top = row * (2 * cell // across + CAPTION + GAP)
        draw.text((left + cell // 2, top + CAPTION // 2), name, "black", font, anchor="mm")
        members = [label + len(CLASS_NAMES) * turn for turn in range(2 * across)]
        for place, pixels in enumerate(scenes.render(members, VIEW, offset=ORIGIN)):
            image = Image.fromarray(np.asarray(pixels.permute(1, 2, 0)))
            image = image.resize((VIEW * ZOOM,) * 2, Image.Resampling.NEAREST)
            y, x = divmod(place, across)
            step = VIEW * ZOOM + GAP
            sheet.paste(image, (left + x * step, top + CAPTION + y * step))
    return sheet


def main() -> None:
    """Draw the sheet, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sheet", type=Path, help="write the contact sheet here and stop")
    parser.add_argument("--images", type=int, default=120, help="scenes for the imitation table")
    arguments = parser.parse_args()
    scenes = Scenes()
    if arguments.sheet is not None:
        contact_sheet(scenes).save(arguments.sheet, optimize=True)
        return
    torch.set_num_threads(1)
    measure_speed(scenes)
    measure_imitation(scenes, arguments.images)


if __name__ == "__main__":
    main()
