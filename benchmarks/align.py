"""Cost of `align`, and displacement of its crops against the image content.

    python benchmarks/align.py                        # CPU time in PyTorch, three networks
    python benchmarks/align.py --onnx                 # also in ONNX Runtime
    python benchmarks/align.py --images FOLDER        # displacement on image files instead
    python benchmarks/align.py --images FOLDER --odd  # on files of odd instead of even index

Costs are CPU time of one thread at batch size 1, with random weights. All variants take turns in
one process. A ratio is the median over rounds, so other load on the machine changes it little.
Page faults of glibc's heap add up to 4 ms to MobileNetV2 and vary between processes. Remove them
with MALLOC_TRIM_THRESHOLD_=2000000000 and MALLOC_MMAP_THRESHOLD_=1000000000 for stable ratios.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from torch import Tensor, nn

from aft_models.remedies.align import Align

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE, MARGIN, SCALE = 224, 12, 2
PERIOD = 2 * MARGIN - 1
SIDE = SCALE * (SIZE + 2 * MARGIN)
SHORTER = SCALE * 256  # camera pixels of the shorter side
MOVES = (1 / 3, 1, 7 / 3, 3)  # network pixels
DIRECTIONS = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0)]
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "EfficientNet-Lite0": lambda: timm.create_model("tf_efficientnet_lite0", pretrained=False),
    "MobileNetV2": lambda: torchvision.models.mobilenet_v2(weights=None),
    "ViT-Tiny": lambda: timm.create_model("vit_tiny_patch16_224", pretrained=False),
}


class CenterResize(nn.Module):
    """Antialiased resize of the center crop, which a network without `align` needs at scale 2."""

    def forward(self, images: Tensor) -> Tensor:
        """Resize ``(B, C, 496, 496)`` to ``(B, C, 224, 224)``."""
        edge = SCALE * MARGIN
        center = images[:, :, edge:-edge, edge:-edge]
        return F.interpolate(center, (SIZE, SIZE), mode="bilinear", antialias=True)


def cpu_times(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Measure the CPU time (ms) of each call; the order rotates from round to round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for _ in range(rounds):
        names.append(names.pop(0))
        for name in names:
            start = time.thread_time()
            calls[name]()
            times[name].append((time.thread_time() - start) * 1e3)
    return times


def print_costs(engine: str, network: str, times: dict[str, list[float]]) -> None:
    """Print medians and ratios to the network alone."""
    for name, values in times.items():
        ratio = statistics.median(a / b for a, b in zip(values, times["alone"], strict=True))
        middle, least = statistics.median(values), min(values)
        print(f"| {engine} | {network} | {name} | {middle:.2f} | {least:.2f} | {ratio:.3f} |")


def variants(network: nn.Module) -> dict[str, nn.Module]:
    """Return the network alone, with `align`, and with a plain resize."""
    aligns = {
        f"align, {name}": Align(SIZE, margin=MARGIN, interpolation=name, mean=MEAN, std=STD)
        for name in ("bilinear", "bicubic")
    }
    inputs: dict[str, nn.Module] = {**aligns, "center resize, bilinear": CenterResize()}
    wrapped = {name: nn.Sequential(module, network) for name, module in inputs.items()}
    return {"alone": network, **wrapped}


def measure_torch(rounds: int) -> None:
    """Print CPU times in PyTorch."""
    view, crop = torch.rand(1, 3, SIDE, SIDE), torch.rand(1, 3, SIZE, SIZE)
    for label, build in NETWORKS.items():
        modules = {name: module.eval() for name, module in variants(build()).items()}
        calls: dict[str, Callable[[], object]] = {
            name: partial(module, crop if name == "alone" else view)
            for name, module in modules.items()
        }
        with torch.inference_mode():
            cpu_times(calls, 3)
            print_costs("PyTorch", label, cpu_times(calls, rounds))


def measure_onnx(rounds: int) -> None:
    """Print CPU times in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    for label, build in NETWORKS.items():
        calls: dict[str, Callable[[], object]] = {}
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, module in variants(build().eval()).items():
                if name.startswith("center"):
                    continue
                side = SIZE if name == "alone" else SIDE
                path = str(Path(folder) / "model.onnx")
                images = torch.rand(2, 3, side, side)
                batch = {0: torch.export.Dim("batch")}
                module.eval()
                torch.onnx.export(
                    module, (images,), path, dynamo=True, dynamic_shapes=(batch,), verbose=False
                )
                session = onnxruntime.InferenceSession(
                    path, options, providers=["CPUExecutionProvider"]
                )
                feed = {session.get_inputs()[0].name: images[:1].numpy()}
                calls[name] = partial(session.run, None, feed)
        cpu_times(calls, 3)
        print_costs("ONNX Runtime", label, cpu_times(calls, rounds))


def digitize(image: Image.Image, dy: float, dx: float) -> np.ndarray:
    """Return the 8-bit view of a camera moved by an offset (network pixels)."""
    unit = min(image.size) / SHORTER  # file pixels per camera pixel
    x, y = image.width / 2 + SCALE * dx * unit, image.height / 2 + SCALE * dy * unit
    half = SIDE / 2 * unit
    box = (x - half, y - half, x + half, y + half)
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=box))


def exposures(view: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the view with JPEG 70, gamma 0.8, gamma 1.3, brightness 1.2 and vignetting."""
    memory = io.BytesIO()
    Image.fromarray(view).save(memory, "JPEG", quality=70)
    yield np.asarray(Image.open(memory))
    pixels = view / 255
    axis = np.linspace(-1, 1, SIDE) ** 2
    vignette = 1 - 0.25 * (axis[:, None] + axis)[:, :, None]
    for changed in (pixels**0.8, pixels**1.3, np.minimum(1.2 * pixels, 1), pixels * vignette):
        yield np.round(changed * 255).astype(np.uint8)


def measure_displacement(folder: Path, odd: bool, limit: int) -> None:
    """Print the displacement of crops relative to the content."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))
    align = Align(SIZE, margin=MARGIN, mean=MEAN, std=STD)
    offsets = [(0.0, 0.0)] + [(step * y, step * x) for step in MOVES for y, x in DIRECTIONS]
    moved, exposed, absent = [], [], 0
    for path in files[odd::2][:limit]:
        image = Image.open(path).convert("RGB")
        views = [digitize(image, dy, dx) for dy, dx in offsets]
        views += exposures(views[0])
        pixels = torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).contiguous()
        place = align.place(align.normalize(pixels))
        absent += not align.show(align.normalize(pixels[:1]))[1].has_phase.all()
        moved.append(place[1 : len(offsets)] - place[0] + torch.tensor(offsets[1:]))
        exposed.append((place[len(offsets) :] - place[0]).abs().amax(1))
    error = torch.stack(moved).view(len(moved), len(MOVES), len(DIRECTIONS), 2)
    print(f"{len(moved)} images, {absent} without a phase")
    print("| move, px | wraps, % | others > 0.75 px, % | > 3 px, % | median, px | equal, % |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for number, step in enumerate(MOVES):
        each = error[:, number].flatten(0, 1)  # (moves, 2)
        wraps = (each / PERIOD).round().ne(0).any(1)
        rest = each[~wraps].abs().amax(1)
        large, larger, equal = (
            100 * share.float().mean() for share in (rest > 0.75, rest > 3, rest < 1e-3)
        )
        print(
            f"| {step:.2f} | {100 * wraps.float().mean():.1f} | {large:.2f} | {larger:.2f} "
            f"| {rest.median():.3f} | {equal:.1f} |"
        )
    shares = [
        (100 * (torch.stack(exposed) > least).float().mean(0)).tolist() for least in (0.75, 3)
    ]
    for least, values in zip((0.75, 3), shares, strict=True):
        listed = ", ".join(f"{value:.1f}" for value in values)
        print(f"JPEG 70, gamma 0.8, gamma 1.3, brightness, vignette: > {least} px: {listed}%")


def main() -> None:
    """Print a table of costs or of displacements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--onnx", action="store_true")
    parser.add_argument("--images", type=Path)
    parser.add_argument("--odd", action="store_true")
    parser.add_argument("--limit", type=int, default=250)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if arguments.images:
        measure_displacement(arguments.images, arguments.odd, arguments.limit)
        return
    print("| engine | network | variant | median, ms | least, ms | ratio |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    measure_torch(arguments.rounds)
    if arguments.onnx:
        measure_onnx(arguments.rounds)


if __name__ == "__main__":
    main()
