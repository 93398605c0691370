"""What remedies do to pretrained weights before any training: accuracy, and answers under shifts.

    python benchmarks/repair_accuracy.py tf_efficientnet_lite0 WEIGHTS IMAGES --count 100

IMAGES has a folder per class, named by its wnid. Shifts are cyclic. Every figure comes with its 95%
Wilson interval.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import timm
import torch
from models import print_table
from PIL import Image
from timm.data import ImageNetInfo, create_transform, resolve_data_config
from timm.models import load_checkpoint
from torch import Tensor, nn

from aft_models import repair
from aft_models.layers import fractional_shift
from shiftbench.statistics import wilson

REMEDIES = [
    "", "circular", "circular+aps", "aps", "blurpool:2", "blurpool:3", "blurpool", "flc", "af",
    "canonical", "vote:3",
]  # fmt: skip
WHOLE = [(1, 0), (0, 1), (3, 2), (-5, 7)]
HALVES = [(0.5, 0), (0.5, 0.5)]


def load_images(folder: Path, model: nn.Module, count: int) -> tuple[Tensor, Tensor]:
    """Images spread evenly over the classes that are there, and their labels."""
    wnids = ImageNetInfo("imagenet-1k").label_names()
    files = sorted(path for path in folder.glob("*/*") if path.parent.name in wnids)
    files = files[:: max(1, len(files) // count)][:count]
    transform = create_transform(**resolve_data_config({}, model=model))
    images = torch.stack([transform(Image.open(path).convert("RGB")) for path in files])
    return images, torch.tensor([wnids.index(path.parent.name) for path in files])


@torch.inference_mode()
def answers(model: nn.Module, images: Tensor, shift: tuple[float, float]) -> Tensor:
    """The predicted class of each image, shifted."""
    parts = images.split(10)
    return torch.cat([model(fractional_shift(part, *shift)).argmax(1) for part in parts])


def share(right: Tensor) -> str:
    """A percentage with its interval."""
    hits, total = int(right.sum()), len(right)
    score = wilson(hits, total)
    return f"{100 * score.value:.0f} [{100 * score.low:.0f}, {100 * score.high:.0f}]"


def main() -> None:
    """Parses the options, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="name of timm")
    parser.add_argument("weights", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--remedies", nargs="*", default=REMEDIES)
    args = parser.parse_args()
    model: nn.Module = timm.create_model(args.model)
    load_checkpoint(model, str(args.weights))
    images, labels = load_images(args.images, model, args.count)
    rows = []
    for remedy in args.remedies:
        treated = (repair(model, remedy) if remedy else model).eval()
        still = answers(treated, images, (0, 0))
        kept = [
            torch.stack([answers(treated, images, s) == still for s in shifts]).all(0)
            for shifts in (WHOLE, HALVES)
        ]
        rows.append([remedy or "none", share(still == labels), *map(share, kept)])
    print(f"{args.model}, {len(images)} images\n")
    header = ["remedy", "right, %", "same answer for whole pixels, %", "for half pixels, %"]
    print_table(header, rows)


if __name__ == "__main__":
    main()
