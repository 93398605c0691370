"""Displacement of the grid of adaptive sampling when an image is cropped one pixel further.

    python benchmarks/phases.py timm:tf_efficientnet_lite0+circular+aps --checkpoint EXPORT \
        --data folder:PATH --limit 500

A network with a total stride of 32 samples every 32nd pixel, at a phase chosen by `aps`. For each
image and each crop shifted by at most one pixel, this script measures the displacement of the
sampling grid over the content (pixels), and counts changed predictions. Without `aps` the grid is
fixed in the view, so its displacement over the content equals the shift.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from models import print_table
from torch import Tensor, nn

from aft_models.preprocessing import normalize
from aft_models.remedies.phases import ForwardPass
from shiftbench.data import canvas_batches, load_dataset, relabeled
from shiftbench.geometry import geometry_for
from shiftbench.grid import ORIGIN, Grid, Offset
from shiftbench.models import Model, load_model
from shiftbench.shifts import SHIFTS
from shiftbench.statistics import wilson

BATCH = 50
BINS = ((0, 0), (1, 1), (2, 4), (5, 16))  # pixels


def grid_positions(classifier: Model) -> Callable[[Tensor], tuple[Tensor, Tensor, int]]:
    """Build a function that predicts images and locates the sampling grid.

    Returns:
        A function from images to predictions (B,), grid positions (B, 2) and the stride.
    """
    root = classifier.network
    assert isinstance(root, nn.Module)
    passes = [hook for hook in root._forward_hooks.values() if isinstance(hook, ForwardPass)]
    found: list[tuple[Tensor, int]] = []

    def note(*_: object) -> None:  # before the choices are cleared
        place, step = torch.zeros(1, 2, dtype=torch.int64), 1
        for phase in passes[0].choices.values():
            place = place + step * torch.stack([phase.rows, phase.columns], 1)
            step *= phase.stride[0]
        found.append((place, step))

    if passes:
        root.register_forward_hook(note, prepend=True)

    @torch.inference_mode()
    def predict(images: Tensor) -> tuple[Tensor, Tensor, int]:
        found[:] = [(torch.zeros(len(images), 2, dtype=torch.int64), 32)]
        classes = classifier(images).argmax(1)
        return classes, *found[-1]

    return predict


def moved(before: Tensor, after: Tensor, offset: Offset, stride: int) -> Tensor:
    """Return the displacement (B,) of the grid over the content (pixels, worse axis)."""
    camera = torch.tensor([int(offset.dy), int(offset.dx)])
    distance = (after + camera - before) % stride
    return torch.minimum(distance, stride - distance).amax(1)


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--checkpoint")
    parser.add_argument("--data", required=True)
    parser.add_argument("--limit", type=int, default=500)
    options = parser.parse_args()
    classifier = load_model(options.model, checkpoint=options.checkpoint)
    data = load_dataset(options.data, limit=options.limit)
    data = relabeled(data, classifier.num_classes, classifier.class_names)
    recipe = classifier.preprocessing
    geometry = geometry_for(recipe, margin=1)
    predict = grid_positions(classifier)
    distances, changed = [], []
    for batch in canvas_batches(data, geometry, batch_size=BATCH, workers=0):
        views = SHIFTS.get("crop").views(normalize(batch.canvas, recipe.mean, recipe.std), 1)
        first, place, stride = predict(views(ORIGIN))
        for offset in Grid(1).offsets[1:]:
            classes, now, _ = predict(views(offset))
            distances.append(moved(place, now, offset, stride))
            changed.append(classes != first)
    distance, change = torch.cat(distances), torch.cat(changed)
    rows = []
    for low, high in BINS:
        inside = (distance >= low) & (distance <= high)
        pairs, flips = int(inside.sum()), int(change[inside].sum())
        score = wilson(flips, pairs) if pairs else None
        rows.append(
            [
                f"{low}" if low == high else f"{low} to {high}",
                f"{100 * pairs / len(distance):.1f}",
                "" if score is None else f"{score.text()} {score.interval()}",
            ]
        )
    print(f"{options.model}, {len(data)} images, {len(distance)} crops")
    print_table(["grid moved, px", "crops, %", "predictions changed, %"], rows)
    print(f"all crops: {wilson(int(change.sum()), len(change))}")


if __name__ == "__main__":
    main()
