"""Whether `select` should put its peak on the pixel grid, for moves by fractions of a pixel.

    python benchmarks/subpixel.py timm:tf_efficientnet_lite0 --checkpoint EXPORT \
        --data folder:PHOTOS --crop-pct 0.75 --limit 200

A camera that moves by half a pixel leaves the highest peak of the content between two pixels, and
`select` takes the crop of the nearer one. Here the peak is also located between them, by a parabola
through its neighbors, and the crop is resampled so that the peak lies on a pixel, by linear and by
cubic interpolation. Right answers at every half-pixel move up to 1 px.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from fractions import Fraction

import torch
import torch.nn.functional as F
from models import print_table
from torch import Tensor

from aft_models.layers.polyphase import Phase
from aft_models.preprocessing import normalize
from aft_models.remedies import select
from aft_models.remedies.phases import window_each
from shiftbench.data import canvas_batches, load_dataset, relabeled
from shiftbench.geometry import geometry_for
from shiftbench.grid import Grid
from shiftbench.models import load_model
from shiftbench.shifts import SHIFTS
from shiftbench.statistics import wilson

BATCH, MARGIN = 50, 8
GRID = Grid(2, Fraction(1, 2))
RESERVE = MARGIN + 6  # for the twelve taps of lanczos
KINDS = ("bilinear", "lanczos")


def linear(part: Tensor) -> Tensor:
    """Weights (B, 2) of the pixels 0 and 1 for values `part` of the way between them."""
    return torch.stack([1 - part, part], 1)


def cubic(part: Tensor) -> Tensor:
    """Weights (B, 4) of the pixels -1 to 2, of Catmull and Rom."""
    t = (torch.arange(-1, 3) - part[:, None]).abs()
    near, far = 1.5 * t**3 - 2.5 * t**2 + 1, -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2
    return torch.where(t <= 1, near, far)


def peak(images: Tensor) -> tuple[Tensor, Tensor]:
    """The pixel (B, 2) of the highest peak, and how far beside it (B, 2) a parabola has it."""
    fine, coarse = select._blur(select._blur(images.mean(1, keepdim=True)).mT).mT.unbind(1)
    scores, each = (fine - coarse).abs(), torch.arange(len(images))
    best = Phase.largest(select._scores(images))
    row, column = best.rows + 1, best.columns + 1
    top = scores[each, row, column]
    beside = [
        (scores[each, row - 1, column], scores[each, row + 1, column]),
        (scores[each, row, column - 1], scores[each, row, column + 1]),
    ]
    parts = [
        (0.5 * (a - b) / (a - 2 * top + b).clamp(max=-1e-12)).clamp(-0.5, 0.5) for a, b in beside
    ]
    return torch.stack([best.rows, best.columns], 1), torch.stack(parts, 1)


def aligned(images: Tensor, size: int, kernel: Callable[[Tensor], Tensor]) -> Tensor:
    """The crop on the lattice of the peak, resampled so that the peak lies on a pixel."""
    place, part = peak(images)
    start = place % (2 * MARGIN + 1) + part.floor().long()
    weights = [kernel(p - p.floor()) for p in part.unbind(1)]
    taps = weights[0].shape[1]
    padded = F.pad(images, (taps // 2,) * 4, mode="replicate")
    x = window_each(padded, start[:, 0] + 1, start[:, 1] + 1, (size + taps - 1,) * 2)
    for axis, weight in zip((2, 3), weights, strict=True):
        x = sum(weight[:, i, None, None, None] * x.narrow(axis, i, size) for i in range(taps))
    return x


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--checkpoint")
    parser.add_argument("--data", required=True)
    parser.add_argument("--crop-pct", default="paper")
    parser.add_argument("--limit", type=int, default=200)
    given = parser.parse_args()
    classifier = load_model(given.model, checkpoint=given.checkpoint)
    dataset = load_dataset(given.data, limit=given.limit)
    dataset = relabeled(dataset, classifier.num_classes, classifier.class_names)
    preprocessing = classifier.preprocessing
    size = preprocessing.input_size
    geometry = geometry_for(preprocessing, margin=RESERVE, crop_pct=given.crop_pct)
    choose = select.Select(MARGIN)
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "as it is": lambda x: x[..., MARGIN:-MARGIN, MARGIN:-MARGIN],
        "select": lambda x: choose.show(x)[0],
        "select, resampled linearly": lambda x: aligned(x, size, linear),
        "select, resampled by cubics": lambda x: aligned(x, size, cubic),
    }
    right: dict[tuple[str, str, int], list[Tensor]] = {}
    for batch in canvas_batches(dataset, geometry, batch_size=BATCH, workers=0):
        canvas = normalize(batch.canvas, preprocessing.mean, preprocessing.std)
        labels = torch.as_tensor(batch.labels)
        for kind in KINDS:
            views = SHIFTS.get(kind).views(canvas, RESERVE - MARGIN)
            for way, crop in ways.items():
                held = torch.ones(len(labels), dtype=torch.bool)
                for offset, ring in zip(GRID, GRID.rings, strict=True):
                    with torch.inference_mode():
                        held &= classifier(crop(views(offset))).argmax(1) == labels
                    if ring == 0:
                        right.setdefault((kind, way, 0), []).append(held.clone())
                right.setdefault((kind, way, 1), []).append(held)
    rows = []
    for kind in KINDS:
        for way in ways:
            ends = [torch.cat(right[kind, way, reach]) for reach in (0, 1)]
            rows.append([kind, way, *(str(wilson(int(end.sum()), len(end))) for end in ends)])
    print_table(["shift", "way", "clean", "1 px"], rows)


if __name__ == "__main__":
    main()
