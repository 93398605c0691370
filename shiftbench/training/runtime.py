"""Time of forward passes and training steps, as in the paper's runtime table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F
from torch import nn

from aft_models.xcit import create_xcit
from shiftbench.running.predict import choose_device

ROUNDS = 5
CLASSES = 1000


@dataclass(frozen=True)
class Runtime:
    """Median times of a model, in seconds per image."""

    model: str
    forward: float
    train: float


def measure_runtimes(
    models: Sequence[str],
    *,
    device: str = "auto",
    batch_size: int = 8,
    size: int = 224,
    amp: bool = False,
    rounds: int = ROUNDS,
) -> list[Runtime]:
    """Time the forward pass and the training step of bundled models.

    Models take turns in every round, so that other work on the machine affects all of them. The
    first round is not counted.

    Args:
        models: Names of presets.
        device: Device of the models.
        batch_size: Images per step.
        size: Side of the images (pixels).
        amp: Use automatic mixed precision.
        rounds: Steps that the medians are of.
    """
    place = choose_device(device)
    images = torch.randn(batch_size, 3, size, size, device=place)
    labels = torch.arange(batch_size, device=place) % CLASSES
    networks = [create_xcit(name, img_size=size).to(place) for name in models]
    optimizers = [torch.optim.AdamW(network.parameters()) for network in networks]

    def forward(network: nn.Module) -> None:
        with torch.no_grad():
            network.eval()(images)

    def train(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        loss = F.cross_entropy(network.train()(images).float(), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def seconds(step: Callable[[], None]) -> float:
        _wait(place)
        began = time.perf_counter()
        with torch.autocast(place.type, enabled=amp):
            step()
        _wait(place)
        return (time.perf_counter() - began) / batch_size

    times: list[tuple[list[float], list[float]]] = [([], []) for _ in models]
    for _ in range(1 + rounds):
        for network, optimizer, (passes, steps) in zip(networks, optimizers, times, strict=True):
            passes.append(seconds(lambda network=network: forward(network)))  # type: ignore[misc]
            steps.append(
                seconds(lambda network=network, optimizer=optimizer: train(network, optimizer))  # type: ignore[misc]
            )
    return [
        Runtime(name, median(passes[1:]), median(steps[1:]))
        for name, (passes, steps) in zip(models, times, strict=True)
    ]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
