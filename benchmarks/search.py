"""Worst-case search of this project against others, with the same model, images and offsets.

    python benchmarks/search.py
    python benchmarks/search.py --model tf_efficientnet_lite0 --weights FILE --images imagenet/val

Every candidate searches the crop offset, up to a radius, at which each image is misclassified.
foolbox and ART translate their input and fill with zeros. Their input is therefore the canvas, and
the attacked model cuts its view from the center: the zeros stay outside, and translating the canvas
shifts the crop window. Without options, the network has random weights and the images are
synthetic.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import timm
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import shiftbench
from shiftbench.grid import Grid
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.metrics.base import read_cells
from shiftbench.models import load_model
from shiftbench.running.predict import predict_tables
from shiftbench.shifts import SHIFTS

Correct = NDArray[np.bool_]  # per image: correct at every offset


class Meter(nn.Module):
    """Model of a canvas or a view that counts images and time."""

    def __init__(self, model: nn.Module, view: int) -> None:
        super().__init__()
        self.model, self.view = model, view
        self.seconds, self.passes = 0.0, 0
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the central view."""
        margin = (images.shape[-1] - self.view) // 2
        images = images[..., margin : margin + self.view, margin : margin + self.view]
        start = time.perf_counter()
        with torch.no_grad():
            logits: Tensor = self.model(images)
        self.seconds += time.perf_counter() - start
        self.passes += len(images)
        return logits


@dataclass(frozen=True)
class Task:
    """Input of every candidate."""

    meter: Meter
    canvas: Tensor  # (N, 3, view + 2 margin, view + 2 margin), normalized
    labels: NDArray[np.int64]
    classes: int  # of the model
    grid: Grid
    batch_size: int

    @property
    def margin(self) -> int:
        """Pixels around the view."""
        return (self.canvas.shape[-1] - self.meter.view) // 2

    def batches(self) -> list[slice]:
        """List the slices of the batches."""
        return [
            slice(i, min(i + self.batch_size, len(self.labels)))
            for i in range(0, len(self.labels), self.batch_size)
        ]


def ours(task: Task) -> Correct:
    """Search as `shiftbench run` does: images leave when they fail, batches are refilled."""
    metric = Adversarial("crop", task.grid.radius, "1")
    tables = predict_tables(
        task.meter,
        task.canvas,
        task.labels.tolist(),
        [metric],
        margin=task.margin,
        batch_size=task.batch_size,
    )
    *_, outcomes = metric.outcomes(read_cells(tables, metric, tables.keys)).values()
    return outcomes == 1


def in_onnx(task: Task) -> Task:
    """Return the same task with the network as an exported file, in ONNX Runtime."""
    view, model = task.meter.view, task.meter.model
    network = model.model if isinstance(model, Centered) else model
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        shiftbench.export(network, path)
        exported: nn.Module = load_model(str(path))
    if isinstance(model, Centered):
        exported = Centered(exported)
        exported.usual = model.usual
    return replace(task, meter=Meter(exported, view))


def dropping_loop(task: Task) -> Correct:
    """Loop over offsets and drop misclassified images."""
    views = SHIFTS.get("crop").views(task.canvas, task.margin)
    alive = np.arange(len(task.labels))
    for offset in task.grid:
        kept = []
        for start in range(0, len(alive), task.batch_size):
            rows = alive[start : start + task.batch_size]
            classes = task.meter(views(offset, torch.from_numpy(rows))).argmax(1).numpy()
            kept.append(rows[classes == task.labels[rows]])
        alive = np.concatenate(kept) if kept else alive
    return np.isin(np.arange(len(task.labels)), alive)


def predictions(task: Task) -> NDArray[np.int64]:
    """Return the class of every image at every offset, (offsets, images)."""
    views = SHIFTS.get("crop").views(task.canvas, task.margin)
    return np.stack(
        [
            np.concatenate(
                [task.meter(views(offset)[part]).argmax(1).numpy() for part in task.batches()]
            )
            for offset in task.grid
        ]
    )


def foolbox_attack(task: Task) -> Correct:
    """Run foolbox's SpatialAttack with translations only: every image at every offset."""
    import foolbox

    low, high = float(task.canvas.min()), float(task.canvas.max())
    # Zeros enter from outside the canvas: the bounds must include them.
    model = foolbox.PyTorchModel(task.meter, bounds=(min(low, 0.0), max(high, 0.0)))
    # A foolbox pixel is 2/n of an image whose corners are the centers of pixels n - 1 apart.
    size = task.canvas.shape[-1]
    attack = foolbox.attacks.SpatialAttack(
        max_translation=task.grid.radius * size / (size - 1),
        num_translations=2 * task.grid.radius + 1,
        max_rotation=0,
        num_rotations=1,
    )
    failed = []
    for part in task.batches():
        criterion = foolbox.criteria.Misclassification(torch.from_numpy(task.labels[part]))
        _, _, success = attack(model, task.canvas[part], criterion)
        failed.append(success.numpy())
    return ~np.concatenate(failed)


def art_attack(task: Task) -> float:
    """Run ART's SpatialTransformation: the one offset for all images that changes most."""
    from art.attacks.evasion import SpatialTransformation
    from art.estimators.classification import PyTorchClassifier

    # ART reads the largest translation from the axes 1 and 2, so the channels must be last.
    images = task.canvas.permute(0, 2, 3, 1)
    classifier = PyTorchClassifier(
        model=ChannelsLast(task.meter),
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(images.shape[1:]),
        nb_classes=task.classes,
        channels_first=False,
    )
    attack = SpatialTransformation(
        classifier,
        max_translation=100 * task.grid.radius / task.canvas.shape[-1],
        num_translations=2 * task.grid.radius + 1,
        verbose=False,
    )
    attack.generate(images.numpy())
    assert attack.fooling_rate is not None
    return float(attack.fooling_rate)


class ChannelsLast(nn.Module):
    """Model for images (B, H, W, C)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.model(images.permute(0, 3, 1, 2))
        return logits


# --- images and network --------------------------------------------------------------------------


def made_images(count: int, size: int) -> Tensor:
    """Return smooth colored blobs with some texture, different for each image."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(count, 3, 3, 3, generator=generator)
    fine = torch.randn(count, 3, size // 8, size // 8, generator=generator)
    blobs = nn.functional.interpolate(coarse, size=(size, size), mode="bicubic")
    texture = nn.functional.interpolate(fine, size=(size, size), mode="bilinear")
    return blobs + 0.1 * texture


def folder_images(
    root: Path, count: int, size: int, config: dict[str, object]
) -> tuple[Tensor, NDArray[np.int64]]:
    """Load images of folders named by ImageNet's ids, evenly over the classes, normalized."""
    from PIL import Image
    from timm.data import ImageNetInfo, create_transform

    transform = create_transform(
        (3, size, size),
        interpolation=config["interpolation"],
        mean=config["mean"],
        std=config["std"],
        crop_pct=size / 256,
    )
    classes = {name: i for i, name in enumerate(ImageNetInfo().label_names())}
    files = sorted(path for path in root.glob("*/*") if path.parent.name in classes)
    files = [files[i * len(files) // count] for i in range(min(count, len(files)))]
    images = [transform(Image.open(path).convert("RGB")) for path in files]
    return torch.stack(images), np.array([classes[path.parent.name] for path in files])


def prepare(options: argparse.Namespace) -> Task:
    """Build the network and the canvases."""
    torch.manual_seed(0)
    model = timm.create_model(options.model, pretrained=False).eval()
    if options.weights:
        model.load_state_dict(torch.load(options.weights, weights_only=True, map_location="cpu"))
    view = int(model.pretrained_cfg["input_size"][-1])
    size = view + 2 * options.radius
    if options.images:
        canvas, labels = folder_images(options.images, options.count, size, model.pretrained_cfg)
        meter = Meter(model, view)
    else:
        canvas = made_images(options.count, size)
        meter = Meter(Centered(model), view)
        # The labels are the predictions of random weights; only their changes are of interest.
        labels = meter(canvas).argmax(1).numpy()
    return Task(
        meter=meter,
        canvas=canvas,
        labels=labels,
        classes=model.num_classes,
        grid=Grid(options.radius),
        batch_size=options.batch_size,
    )


class Centered(nn.Module):
    """Model with centered logits: random weights predict nearly the same logits for every image."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.usual: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits minus the mean logits of the first batch."""
        logits: Tensor = self.model(images)
        if self.usual is None:
            self.usual = logits.mean(0)
        return logits - self.usual


# --- the table ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Measurements of one candidate."""

    name: str
    wall: float
    cpu: float  # of all threads: other load affects it less than wall time
    passes: int
    inside: float  # fraction of the wall time inside the model
    verdict: str


def measure(
    name: str, task: Task, run: Callable[[Task], object], judge: Callable[[object], str]
) -> Row:
    """Measure one candidate."""
    task.meter.seconds, task.meter.passes = 0.0, 0
    wall, cpu = time.perf_counter(), time.process_time()
    result = run(task)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Row(name, wall, cpu, task.meter.passes, task.meter.seconds / wall, judge(result))


def _correct_everywhere(classes: NDArray[np.int64], task: Task) -> Correct:
    correct: Correct = (classes == task.labels).all(0)
    return correct


def main() -> None:
    """Run every candidate and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--model", default="xcit_nano_12_p16_224", help="a timm model")
    parser.add_argument("--weights", type=Path, help="its weights, a torch file")
    parser.add_argument("--images", type=Path, help="folders of images named by ImageNet's ids")
    parser.add_argument("--count", type=int, default=16, help="images")
    parser.add_argument("--radius", type=int, default=2, help="pixels")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--skip", nargs="*", default=[], choices=["foolbox", "art"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # other libraries' deprecations
    logging.disable(logging.WARNING)

    task = prepare(options)
    task.meter(task.canvas[: options.batch_size])  # first call: threads and memory
    matrix: list[NDArray[np.int64]] = []

    def exhaustive(task: Task) -> Correct:
        matrix.append(predictions(task))
        return _correct_everywhere(matrix[0], task)

    rows = [measure("exhaustive loop", task, exhaustive, lambda _: "reference")]
    reference = _correct_everywhere(matrix[0], task)
    changed = float((matrix[0] != matrix[0][0]).mean(1).max())

    def same_images(result: object) -> str:
        different = int((np.asarray(result) != reference).sum())
        return "same images" if not different else f"{different} images differ"

    def same_rate(result: object) -> str:
        assert isinstance(result, float)
        agrees = abs(result - changed) < 1e-9
        return f"{'same' if agrees else 'another'} worst single offset: {result:.1%} change"

    # These differ by little: each runs twice, in turns, and its faster round counts.
    exported = in_onnx(task)
    rounds = [
        (
            measure("shiftbench search", task, ours, same_images),
            measure("shiftbench search, ONNX Runtime", exported, ours, same_images),
            measure("loop, drops misclassified images", task, dropping_loop, same_images),
        )
        for _ in range(2)
    ]
    rows += [min(turns, key=lambda row: row.cpu) for turns in zip(*rounds, strict=True)]
    candidates: list[tuple[str, Callable[[Task], object], Callable[[object], str]]] = []
    if "foolbox" not in options.skip:
        candidates.append(("foolbox SpatialAttack", foolbox_attack, same_images))
    if "art" not in options.skip:
        candidates.append(("ART SpatialTransformation", art_attack, same_rate))
    missing = []
    for name, run, judge in candidates:
        try:
            rows.append(measure(name, task, run, judge))
        except ImportError:
            missing.append(name)

    own = next(row for row in rows if row.name == "shiftbench search")
    n, correct = len(reference), int(reference.sum())
    print(
        f"{options.model}, {n} images, view {task.meter.view}, crops up to {options.radius} px "
        f"({len(task.grid)} offsets), batches of {options.batch_size}, "
        f"{torch.get_num_threads()} threads"
    )
    print(f"adversarial accuracy {correct}/{n} = {correct / n:.1%}\n")
    print(f"{'':33}{'wall s':>8}{'CPU s':>8}{'ratio':>7}{'passes':>8}{'in model':>10}  result")
    for row in rows:
        print(
            f"{row.name:33}{row.wall:8.1f}{row.cpu:8.1f}{row.cpu / own.cpu:7.2f}{row.passes:8}"
            f"{row.inside:10.1%}  {row.verdict}"
        )
    for name in missing:
        print(f"{name:33}not installed: pip install 'shiftbench[bench]'")
    print("\nratio: CPU time over that of shiftbench search")


if __name__ == "__main__":
    main()
