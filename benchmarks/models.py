"""Cost of alias-free training: train steps, saved activations, and the token activation alone.

    python benchmarks/models.py                  # the whole table, several minutes
    python benchmarks/models.py --sizes pico     # the small models only

Every figure is a ratio within this process. The candidates alternate, each between two runs of the
first one, and the median ratio over the rounds counts. Load on the machine therefore slows all
candidates equally. With ``--clock cpu`` processor time is measured instead of wall time; use it
with ``--threads 1`` when other jobs are running.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aft_models
from aft_models.layers import AliasFreeActivation

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import fft_reference as reference

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
# name: (preset, side of the image in pixels, default batch)
SIZES = {
    "nano": ("xcit_nano_12_p16", 224, 8),
    "small": ("xcit_small_12_p16", 224, 4),
    "pico": ("xcit_pico_6_p4", 32, 128),
    "pico64": ("xcit_pico_6_p8", 64, 128),
}
BARS = {
    ("nano", "af"): "<= 2.6, aim 2.0",
    ("small", "af"): "<= 2.0, aim 1.6",
    ("nano", "aps"): "<= 1.5",
    ("small", "aps"): "<= 1.5",
}


class FftActivation(nn.Module):
    """Alias-free GELU in the textbook form, for comparison."""

    def __init__(self, layer: AliasFreeActivation) -> None:
        super().__init__()
        self.up, self.down, self.layout = layer.up, layer.down, layer.layout

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation in the layout of the replaced layer."""
        if self.layout == "NCHW":
            return reference.fft_activation(x, F.gelu, up=self.up, down=self.down)
        y = reference.fft_activation(x.permute(0, 3, 1, 2), F.gelu, up=self.up, down=self.down)
        return y.permute(0, 2, 3, 1)


def with_ffts(model: nn.Module) -> nn.Module:
    """Replace every alias-free activation of a model by its FFT form."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, AliasFreeActivation):
                setattr(parent, name, FftActivation(child))
    return model


def ratios(
    candidates: dict[str, Callable[[], object]], *, rounds: int, clock: Callable[[], float]
) -> dict[str, tuple[float, float]]:
    """Measure the median seconds of each candidate, and the median ratio to the first."""
    first, *others = candidates
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    ratio: dict[str, list[float]] = {name: [] for name in others}

    def timed(name: str) -> float:
        start = clock()
        candidates[name]()
        seconds[name].append(clock() - start)
        return seconds[name][-1]

    for name in candidates:  # warms the caches
        candidates[name]()
    for _ in range(rounds):
        before = timed(first)
        for name in others:
            own, after = timed(name), timed(first)
            ratio[name].append(2 * own / (before + after))
            before = after
    return {
        name: (
            statistics.median(seconds[name]),
            1.0 if name == first else statistics.median(ratio[name]),
        )
        for name in candidates
    }


def saved_bytes(run: Callable[[], Tensor], model: nn.Module) -> int:
    """Count the bytes that autograd saves in a forward pass, without parameters."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = run()
    del loss
    return sum(kept.values())


def model_rows(size: str, args: argparse.Namespace) -> list[list[str]]:
    """Measure train steps and saved activations of every variant of one size."""
    preset, side, batch = SIZES[size]
    batch = args.batch or batch
    torch.manual_seed(0)
    x = torch.randn(batch, 3, side, side)
    labels = torch.randint(0, 10, (batch,))

    def build(name: str, **switches: int) -> nn.Module:
        model: nn.Module = timm.create_model(name, num_classes=10, img_size=side, **switches)
        return model.train()

    models = {"baseline": build(preset), "aps": build(f"{preset}_aps"), "af": build(f"{preset}_af")}
    if f"{preset}_{side}" in timm.list_models(f"{preset}_*"):
        models["baseline of timm"] = build(f"{preset}_{side}")  # same weights, other memory layouts
    if not args.quick:
        models["af, up 3"] = build(f"{preset}_af", up=3)
        models["af, up 4"] = build(f"{preset}_af", up=4)
        models["af, FFT form"] = with_ffts(build(f"{preset}_af"))

    def loss(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(x), labels)

    def step(model: nn.Module) -> None:
        model.zero_grad()
        loss(model).backward()  # type: ignore[no-untyped-call]

    timed = ratios(
        {name: lambda m=model: step(m) for name, model in models.items()},  # type: ignore[misc]
        rounds=args.rounds,
        clock=CLOCKS[args.clock],
    )
    saved = {name: saved_bytes(lambda m=m: loss(m), m) for name, m in models.items()}  # type: ignore[misc]
    return [
        [
            f"{size}, batch {batch}, {side} px",
            name,
            f"{1e3 * seconds / batch:.1f}",
            f"{ratio:.2f}",
            BARS.get((size, name), ""),
            f"{saved[name] / 2**20 / batch:.1f}",
            f"{saved[name] / saved['baseline']:.2f}",
        ]
        for name, (seconds, ratio) in timed.items()
    ]


def activation_rows(args: argparse.Namespace) -> list[list[str]]:
    """Measure the token activation alone, forward and backward, against its FFT form."""
    batch = args.batch or 16
    x = torch.randn(batch, 14, 14, 512, requires_grad=True)
    weight = torch.randn_like(x)
    rows = []
    for up in (2,) if args.quick else (2, 3, 4):
        fast = AliasFreeActivation(up=up, layout="NHWC")

        def run(layer: nn.Module) -> None:
            torch.autograd.grad(layer(x), x, weight)

        timed = ratios(
            {"phases": lambda f=fast: run(f), "FFT": lambda f=fast: run(FftActivation(f))},  # type: ignore[misc]
            rounds=args.rounds,
            clock=CLOCKS[args.clock],
        )
        bar = ">= 7" if up == 2 else ""
        rows.append(
            [
                f"up {up}, batch {batch}",
                f"{1e3 * timed['phases'][0]:.1f}",
                f"{1e3 * timed['FFT'][0]:.1f}",
                f"{timed['FFT'][1]:.1f}",
                bar,
            ]
        )
    return rows


def machine(args: argparse.Namespace) -> str:
    """Describe the machine in one line."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        name = next((s.split(":", 1)[1].strip() for s in lines if s.startswith("model name")), name)
    return (
        f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"timm {timm.__version__}, {args.clock} clock, median of {args.rounds} rounds"
    )


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    for row in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(row) + " |", flush=True)
    print(flush=True)


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--batch", type=int, help="images per step, for every size")
    parser.add_argument("--threads", type=int, help="threads of torch")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--quick", action="store_true", help="only baseline, aps and af at up 2")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    print(f"aft_models on {machine(args)}\n", flush=True)
    assert aft_models.PRESETS
    print_table(
        ["token activation, 14 x 14 x 512", "phases, ms", "FFT form, ms", "times faster", "bar"],
        activation_rows(args),
    )
    header = ["model", "variant", "train step, ms/image", "to baseline", "bar"]
    header += ["saved, MiB/image", "to baseline"]
    for size in args.sizes:
        print_table(header, model_rows(size, args))


if __name__ == "__main__":
    main()
