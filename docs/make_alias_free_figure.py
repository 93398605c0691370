"""Draw docs/images/alias-free.png and print the figures of docs/explanation/alias-free.md.

python docs/make_alias_free_figure.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from torch import Tensor, nn

from aft_models import create_xcit
from aft_models.layers import fractional_shift

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import fft_reference as reference

TARGET = Path(__file__).parent / "images" / "alias-free.png"
SIDE = 224
SHIFTS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0)
MODELS = {
    "baseline": ("xcit_nano_12_p16", 2, "#888888", "o"),
    "APS": ("xcit_nano_12_p16_aps", 2, "#4477aa", "s"),
    "alias-free, up 2": ("xcit_nano_12_p16_af", 2, "#cc3311", "^"),
    "alias-free, up 3": ("xcit_nano_12_p16_af", 3, "#ee7733", "v"),
    "alias-free, up 4": ("xcit_nano_12_p16_af", 4, "#ddaa33", "D"),
}
FLOOR = 1e-16  # where an exact zero is drawn


def scene(count: int = 1) -> Tensor:
    """Draw images with the falling spectrum of natural images and no Nyquist energy."""
    generator = torch.Generator().manual_seed(0)
    white = torch.randn(count, 3, SIDE, SIDE, dtype=torch.float64, generator=generator)
    rows = torch.fft.fftfreq(SIDE, dtype=torch.float64)[:, None]
    columns = torch.fft.rfftfreq(SIDE, dtype=torch.float64)
    falling = 1 / (0.02 + torch.hypot(rows, columns))
    x = torch.fft.irfft2(torch.fft.rfft2(white) * falling, s=(SIDE, SIDE))
    return reference.fft_downsample(x / x.std(), (SIDE, SIDE))


@torch.no_grad()
def residues(name: str, up: int, x: Tensor) -> list[float]:
    """Relative change of the logits of a random, calibrated model under each horizontal shift."""
    torch.manual_seed(0)
    model = create_xcit(name, num_classes=10, up=up).double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    model.train()(x)
    model.eval()
    still = model(x)
    return [
        float((model(fractional_shift(x, 0, shift)) - still).norm() / still.norm())
        for shift in SHIFTS
    ]


def draw_signal(axes: Axes) -> None:
    """Draw one line of 12 samples, whose GELU depends on the position of the grid."""
    n, fine = 12, 40
    torch.manual_seed(3)
    line = reference.fft_downsample_1d(torch.randn(n, dtype=torch.float64) * 1.6, n)
    time = np.arange(n * fine) / fine

    def continuous(samples: Tensor, offset: float) -> np.ndarray:
        moved = reference.fft_shift_1d(samples, -offset)
        return reference.fft_upsample_1d(moved, fine).numpy()

    for offset, dashes in ((0.0, "-"), (0.25, "--")):
        shifted = reference.fft_shift_1d(line, offset)
        naive = continuous(F.gelu(shifted), offset)
        clean = continuous(
            reference.fft_downsample_1d(F.gelu(reference.fft_upsample_1d(shifted, 4)), n), offset
        )
        axes.plot(time, naive, dashes, color="#888888", lw=1.4)
        axes.plot(time, clean - 2.5, dashes, color="#cc3311", lw=1.4)
    axes.text(0.1, 2.6, "GELU on the grid", color="#666666", fontsize=9)
    axes.text(0.1, -1.0, "alias-free GELU (up 4)", color="#cc3311", fontsize=9)
    axes.set(xlabel="position, samples", yticks=[], ylim=(-3.6, 3.1), xlim=(0, n))
    axes.set_title("the same signal, grid at 0 (solid) and at 1/4 (dashed)", fontsize=10)


def main() -> None:
    """Measures, prints, draws."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), width_ratios=(1, 1.25))
    draw_signal(left)
    x = scene()
    for label, (name, up, color, marker) in MODELS.items():
        errors = residues(name, up, x)
        pairs = " ".join(f"{s:g}:{r:.1e}" for s, r in zip(SHIFTS, errors, strict=True))
        print(f"{label:18s} {pairs}", flush=True)  # noqa: T201 - a script
        drawn = np.maximum(errors, FLOOR)
        right.semilogy(SHIFTS, drawn, marker=marker, ms=4, lw=1.2, color=color, label=label)
    right.set(xlabel="cyclic shift, pixels", ylabel="relative change of the logits")
    right.set_ylim(FLOOR / 3, 3)
    ticks = (0.5, 2, 4, 6, 8, 10, 12, 14, 16)
    right.set_xticks(ticks, [f"{t:g}" for t in ticks])
    right.set_title("xcit_nano_12_p16, 224 px, random weights, float64", fontsize=10)
    right.grid(alpha=0.3)
    right.legend(
        fontsize=8, ncol=5, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False,
        columnspacing=1.0, handletextpad=0.4,
    )  # fmt: skip
    figure.tight_layout()
    figure.savefig(TARGET, dpi=110)


if __name__ == "__main__":
    main()
