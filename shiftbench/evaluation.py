"""The notebook's way in: a model and some images, measured in one call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from shiftbench.batches import batches, shards
from shiftbench.errors import DataError, UsageError
from shiftbench.grid import Grid
from shiftbench.measure.answers import Model, ask_unshifted, check_batch_size
from shiftbench.measure.attacks import ATTACKS, DEFAULT_RADIUS, Attack
from shiftbench.measure.consistency import CONSISTENCIES, Consistency, ConsistencyKind
from shiftbench.measure.consistency import consistency as measure_consistency
from shiftbench.measure.search import Trace, search
from shiftbench.shifts import SHIFTS
from shiftbench.shifts.base import window
from shiftbench.statistics import Score, wilson

SHARD_BATCHES = 4  # batches' worth of images searched together, so that batches stay full


@dataclass(frozen=True)
class Evaluation:
    """What one attack and random shifts did to a model's answers, image by image."""

    attack: str
    grid: Grid
    keys: list[str]
    label: NDArray[np.int64]
    prediction: NDArray[np.int64]  # at (0, 0)
    margin: NDArray[np.float64]  # logit of the label minus the best other logit, at (0, 0)
    trace: Trace
    consistency: Mapping[str, Consistency] = field(default_factory=dict)  # kind -> what it found

    @property
    def accuracy(self) -> Score:
        """The fraction of images that are right unshifted."""
        return wilson(int((self.prediction == self.label).sum()), len(self.label))

    def adversarial_accuracy(self, s: int | None = None) -> Score:
        """The fraction of images that are right at every offset up to ring `s`.

        By default `s` is the radius of the grid. If offsets were sampled (`trace.exact` is False),
        this is an upper bound.
        """
        s = self.grid.radius if s is None else s
        if not 0 <= s <= self.grid.radius:
            raise UsageError(
                f"this evaluation searched 0..{self.grid.radius} steps, got {s}. Evaluate again "
                "with a larger max_shift"
            )
        return self.trace.adversarial_accuracy(s)

    def curve(self) -> pd.DataFrame:
        """Adversarial accuracy at every radius, with its interval: a row per `max_shift`."""
        scores = [vars(self.adversarial_accuracy(s)) for s in range(self.grid.radius + 1)]
        return pd.DataFrame(scores).rename_axis("max_shift").reset_index()

    @property
    def forward_passes(self) -> int:
        """How many images went through the model, each offset counted."""
        others = sum(part.forward_passes for part in self.consistency.values())
        return len(self.label) + self.trace.forward_passes + others

    def to_frame(self) -> pd.DataFrame:
        """A row per image, with the columns that `samples.parquet` of a run has."""
        frame = pd.DataFrame(
            {
                "key": self.keys,
                "label": self.label,
                "prediction": self.prediction,
                "margin": self.margin,
            }
        ).join(self.trace.to_frame(self.attack))
        for kind, part in self.consistency.items():
            frame[f"consistent_{kind}"] = np.all(part.consistent, axis=1)
        return frame

    @classmethod
    def concatenate(cls, parts: Sequence[Evaluation]) -> Evaluation:
        """The evaluation of several sets of images, one after the other."""
        kinds = parts[0].consistency
        return cls(
            attack=parts[0].attack,
            grid=parts[0].grid,
            keys=[key for part in parts for key in part.keys],
            label=np.concatenate([part.label for part in parts]),
            prediction=np.concatenate([part.prediction for part in parts]),
            margin=np.concatenate([part.margin for part in parts]),
            trace=Trace.concatenate([part.trace for part in parts]),
            consistency={
                kind: Consistency.concatenate([part.consistency[kind] for part in parts])
                for kind in kinds
            },
        )

    def __str__(self) -> str:
        bound = "" if self.trace.exact else " (upper bound: offsets were sampled)"
        lines = [
            f"accuracy: {self.accuracy}",
            f"adversarial accuracy, {self.attack} up to {self.grid.reach} px: "
            f"{self.adversarial_accuracy()}{bound}",
        ]
        lines += [f"consistency, {kind}: {part.score}" for kind, part in self.consistency.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Request:
    """What `evaluate` was asked to measure."""

    attack: Attack
    grid: Grid
    kinds: Sequence[ConsistencyKind]
    mode: str
    repeats: int
    seed: int
    batch_size: int

    def measure(
        self, model: Model, canvas: Tensor, margin: int, label: NDArray[np.int64], keys: list[str]
    ) -> Evaluation:
        """Evaluates images that are in memory, where the model is."""
        size = min(canvas.shape[-2:])
        spans = {kind.name: kind.span(size - 2 * margin, size) for kind in self.kinds}
        views = {
            shift: SHIFTS.get(shift).views(canvas, margin)
            for shift in (self.attack.shift, *(kind.shift for kind in self.kinds))
        }
        attacked = views[self.attack.shift]
        unshifted = ask_unshifted(model, attacked, len(label), batch_size=self.batch_size)
        return Evaluation(
            attack=self.attack.name,
            grid=self.grid,
            keys=keys,
            label=label,
            prediction=unshifted.prediction,
            margin=unshifted.margin(label),
            trace=search(
                model,
                attacked,
                label,
                self.grid,
                batch_size=self.batch_size,
                mode=self.mode,
                unshifted=unshifted,
                keys=keys,
                seed=self.seed,
            ),
            consistency={
                kind.name: measure_consistency(
                    model,
                    views[kind.shift],
                    keys,
                    kind,
                    span=spans[kind.name],
                    batch_size=self.batch_size,
                    repeats=self.repeats,
                    seed=self.seed,
                    unshifted=unshifted,
                )
                for kind in self.kinds
            },
        )


def evaluate(
    model: Model,
    images: Tensor | NDArray[np.floating] | Iterable[tuple[Tensor, ArrayLike]],
    labels: ArrayLike | None = None,
    *,
    attack: str = "crop",
    max_shift: int = DEFAULT_RADIUS,
    step: Fraction | float | None = None,
    view: int | tuple[int, int] | None = None,
    mode: str = "exhaustive",
    consistency: Sequence[str] = ("integer", "half"),
    repeats: int = 1,
    keys: Sequence[str] | None = None,
    seed: int = 0,
    batch_size: int = 64,
    device: torch.device | str | None = None,
) -> Evaluation:
    """Measures how a model's answers hold when the camera moves.

    Args:
        model: Anything that maps normalised images (B, C, H, W) to logits (B, classes). A module
            is used in eval mode and handed back in the mode it came in.
        images: A floating-point tensor or array (N, C, H, W), normalised as the model expects, with
            `labels`; or, without `labels`, a loader or data set of (image, label) pairs, batched or
            single.
        labels: One class index per image.
        attack: `integer`, `half`, `crop` or `bilinear`; see `shiftbench.ATTACKS`.
        max_shift: The radius of the grid, in steps.
        step: Pixels between neighbouring offsets, if not the attack's own.
        view: Height and width of what the model sees: the centre of the images. By default as large
            as possible: for `crop` and `bilinear` the images less the pixels the grid needs around
            the view (6 on each side for crops up to 6), otherwise the whole images. Give the size
            (say 224, of images of 256) when the model insists on one.
        mode: `exhaustive`, `full_grid` or `sampled:K`; see `shiftbench.measure.search.search`.
        consistency: Kinds of random shift to compare with: `integer`, `half`, `crop` (two crops of
            the given images); empty for none.
        repeats: Random shifts per image.
        keys: A stable name per image, which its random shifts follow from; by default its number.
        seed: Another seed, other random shifts.
        batch_size: How many images the model sees at once; no result depends on it.
        device: Where the images go; by default where the module's parameters are.

    Raises:
        UsageError: The request cannot be: unknown names, a grid too wide for the images.
        DataError: There are no images, or labels that do not fit them.
        ModelError: The model's answers are not finite logits for the classes of the labels.
    """
    plan = ATTACKS.get(attack)
    if plan.shift not in SHIFTS:
        raise UsageError(
            f"attack {attack!r} renders the scene again, which pixels alone cannot do. Use another "
            "attack here, or run this one on a data set that can: shiftbench run --data scenes"
        )
    check_batch_size(batch_size)
    request = _Request(
        attack=plan,
        grid=plan.grid(max_shift) if step is None else Grid(max_shift, Fraction(step)),
        kinds=[CONSISTENCIES.get(kind) for kind in consistency],
        mode=mode,
        repeats=repeats,
        seed=seed,
        batch_size=batch_size,
    )
    parts: list[Evaluation] = []
    done = 0
    with _eval_mode(model) as like:
        for canvas, label in shards(batches(images, labels), SHARD_BATCHES * batch_size):
            canvas = canvas if like is None else canvas.to(like.device, like.dtype)
            canvas = canvas if device is None else canvas.to(device)
            canvas, margin = _centre(canvas, request, view)
            stop = done + len(label)
            here = [str(i) for i in range(done, stop)] if keys is None else list(keys[done:stop])
            if len(here) < len(label):
                raise DataError(f"expected a key per image, got only {len(keys or ())}")
            parts.append(request.measure(model, canvas, margin, label, here))
            done = stop
    if not parts:
        raise DataError("expected at least one image, got none. Check the path and the filters")
    return Evaluation.concatenate(parts)


@contextmanager
def _eval_mode(model: Model) -> Iterator[Tensor | None]:
    """Puts a module into eval mode for a while; yields one of its parameters, if it has any."""
    # A `Classifier` is a callable that keeps its network in `.module`.
    module = model if isinstance(model, nn.Module) else getattr(model, "module", None)
    if not isinstance(module, nn.Module):
        yield None
        return
    # Part by part: a module in training may hold frozen parts that are in eval mode already.
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield next(module.parameters(), None)
    finally:
        for part in training:
            part.training = True


def _centre(
    canvas: Tensor, request: _Request, view: int | tuple[int, int] | None
) -> tuple[Tensor, int]:
    """Cuts images to a view with the same margin on every side; returns them and the margin."""
    needed = SHIFTS.get(request.attack.shift).margin(request.grid)
    height, width = canvas.shape[-2:]
    if view is None:
        view = (height - 2 * needed, width - 2 * needed)
    view_height, view_width = (view, view) if isinstance(view, int) else view
    margin = min(height - view_height, width - view_width) // 2
    if margin < needed or min(view_height, view_width) < 1:
        raise UsageError(
            f"attack {request.attack.name!r} up to {request.grid.reach} px needs {needed} pixels "
            f"around the view, but images of {height}x{width} do not hold a view of "
            f"{view_height}x{view_width} with them. Choose a smaller max_shift, a smaller view, or "
            "larger or padded images"
        )
    full_height, full_width = view_height + 2 * margin, view_width + 2 * margin
    top, left = (height - full_height) // 2, (width - full_width) // 2
    return window(canvas, top, left, full_height, full_width), margin
