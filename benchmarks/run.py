"""Overhead of a run beyond the same predictions on tensors in memory.

    python benchmarks/run.py [--images N] [--model NAME]

Both sides predict the same cells of the same images in batches of the same size; the command adds
loading, saving tables and writing the record. They alternate within one process. The smallest ratio
counts, because other load can only increase it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from aft_models.preprocessing import normalize
from shiftbench.data import Scenes
from shiftbench.geometry import Geometry
from shiftbench.metrics import plan_metrics
from shiftbench.models import Model, load_model
from shiftbench.running.job import Settings
from shiftbench.running.predict import predict_tables
from shiftbench.running.runner import Execution, run
from shiftbench.tables import identifier

LIMIT = 1.10  # seconds of the command per second of the bare search


def bare(
    classifier: Model, dataset: Scenes, settings: Settings, batch_size: int
) -> tuple[float, int]:
    """Return seconds and forward passes of the predictions alone."""
    recipe = classifier.preprocessing
    margin = max(settings.max_shift, 16)
    pixels = dataset.render(range(len(dataset)), recipe.input_size, margin)
    canvas = normalize(pixels, recipe.mean, recipe.std)
    side = recipe.input_size
    geometry = Geometry(side, round(side * 256 / 224), margin, "none")
    metrics = plan_metrics(settings.metric_texts(), settings, geometry)
    began = time.perf_counter()
    tables = predict_tables(
        classifier.module,
        canvas,
        dataset.labels,
        metrics,
        keys=[identifier(dataset.digest(i)) for i in range(len(dataset))],
        margin=margin,
        batch_size=batch_size,
    )
    return time.perf_counter() - began, tables.predictions()


def whole(
    classifier: Model, dataset: Scenes, settings: Settings, batch_size: int
) -> tuple[float, int]:
    """Return seconds and forward passes of a complete run with its record."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        execution = Execution(device="cpu", batch_size=batch_size)
        outcome = run(classifier, dataset, settings, Path(folder), execution=execution)
        return time.perf_counter() - began, outcome.record.forward_passes


def labeled_by(classifier: Model, dataset: Scenes) -> None:
    """Label the images by the model's predictions, so that an untrained model can be attacked."""
    recipe = classifier.preprocessing
    pixels = dataset.render(range(len(dataset)), recipe.input_size)
    with torch.no_grad():
        classes = classifier(normalize(pixels, recipe.mean, recipe.std)).argmax(1)
    vars(dataset)["labels"] = classes.tolist()


def main() -> None:
    """Measure, print, and fail if the overhead is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--model", default="xcit_nano_12_p16,pretrained=false")
    parser.add_argument("--max-shift", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    name = options.model
    classifier = load_model(name)
    dataset = Scenes("test", options.images)
    labeled_by(classifier, dataset)
    settings = Settings(
        attacks=("integer", "half", "crop", "bilinear"), max_shift=options.max_shift
    )
    ratios = []
    for turn in range(options.turns):
        alone, passes = bare(classifier, dataset, settings, options.batch_size)
        command, counted = whole(classifier, dataset, settings, options.batch_size)
        assert passes == counted, f"the two sides did different work: {passes} and {counted}"
        ratios.append(command / alone)
        print(
            f"turn {turn + 1}: search {alone:.1f} s, command {command:.1f} s, {passes} passes, "
            f"overhead {100 * (ratios[-1] - 1):+.1f}%"
        )
    overhead = min(ratios) - 1
    print(f"{name} at {classifier.preprocessing.input_size} px: {100 * overhead:+.1f}%")
    if overhead > LIMIT - 1:
        raise SystemExit(f"the command costs more than {100 * (LIMIT - 1):.0f}% over the search")


if __name__ == "__main__":
    main()
