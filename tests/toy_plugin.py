"""A plug-in with one of everything, as a user would write it: each thing registers itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from aft_models.remedies import Remedy, register
from aft_models.remedies.inputs import InputRemedy, Undo, same
from shiftbench.data import DATA_SOURCES, DataRequest, DataSource, ImageSet
from shiftbench.grid import Grid, Offset
from shiftbench.logs import LOGS, Sink
from shiftbench.metrics.base import METRICS, ImageBatch, Metric, column, image_rows
from shiftbench.models.names import ModelName
from shiftbench.models.sources import SOURCES as MODEL_SOURCES
from shiftbench.models.sources import Built, ModelEntry, Request
from shiftbench.report.formats import FORMATS, Format
from shiftbench.scores import ScoreName
from shiftbench.shifts import ATTACKS, SHIFTS, Attack, Scene, Shift, Views
from shiftbench.shifts.base import pick, view_size, window


class Mirror(Shift):
    """Whole-pixel crops of the mirror image."""

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
class Brightness(Metric):
    """The mean of the top probability: a metric outside [0, 1] would do as well."""

    summary = "how sure the model is"
    name = "sureness"
    columns = ("sureness",)

    def measure(self, batch: ImageBatch, before: pd.DataFrame) -> pd.DataFrame:
        sure = batch.clean.probability(batch.clean.prediction)
        return image_rows({"sureness": sure}, near_tie=False, passes=0)

    def outcomes(self, rows: pd.DataFrame) -> dict[ScoreName, NDArray[np.float64]]:
        return {ScoreName("sureness"): column(rows, "sureness")}


METRICS.register("sureness", Brightness)


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
    """The image over its mirror image."""

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

    def fingerprint(self, *, verify: bool = False) -> str:
        return "noise"


def _load(request: DataRequest) -> Noise:
    keys = [f"{i:02d}" for i in range(20)]
    return Noise("noise", "test", keys, [i % 4 for i in range(20)], ("a", "b", "c", "d"))


DATA_SOURCES.register("noise", DataSource("twenty images of noise", _load))


@dataclass(frozen=True)
class Lines:
    """A line per number."""

    file: Path

    def write(self, step: int, values: Mapping[str, float]) -> None:
        with self.file.open("a") as out:
            out.writelines(f"{step} {name} {value}\n" for name, value in values.items())

    def close(self) -> None:
        """Nothing is open."""


LOGS.register("lines", Sink("io", lambda folder, name, about: Lines(folder / "lines.txt")))
FORMATS.register(
    "names",
    Format((".names",), lambda board: "".join(c.name + "\n" for c in board.tables[0].columns)),
)
