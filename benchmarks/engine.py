"""Images a second through each engine: PyTorch, its compiler, ONNX Runtime, OpenVINO.

    python benchmarks/engine.py                      # every model, several minutes
    python benchmarks/engine.py --models pico lite0  # some of them
    python benchmarks/engine.py --alias-free         # alias-free over baseline, inference

Processor time of one thread. The candidates take turns on the same images, and the median over the
rounds counts, so a machine that is now busy, now idle slows all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from torch import Tensor, nn

import aft_models
from aft_models.onnx import export_onnx
from shiftbench.models.sources.onnx import OnnxNetwork
from shiftbench.run.engine import make_forward
from shiftbench_cli.main import keep_freed_memory

Forward = Callable[[Tensor], Tensor]
# name: (architecture, side in pixels, batch, least gain of ONNX Runtime over the better PyTorch)
MODELS = {
    "lite0": ("tf_efficientnet_lite0", 224, 8, 2.0),
    "resnet50": ("resnet50", 224, 4, 1.25),
    "pico": ("xcit_pico_6_p8", 64, 64, 1.4),
    "swin": ("swin_tiny_patch4_window7_224", 224, 4, 1.1),
    "vit": ("vit_tiny_patch16_224", 224, 8, 0.9),
}
# The bundled architectures, baseline and alias-free: (preset, side, batch)
PAIRS = {
    "pico": ("xcit_pico_6_p8", 64, 64),
    "nano": ("xcit_nano_12_p16", 224, 4),
    "small": ("xcit_small_12_p16", 224, 2),
}


def openvino(module: nn.Module, shape: tuple[int, int, int]) -> Forward:
    """The exported network in OpenVINO on one thread."""
    import openvino as ov

    core = ov.Core()
    network = core.read_model(export_onnx(module, shape))
    hint = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(network, "CPU", hint)
    return lambda images: torch.from_numpy(next(iter(compiled(images.numpy()).values())))


def plain(module: nn.Module, layout: torch.memory_format) -> Forward:
    """PyTorch in one memory format."""

    def forward(images: Tensor) -> Tensor:
        module.to(memory_format=layout)  # nothing to do from the second time on
        logits: Tensor = module(images.contiguous(memory_format=layout))
        return logits

    return forward


def medians(candidates: dict[str, Forward], images: Tensor, rounds: int) -> dict[str, float]:
    """Images a second of each candidate, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    with torch.no_grad():
        for turn in range(rounds + 1):
            for name, forward in candidates.items():
                forward(images)  # in its own layout, with its memory at hand
                began = time.process_time()
                forward(images)
                if turn:  # the first round warms up
                    seconds[name].append(time.process_time() - began)
    return {name: len(images) / statistics.median(times) for name, times in seconds.items()}


def compare_engines(name: str, rounds: int, *, compiled: bool) -> str:
    """One line of the first table."""
    architecture, side, batch, bar = MODELS[name]
    torch.manual_seed(0)
    module = timm.create_model(architecture, num_classes=10 if side == 64 else 1000).eval()
    shape = (3, side, side)
    candidates: dict[str, Forward] = {
        "first": plain(module, torch.contiguous_format),
        "last": plain(module, torch.channels_last),
        "onnx": OnnxNetwork(export_onnx(module, shape), name=architecture),
    }
    if compiled:
        candidates["compile"] = make_forward("compile", module, shape)
    with contextlib.suppress(ImportError):
        candidates["openvino"] = openvino(module, shape)
    images = torch.randn(batch, *shape)
    speed = medians(candidates, images, rounds)
    better = max(speed["first"], speed["last"])
    cells = [f"{speed[c]:11.1f}" if c in speed else f"{'-':>11}" for c in COLUMNS]
    met = "" if speed["onnx"] / better >= bar else "  missed"
    return f"{architecture:30}{''.join(cells)}{speed['onnx'] / better:9.2f}   >= {bar:.2f}{met}"


COLUMNS = ("first", "last", "compile", "onnx", "openvino")


def compare_alias_free(name: str, rounds: int) -> str:
    """One line of the second table: what the alias-free network costs in inference."""
    preset, side, batch = PAIRS[name]
    shape = (3, side, side)
    images = torch.randn(batch, *shape)
    candidates: dict[str, Forward] = {}
    for variant in ("", "_aps", "_af"):
        torch.manual_seed(0)
        module = aft_models.create_xcit(preset + variant, img_size=side).eval()
        candidates[f"torch{variant}"] = module
        candidates[f"onnx{variant}"] = OnnxNetwork(export_onnx(module, shape), name=preset)
    speed = medians(candidates, images, rounds)
    cells = [f"{speed[c]:11.1f}" for c in candidates]
    ratios = [f"{speed[e] / speed[f'{e}_af']:9.2f}" for e in ("torch", "onnx")]
    return f"{preset:22}{''.join(cells)}{''.join(ratios)}"


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--alias-free", action="store_true", help="what alias-free costs, instead")
    parser.add_argument("--sizes", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--keep-freed", action="store_true", help="as the command line does")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = options.keep_freed and keep_freed_memory()
    print(
        f"{_processor()}, 1 thread, torch {torch.__version__}, freed memory "
        f"{'kept' if kept else 'returned'}; images a second of processor time\n"
    )
    if options.alias_free:
        heads = [f"{e}{v}" for v in ("", "_aps", "_af") for e in ("torch", "onnx")]
        print(f"{'':22}{''.join(f'{h:>11}' for h in heads)}{'af cost':>9}{'in onnx':>9}")
        for name in options.sizes:
            print(compare_alias_free(name, options.rounds), flush=True)
        return
    print(f"{'':30}{''.join(f'{c:>11}' for c in COLUMNS)}{'gain':>9}   bar")
    for name in options.models:
        print(compare_engines(name, options.rounds, compiled=not options.no_compile), flush=True)
    print("\nfirst, last: PyTorch with the channels there; gain: onnx over the better of the two")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(": ")[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
