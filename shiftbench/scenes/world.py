"""Content of `scenes`, drawn from (seed, split, index) alone.

Lengths are in windows: the view at offset zero is the square [-1/2, 1/2] x [-1/2, 1/2] of an
unbounded world, for any number of pixels. Periods and radii are therefore written as pixels of a
64-pixel view over 64.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]

PIXEL = 1 / 64  # of the default view, in windows
EDGE = 1.2 * PIXEL  # width of an outline's ramp: edges are never infinitely sharp

OPACITY = 0.7  # opacity of an object: texture as fine as its weave is visible through it

SQRT_HALF = math.sqrt(0.5)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: the Weyl step of SplitMix64


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix bits with the finaliser of SplitMix64 (Steele, Lea and Flood 2014), a bijection."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Draws:
    """Random numbers for many images at once: the k-th draw of an image is a hash of its identity.

    Draws are counter-based, so an image never depends on the batch in which it is rendered.
    """

    def __init__(self, seed: int, split: str, indices: Sequence[int]) -> None:
        identity = hashlib.sha256(f"scenes/{seed}/{split}".encode()).digest()[:8]
        key = np.uint64(int.from_bytes(identity, "little"))
        self._keys = _mix(key + _mix(np.asarray(indices, dtype=np.uint64)))
        self._counter = 0

    def uniform(self, low: float, high: float, *shape: int) -> Floats:
        """Return (B, *shape) numbers in [low, high)."""
        count = int(np.prod(shape, dtype=int))
        steps = np.arange(self._counter + 1, self._counter + count + 1, dtype=np.uint64) * _GOLDEN
        self._counter += count
        bits = _mix(self._keys[:, None] + steps) >> np.uint64(11)
        numbers = low + (high - low) * (bits.astype(np.float64) * 2.0**-53)
        return numbers.reshape(len(self._keys), *shape)


def wave(t: Tensor) -> Tensor:
    """Compute a cosine of period 1 from correctly rounded operations; overwrite the argument.

    A triangle wave rounded off by a cubic: cos(2 pi t) to about 2%. Equal t give equal bits at any
    position in a tensor, which vectorized cosines do not guarantee.
    """
    t -= t.round()
    t.abs_().mul_(-4.0).add_(1.0)
    return t.mul_(t.square().mul_(-0.5).add_(1.5))


def _disc(u: Tensor, v: Tensor) -> Tensor:
    return (u.square() + v.square()).sqrt_()


def _square(u: Tensor, v: Tensor) -> Tensor:
    return u.abs().maximum(v.abs()).mul_(1.13)  # about the area of the disc


def _star(u: Tensor, v: Tensor) -> Tensor:
    # r (1 - a cos 5 theta) with cos 5 theta = Re(z^5) / |z|^5, in plain arithmetic.
    uu, vv = u.square(), v.square()
    rr = uu + vv
    cosine = uu * (uu - 10 * vv) + 5 * vv.square()
    cosine *= u
    r = rr.sqrt()
    cosine /= rr.square_().mul_(r).add_(1e-12)
    return r.mul_(cosine.mul_(-0.28).add_(1.04))


def _stripes(u: Tensor, v: Tensor) -> Tensor:
    return wave(u.clone())


def _checks(u: Tensor, v: Tensor) -> Tensor:
    # The product of two waves is a pair of diagonal waves, finer by sqrt(2). The factor
    # gives every weave of a given period its energy at the same spatial frequency.
    return wave(u * SQRT_HALF).mul_(wave(v * SQRT_HALF))


def _rings(u: Tensor, v: Tensor) -> Tensor:
    return wave(_disc(u, v))


def _chevrons(u: Tensor, v: Tensor) -> Tensor:
    fold = v * (1 / 4)  # stripes at 45 degrees, mirrored every two periods
    fold -= fold.round()
    return wave(fold.abs_().mul_(4.0).add_(u).mul_(SQRT_HALF))


Field = Callable[["Tensor", "Tensor"], "Tensor"]

OUTLINES: dict[str, Field] = {"disc": _disc, "square": _square, "star": _star}
"""Distance from the center in radii: the outline is where it equals the object's radius."""

WEAVES: dict[str, Field] = {
    "striped": _stripes,
    "checked": _checks,
    "ringed": _rings,
    "chevron": _chevrons,
}
"""Fine structure in [-1, 1] as a function of the object's own axes, in periods."""

CLASSES: list[tuple[str, str]] = [(weave, outline) for outline in OUTLINES for weave in WEAVES]
CLASS_NAMES: list[str] = [f"{weave} {outline}" for weave, outline in CLASSES]


class Ripples(NamedTuple):
    """Sum of Gaussian-windowed plane waves: texture (infinite windows) and distractors."""

    center: Floats  # (B, K, 2), y then x
    width: Floats  # (B, K) standard deviation of the window; infinite: none
    frequency: Floats  # (B, K, 2) cycles per window
    phase: Floats  # (B, K) cycles
    color: Floats  # (B, K, 3) amplitude


@dataclass(frozen=True)
class World:
    """Scenes of a batch."""

    label: NDArray[np.int64]  # (B,)
    ground: Floats  # (B, 3) mean color of the background, 0..1
    ripples: Ripples
    center: Floats  # (B, 2) of the labeled object, y then x
    radius: Floats  # (B,)
    angle: Floats  # (B,) radians, of the outline
    weave_angle: Floats  # (B,) radians, of the fine structure
    period: Floats  # (B,) of the fine structure
    weave_phase: Floats  # (B, 2) periods
    body: Floats  # (B, 3) mean color of the object
    thread: Floats  # (B, 3) amplitude of its fine structure

    def __len__(self) -> int:
        return len(self.label)


def _polar(length: Floats, turns: Floats) -> Floats:
    """Return vectors of a given length and direction, (..., 2)."""
    direction: Floats = np.stack([np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)], axis=-1)
    return length[..., None] * direction


def _texture(draws: Draws, count: int) -> Ripples:
    """Draw endless waves from 1 to 20 cycles per window, weaker at higher frequencies."""
    octave = (np.arange(count) + draws.uniform(0, 1, count)) / count
    cycles = 20.0**octave
    shared = draws.uniform(-1, 1, count, 1)
    color = (shared + 0.4 * draws.uniform(-1, 1, count, 3)) * 0.16 * cycles[..., None] ** -0.45
    return Ripples(
        center=np.zeros((*cycles.shape, 2)),
        width=np.full(cycles.shape, np.inf),
        frequency=_polar(cycles, draws.uniform(0, 1, count)),
        phase=draws.uniform(0, 1, count),
        color=color,
    )


def _distractors(draws: Draws, count: int) -> Ripples:
    """Draw small soft patches; every second one has stripes as fine as an object's."""
    fine = np.arange(count) % 2 == 0
    cycles = draws.uniform(10, 22, count) * fine
    return Ripples(
        center=draws.uniform(-0.5, 0.5, count, 2),
        width=draws.uniform(2.5, 5.0, count) * PIXEL,
        frequency=_polar(cycles, draws.uniform(0, 1, count)),
        phase=draws.uniform(0, 1, count),
        color=draws.uniform(-0.3, 0.3, count, 1) + draws.uniform(-0.15, 0.15, count, 3),
    )


def draw_world(seed: int, split: str, indices: Sequence[int]) -> World:
    """Draw the scenes with these indices; each depends on (seed, split, index) alone."""
    draws = Draws(seed, split, indices)
    parts = zip(_texture(draws, 10), _distractors(draws, 6), strict=True)
    ripples = Ripples(*(np.concatenate(both, axis=1) for both in parts))
    contrast = draws.uniform(0.1, 0.3, 1) * np.where(draws.uniform(0, 1, 1) < 0.5, -1, 1)
    label = np.asarray(indices, dtype=np.int64) % len(CLASSES)
    concentric = np.array([weave == "ringed" for weave, _ in CLASSES])[label]
    return World(
        label=label,
        ground=draws.uniform(0.3, 0.7, 3),
        ripples=ripples,
        center=draws.uniform(-9, 9, 2) * PIXEL,
        radius=draws.uniform(11, 17) * PIXEL,
        angle=draws.uniform(0, 2 * np.pi),
        weave_angle=draws.uniform(0, 2 * np.pi),
        period=draws.uniform(2.4, 3.6) * PIXEL,
        weave_phase=draws.uniform(0, 1, 2) * ~concentric[:, None],
        body=draws.uniform(0.25, 0.75, 3),
        thread=contrast * (1 + draws.uniform(-0.5, 0.5, 3)),
    )
