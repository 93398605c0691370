"""Images per second of exported files and PyTorch, on one thread.

    python benchmarks/export.py                      # every model, several minutes
    python benchmarks/export.py --models lite0 vit   # some of them
    python benchmarks/export.py --remedy vote:3      # with a remedy inside the graph
    python benchmarks/export.py --alias-free         # alias-free over baseline

CPU time of one thread. The candidates take turns on the same images, and medians over the rounds
are printed, so other processes slow all candidates alike. Random weights.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from torch import Tensor

import aft_models
import shiftbench
from aft_models.onnx import export_onnx
from shiftbench.models import load_model
from shiftbench.models.sources.onnx import OnnxNetwork
from shiftbench_cli.main import keep_freed_memory

Forward = Callable[[Tensor], Tensor]
# name: (architecture, side in pixels, batch size)
MODELS = {
    "lite0": ("tf_efficientnet_lite0", 224, 8),
    "mobilenet": ("mobilenetv2_100", 224, 8),
    "resnet50": ("resnet50", 224, 4),
    "pico": ("xcit_pico_6_p8", 64, 64),
    "swin": ("swin_tiny_patch4_window7_224", 224, 4),
    "vit": ("vit_tiny_patch16_224", 224, 8),
}
# Bundled architectures, baseline and alias-free: (preset, side, batch size)
PAIRS = {
    "pico": ("xcit_pico_6_p8", 64, 64),
    "nano": ("xcit_nano_12_p16", 224, 4),
    "small": ("xcit_small_12_p16", 224, 2),
}
COLUMNS = ("first", "last", "onnx", "pt2")


def medians(candidates: dict[str, Forward], images: Tensor, rounds: int) -> dict[str, float]:
    """Measure the images per second of each candidate, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    with torch.no_grad():
        for turn in range(rounds + 1):
            for name, forward in candidates.items():
                forward(images)  # in the candidate's layout, with its memory allocated
                began = time.process_time()
                forward(images)
                if turn:  # the first round warms up
                    seconds[name].append(time.process_time() - began)
    return {name: len(images) / statistics.median(times) for name, times in seconds.items()}


def compare_files(name: str, remedy: str, rounds: int, folder: Path) -> str:
    """Return one line of the first table."""
    architecture, side, batch = MODELS[name]
    torch.manual_seed(0)
    network = timm.create_model(architecture, num_classes=10 if side == 64 else 1000).eval()
    facts = {"input_size": side, "mean": 0.5, "std": 0.25}
    repaired = aft_models.repair(network, remedy, input_size=side) if remedy else network
    candidates: dict[str, Forward] = {}
    seconds = 0.0
    for ending in ("onnx", "pt2"):
        path = folder / f"{name}.{ending}"
        began = time.perf_counter()
        written = shiftbench.export(repaired, path, preprocessing=facts)
        seconds = seconds or time.perf_counter() - began
        candidates[ending] = load_model(str(path))
    for column, layout in (("first", torch.contiguous_format), ("last", torch.channels_last)):
        candidates[column] = in_layout(repaired, layout)
    images = torch.randn(batch, *written.input_shape)
    speed = medians(candidates, images, rounds)
    gain = speed["onnx"] / max(speed["first"], speed["last"])
    cells = "".join(f"{speed[column]:9.1f}" for column in COLUMNS)
    return f"{architecture:30}{cells}{gain:8.2f}{seconds:10.1f} s"


def in_layout(module: torch.nn.Module, layout: torch.memory_format) -> Forward:
    """Return PyTorch in one memory format."""

    def forward(images: Tensor) -> Tensor:
        module.to(memory_format=layout)  # nothing to do from the second time on
        logits: Tensor = module(images.contiguous(memory_format=layout))
        return logits

    return forward


def compare_alias_free(name: str, rounds: int) -> str:
    """Return one line of the second table: the cost of the alias-free network in inference."""
    preset, side, batch = PAIRS[name]
    shape = (3, side, side)
    candidates: dict[str, Forward] = {}
    for variant in ("", "_aps", "_af"):
        torch.manual_seed(0)
        module = aft_models.create_xcit(preset + variant, img_size=side).eval()
        candidates[f"torch{variant}"] = module
        candidates[f"onnx{variant}"] = OnnxNetwork(export_onnx(module, shape), name=preset)
    speed = medians(candidates, torch.randn(batch, *shape), rounds)
    cells = [f"{speed[c]:11.1f}" for c in candidates]
    ratios = [f"{speed[e] / speed[f'{e}_af']:9.2f}" for e in ("torch", "onnx")]
    return f"{preset:22}{''.join(cells)}{''.join(ratios)}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--remedy", default="", help="remedies to apply, e.g. vote:3")
    parser.add_argument("--alias-free", action="store_true", help="cost of alias-free, instead")
    parser.add_argument("--sizes", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--return-freed", action="store_true", help="memory as in a notebook")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = not options.return_freed and keep_freed_memory()
    print(
        f"{_processor()}, 1 thread, torch {torch.__version__}, freed memory "
        f"{'kept' if kept else 'returned'}; images per second of CPU time\n"
    )
    if options.alias_free:
        heads = [f"{e}{v}" for v in ("", "_aps", "_af") for e in ("torch", "onnx")]
        print(f"{'':22}{''.join(f'{h:>11}' for h in heads)}{'af cost':>9}{'in onnx':>9}")
        for name in options.sizes:
            print(compare_alias_free(name, options.rounds), flush=True)
        return
    print(f"{'':30}{''.join(f'{c:>9}' for c in COLUMNS)}{'gain':>8}{'export':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            line = compare_files(name, options.remedy, options.rounds, Path(folder))
            print(line, flush=True)
    print("\nfirst, last: PyTorch, position of the channels; gain: onnx over the better of the two")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(": ")[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
