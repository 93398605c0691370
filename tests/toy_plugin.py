"""A plug-in with one entry of every registry, as a user would write it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from aft_models.remedies import Remedy, register
from aft_models.remedies.inputs import InputRemedy, Undo, same
from shiftbench.data import DATA_SOURCES, DataRequest, DataSource, ImageSet
from shiftbench.grid import Grid, Offset
from shiftbench.metrics.base import METRICS, Metric, Outcomes, View
from shiftbench.models.names import ModelName
from shiftbench.models.sources import SOURCES as MODEL_SOURCES
from shiftbench.models.sources import Built, ModelEntry, Request
from shiftbench.report.formats import FORMATS
from shiftbench.scores import ScoreName
from shiftbench.shifts import ATTACKS, SHIFTS, Attack, Scene, Shift, Views
from shiftbench.shifts.base import pick, view_size, window
from shiftbench.tables import Cells


class Mirror(Shift):
    """Integer crops of the mirror image."""

    def views(self, canvas: Tensor, margin: int, scene: Scene | None = None) -> Views:
        height, width = view_size(canvas, margin)

        def view(offset: Offset, rows: Tensor | None = None) -> Tensor:
            top, left = margin + int(offset.dy), margin + int(offset.dx)
            seen = pick(window(canvas, top, left, height, width), rows)
            return seen if offset == Offset(0.0, 0.0) else seen.flip(-1)

        return view


SHIFTS.register("mirror", Mirror())
ATTACKS.register("mirrored", Attack("mirrored", "mirror", Fraction(1), "crops of the mirror image"))


class Turn(Shift):
    """Rotations about the center, by an angle in degrees; corners repeat the border."""

    def margin(self, grid: Grid) -> int:
        return 0

    def views(self, canvas: Tensor, margin: int, scene: Scene | None = None) -> Views:
        height, width = view_size(canvas, margin)
        view = window(canvas, margin, margin, height, width)

        def turned(offset: Offset, rows: Tensor | None = None) -> Tensor:
            images, angle = pick(view, rows), math.radians(offset.dy)
            cos, sin = math.cos(angle), math.sin(angle)
            matrix = [[cos, -sin * height / width, 0], [sin * width / height, cos, 0]]
            turn = images.new_tensor(matrix).expand(len(images), 2, 3)
            where = F.affine_grid(turn, list(images.shape), align_corners=False)
            return F.grid_sample(images, where, padding_mode="border", align_corners=False)

        return turned


SHIFTS.register("turn", Turn())
ATTACKS.register(
    "turned", Attack("turned", "turn", Fraction(15), "rotations by 15 degrees", unit="°", axes=1)
)


@dataclass(frozen=True)
class Opposites(Metric):
    """Fraction of images with the same class 1 px to the left and to the right."""

    name = "opposites"

    def margin(self) -> int:
        return 1

    def views(self, image: str) -> list[View]:
        return [View("crop", Offset(0.0, dx)) for dx in (-1.0, 1.0)]

    def outcomes(self, cells: Cells) -> Outcomes:
        same = cells.classes[:, 1] == cells.classes[:, 2]
        return {ScoreName("opposites"): np.where(cells.known.all(1), same, np.nan)}


METRICS.register("opposites", Opposites)


class Toys:
    """`toy:NAME`: a network of random weights."""

    def build(self, name: ModelName, request: Request) -> Built:
        torch.manual_seed(len(name.name))
        network = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
        network(torch.zeros(1, 3, 16, 16))
        return Built(network, {"input_size": 16, "mean": (0.5,) * 3, "std": (0.25,) * 3})

    def entries(self) -> list[ModelEntry]:
        return [ModelEntry("toy:one", "toy", weights=False)]


MODEL_SOURCES.register("toy", Toys())


class OverMirror(InputRemedy):
    """Image above its mirror image."""

    def show(self, images: Tensor) -> tuple[Tensor, Undo]:
        return torch.maximum(images, images.flip(-1)), same


register(
    Remedy(
        "mirrored_2",
        "placement",
        "the image over its mirror image",
        ("position",),
        input=True,
        function=OverMirror,
    )
)


class Noise(ImageSet):
    """Twenty images of noise."""

    def image(self, index: int) -> Image.Image:
        pixels = np.random.default_rng(index).integers(0, 255, (20, 20, 3), dtype=np.uint8)
        return Image.fromarray(pixels)

    def has_size(self, side: int) -> bool:
        return side == 20


def _load(request: DataRequest) -> Noise:
    keys = [f"{i:02d}" for i in range(20)]
    return Noise("noise", "test", keys, [i % 4 for i in range(20)], ("a", "b", "c", "d"))


DATA_SOURCES.register("noise", DataSource("twenty images of noise", _load))


FORMATS[".names"] = lambda tables: "".join(f"{name.stem}\n" for name in tables[0].columns)
