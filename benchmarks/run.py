"""What the whole command costs beyond the bare search on tensors that are in memory already.

    python benchmarks/run.py [--images N] [--model NAME]
    python benchmarks/run.py --photographs DIR --checkpoint FILE [--model timm:NAME]

The second form times the whole command by engine, start-up included, in CPU time: ONNX Runtime with
an empty cache (cold) and with the exported graph in it (warm), crops up to 2 px.

Both sides do the same searches and the same random shifts for the same images in batches of the
same size; the command adds loading, preparing, saving parts and writing the record. They take
turns within one process, and the smallest ratio counts: other programs can only make it larger.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from aft_models.preprocessing import normalize
from shiftbench.data import Scenes
from shiftbench.metrics import plan_metric
from shiftbench.metrics.base import PASSES, ImageBatch
from shiftbench.models import Model, load_model
from shiftbench.run.job import Settings
from shiftbench.run.runner import Execution, run

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1.10  # seconds of the command per second of the bare search


def bare(
    classifier: Model, dataset: Scenes, settings: Settings, batch_size: int
) -> tuple[float, int]:
    """Seconds and forward passes of the searches alone, canvases ready."""
    recipe = classifier.preprocessing
    margin = max(settings.max_shift, 16)
    pixels = dataset.render(range(len(dataset)), recipe.input_size, margin)
    canvas = normalize(pixels, recipe.mean, recipe.std)
    began = time.perf_counter()
    labels = np.asarray(dataset.labels)
    batch = ImageBatch.predict(
        classifier, canvas, margin, dataset.keys, labels, batch_size=batch_size
    )
    sizes = {"view": recipe.input_size, "resize": round(recipe.input_size * 256 / 224)}
    metrics = [plan_metric(text, settings, **sizes) for text in settings.metric_texts()]
    passes = sum(int(metric.rows(batch)[PASSES].sum()) for metric in metrics)
    return time.perf_counter() - began, passes


def whole(
    classifier: Model, dataset: Scenes, settings: Settings, batch_size: int
) -> tuple[float, int]:
    """Seconds and forward passes of a run from nothing to a record."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        execution = Execution(device="cpu", batch_size=batch_size)
        outcome = run(classifier, dataset, settings, Path(folder), execution=execution)
        return time.perf_counter() - began, outcome.record.forward_passes


def labeled_by(classifier: Model, dataset: Scenes) -> None:
    """Gives the images the model's own answers as labels: untrained, it is then worth attacking."""
    recipe = classifier.preprocessing
    pixels = dataset.render(range(len(dataset)), recipe.input_size)
    with torch.no_grad():
        answers = classifier(normalize(pixels, recipe.mean, recipe.std)).argmax(1)
    vars(dataset)["labels"] = answers.tolist()


def cpu_seconds(words: list[str], cache: Path) -> float:
    """User and system time of a command, start-up included."""
    roots = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    environment = {"PYTHONPATH": roots, "OMP_NUM_THREADS": "1", "SHIFTBENCH_CACHE": str(cache)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "shiftbench_cli", "run", *words]
    subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def by_engine(model: str, checkpoint: str, photographs: str) -> None:
    """Prints the CPU time of the whole command by engine."""
    words = ["-m", model, "--checkpoint", checkpoint, "-d", f"imagenet:{photographs}", "-j", "0"]
    words += ["-a", "crop", "--max-shift", "2", "--no-consistency", "-q", "--format", "csv"]
    with tempfile.TemporaryDirectory() as place:
        cache = Path(place) / "cache"
        seconds = {}
        for turn, engine in {
            "torch": "torch",
            "onnx, cold": "onnx",
            "onnx, warm": "onnx",
            "auto, warm": "auto",
        }.items():
            output = ["--engine", engine, "-o", str(Path(place) / turn)]
            seconds[turn] = cpu_seconds([*words, *output], cache)
            ratio = seconds["torch"] / seconds[turn]
            print(f"{turn}: {seconds[turn]:.1f} s of CPU time, {ratio:.2f}x", flush=True)


def main() -> None:
    """Measures, prints, and fails when the overhead is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--model")
    parser.add_argument("--photographs", help="folder that `imagenet:` reads")
    parser.add_argument("--checkpoint", help="weights of --model")
    parser.add_argument("--max-shift", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    if options.photographs:
        model = options.model or "timm:tf_efficientnet_lite0"
        by_engine(model, options.checkpoint, options.photographs)
        return
    name = options.model or "xcit_nano_12_p16,pretrained=false"
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
