"""How many different crops `select` takes while the camera moves.

    python benchmarks/selection.py folder:PHOTOS --view 96 --limit 300

The network's answer is the same wherever it is shown the same crop, so the fewer crops the better.
For several margins m, scores of the content and ways to use them (the candidate of highest score at
its center; peaks only; the lattice of the highest peak of the view, as `select`): the share
of moves by one pixel that keep the crop, the mean number of different crops among all moves up to
1, 2 and 3 pixels, and how far from the center of the view they lie.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from models import print_table
from torch import Tensor

from aft_models.layers.polyphase import Phase
from aft_models.preprocessing import Preprocessing
from aft_models.remedies.select import Select
from shiftbench.data import CanvasBatch, canvas_batches, load_dataset
from shiftbench.geometry import Geometry, geometry_for
from shiftbench.grid import ORIGIN, Grid
from shiftbench.shifts import SHIFTS

BATCH = 50
RADII = (1, 2, 3)
PEAK, EDGE = 2, 8  # pixels
WAYS = ("highest", "peak", "lattice")
HALF = (0.5, 0.5, 0.5)  # mean and std: scores are compared within an image

Score = Callable[[Tensor], Tensor]  # gray images (B, 1, H, W) -> (B, H, W)


def gaussian(gray: Tensor, sigma: float) -> Tensor:
    """The image blurred; the edge of the view is repeated."""
    radius = round(3 * sigma)
    x = torch.arange(-radius, radius + 1, dtype=gray.dtype)
    kernel = torch.exp(-0.5 * (x / sigma) ** 2)
    kernel = kernel / kernel.sum()
    gray = F.pad(gray, (radius,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(gray, kernel.view(1, 1, -1, 1)), kernel.view(1, 1, 1, -1))


def difference(fine: float, coarse: float) -> Score:
    """The absolute difference of two Gaussians."""
    return lambda gray: (gaussian(gray, fine) - gaussian(gray, coarse)).abs()[:, 0]


def gradient_energy(sigma: float) -> Score:
    """The squared gradient, blurred."""

    def score(gray: Tensor) -> Tensor:
        padded = F.pad(gray, (1, 1, 1, 1), mode="replicate")
        rows = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
        columns = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
        return gaussian(rows**2 + columns**2, sigma)[:, 0]

    return score


SCORES: Mapping[str, Score] = {
    "Gaussians 1, 2 px": difference(1, 2),
    "Gaussians 2, 4 px": difference(2, 4),
    "Gaussians 4, 8 px": difference(4, 8),
    "gradient energy, 2 px": gradient_energy(2),
    "gradient energy, 4 px": gradient_energy(4),
}


def place(images: Tensor, margin: int, score: Score, way: str) -> Tensor:
    """Where the crop of each image begins, (B, 2)."""
    scores = score(images.mean(1, keepdim=True))
    span = 2 * margin + 1
    if way != "highest":
        peaks = scores >= F.max_pool2d(scores, 2 * PEAK + 1, stride=1, padding=PEAK)
        scores = torch.where(peaks, scores, scores - scores.amax((1, 2), keepdim=True))
    if way == "lattice":
        best = Phase.largest(scores[:, EDGE:-EDGE, EDGE:-EDGE])
        return torch.stack([best.rows, best.columns], 1) % span
    height, width = (side // 2 - margin for side in scores.shape[1:])
    best = Phase.largest(scores[:, height : height + span, width : width + span])
    return torch.stack([best.rows, best.columns], 1)


def crops(
    canvas: Tensor, reserve: int, margin: int, chosen: Callable[[Tensor], Tensor]
) -> Iterator[tuple[int, Tensor]]:
    """The ring of each move, and where on the canvas the crops (B, 2) begin."""
    views = SHIFTS.get("crop").views(canvas, reserve - margin)
    grid = Grid(max(RADII))
    for offset, ring in zip(grid, grid.rings, strict=True):
        moved = torch.tensor([int(offset.dy), int(offset.dx)])
        yield ring, chosen(views(offset)) + moved


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--view", type=int, default=224)
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--margins", type=int, nargs="+", default=[2, 4, 8, 12])
    given = parser.parse_args()
    dataset = load_dataset(given.data)
    reserve = max(given.margins) + max(RADII)
    geometry: Geometry = geometry_for(
        Preprocessing(given.view, HALF, HALF), margin=reserve, shift="select", crop_pct="paper"
    )
    step = max(1, len(dataset) // given.limit)
    batches = list(
        canvas_batches(dataset, geometry, range(0, len(dataset), step), batch_size=BATCH)
    )
    rows = []
    for margin in given.margins:
        for name, score in SCORES.items():
            for way in WAYS:

                def chosen(images: Tensor, score: Score = score, way: str = way) -> Tensor:
                    return place(images, margin, score, way)  # noqa: B023

                rows.append([str(margin), name, way, *measure(batches, reserve, margin, chosen)])
        select = Select(margin).place
        rows.append([str(margin), "select", "", *measure(batches, reserve, margin, select)])
    heads = [
        "m",
        "score",
        "way",
        "crop kept at 1 px",
        *(f"crops, {r} px" for r in RADII),
        "off center",
    ]
    print_table(heads, rows)


def measure(
    batches: list[CanvasBatch], reserve: int, margin: int, chosen: Callable[[Tensor], Tensor]
) -> list[str]:
    """The cells of one way to choose."""
    kept, distinct, away = [], {radius: [] for radius in RADII}, []
    for batch in batches:
        canvas = batch.canvas.float() / 255
        seen = list(crops(canvas, reserve, margin, chosen))
        first = seen[0][1]
        assert seen[0][0] == 0, ORIGIN
        away.append((first - margin).abs().amax(1).double())
        kept += [(places == first).all(1).double() for ring, places in seen if ring == 1]
        for radius in RADII:
            inside = torch.stack([places for ring, places in seen if ring <= radius])  # (N, B, 2)
            code = inside[..., 0] * 1000 + inside[..., 1]
            distinct[radius] += [len(set(column.tolist())) for column in code.T]
    return [
        f"{100 * torch.cat(kept).mean():.0f}%",
        *(f"{sum(counts) / len(counts):.1f}" for counts in distinct.values()),
        f"{torch.cat(away).mean():.1f} px",
    ]


if __name__ == "__main__":
    main()
