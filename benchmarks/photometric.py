"""Predictions changed by JPEG, gamma, brightness and vignetting, with and without `align`.

    python benchmarks/photometric.py tv:mobilenet_v2 --checkpoint WEIGHTS --data imagenet:PATH

A remedy for shifts should not make predictions depend more on exposure. Each change is applied to
the canvas, the picture of a camera with twice the network's resolution. Percent of the images whose
class differs from the class of the unchanged picture, and paired differences to the original model.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from models import print_table
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from aft_models.preprocessing import normalize
from shiftbench.data import ImageSet, canvas_batches, load_dataset
from shiftbench.models import load_model, parse_model
from shiftbench.running.job import Settings, make_job
from shiftbench.running.runner import make_predictor
from shiftbench.statistics import compare_paired, mean_score

Pixels = NDArray[np.uint8]  # (H, W, 3)
VIGNETTE = 0.5  # brightness at the corners, relative to the center


def jpeg(pixels: Pixels) -> Pixels:
    """Encode with quality 70 and decode again."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "jpeg", quality=70)
    return np.asarray(Image.open(content))


def levels(change: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Callable[..., Pixels]:
    """Apply a function of gray levels from 0 to 1, and round to 8 bits."""
    return lambda pixels: (change(pixels / 255.0).clip(0, 1) * 255).round().astype(np.uint8)


def vignette(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Darken the corners by a parabola."""
    y, x = (np.linspace(-1, 1, side) for side in pixels.shape[:2])
    return pixels * (1 - (1 - VIGNETTE) / 2 * (y[:, None, None] ** 2 + x[:, None] ** 2))


CHANGES: dict[str, Callable[[Pixels], Pixels]] = {
    "JPEG 70": jpeg,
    "gamma 0.8": levels(lambda x: x**0.8),
    "gamma 1.3": levels(lambda x: x**1.3),
    "brightness 1.2": levels(lambda x: 1.2 * x),
    "vignette": levels(vignette),
}


def changed_classes(name: str, dataset: ImageSet, arguments: argparse.Namespace) -> Tensor:
    """Return (changes, images): 1 where a change of the picture changes the predicted class."""
    model = load_model(parse_model(name), checkpoint=arguments.checkpoint)
    settings = Settings(
        attacks=("none",), consistency=(), scale=2, limit=arguments.limit, pad=arguments.pad
    )
    job = make_job(model, dataset, settings)
    predictor = make_predictor(job, torch.device("cpu"), None)
    facts, parts = model.preprocessing, []
    chosen = [job.order[job.position[key]] for key in job.keys]
    for batch in canvas_batches(dataset, job.geometry, chosen, batch_size=8, workers=0):
        pixels = batch.canvas.permute(0, 2, 3, 1).numpy()
        clean = predictor(normalize(batch.canvas, facts.mean, facts.std)).argmax(1)
        rows = []
        for change in CHANGES.values():
            seen = torch.from_numpy(np.stack([change(image) for image in pixels]))
            images = normalize(seen.permute(0, 3, 1, 2), facts.mean, facts.std)
            rows.append(predictor(images).argmax(1) != clean)
        parts.append(torch.stack(rows).double())
    return torch.cat(parts, 1)


def main() -> None:
    """Compare models with and without a remedy."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="as for shiftbench run")
    parser.add_argument("--repaired", help="default: the model with align:12")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--data", default="scenes")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--pad", default="none")
    arguments = parser.parse_args()
    dataset = load_dataset(arguments.data)
    names = (arguments.model, arguments.repaired or f"{arguments.model}+align:12")
    before, after = (changed_classes(name, dataset, arguments).numpy() for name in names)
    rows = []
    for index, label in enumerate([*CHANGES, "mean"]):
        a, b = (x.mean(0) if label == "mean" else x[index] for x in (before, after))
        test = compare_paired(a, b)
        scores = [f"{mean_score(x).text()} {mean_score(x).interval()}" for x in (a, b)]
        interval = f"[{100 * test.low:+.1f}, {100 * test.high:+.1f}]"
        rows.append([label, *scores, f"{100 * test.difference:+.1f} {interval}"])
    print(f"{names[0]}, {before.shape[1]} images of {dataset.name}, percent of classes changed")
    print_table(["change", "original", "repaired", "difference"], rows)


if __name__ == "__main__":
    main()
