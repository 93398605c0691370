"""A run: job, predictions, runner, shards, verification. The names of this file need no torch."""

from collections.abc import Callable
from dataclasses import dataclass

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")  # of the forward pass


@dataclass(frozen=True)
class Progress:
    """Progress of a run."""

    images: int  # finished in this run
    total: int  # images that lacked a cell
    passes: int  # forward passes in this run
    most_passes: int  # upper bound: an image that is misclassified early needs fewer


ProgressCallback = Callable[[Progress], None]
