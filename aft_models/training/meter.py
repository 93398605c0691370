"""The loss and the speed of an epoch, looked at now and then: each look waits for the device."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from aft_models.training.processes import Processes

LOOK_EVERY = 50  # updates


@dataclass(frozen=True)
class Progress:
    """Where a run is, for whoever watches."""

    epoch: int  # the one under way, from 0
    epochs: int
    update: int  # done in this epoch
    updates: int
    loss: float  # mean since the last look, over all processes
    images_per_second: float  # since the last look
    seconds_left: float  # in the whole run, at this speed


class Meter:
    """Adds up the losses of one epoch."""

    def __init__(
        self, epoch: int, epochs: int, updates: int, batch_size: int, processes: Processes
    ) -> None:
        self.epoch, self.epochs, self.updates = epoch, epochs, updates
        self.batch_size = batch_size
        self.processes = processes
        self._started = self._looked = time.monotonic()
        self._done = self._seen = 0  # updates; `_seen` at the last look
        self._since = torch.zeros((), dtype=torch.float64)  # loss since the last look
        self._total = 0.0

    def add(self, loss: Tensor) -> Progress | None:
        """Counts an update; now and then, and at the end, says where the run is."""
        self._since = self._since.to(loss.device) + loss
        self._done += 1
        if self._done % LOOK_EVERY and self._done != self.updates:
            return None
        loss_sum = float(self.processes.total(self._since)) / self.processes.count
        count, now = self._done - self._seen, time.monotonic()
        speed = count * self.batch_size / max(now - self._looked, 1e-9)
        left = (self.epochs - self.epoch) * self.updates - self._done
        self._total += loss_sum
        self._seen, self._looked = self._done, now
        self._since = torch.zeros_like(self._since)
        return Progress(
            self.epoch,
            self.epochs,
            self._done,
            self.updates,
            loss_sum / count,
            speed,
            left * self.batch_size / speed,
        )

    def row(self) -> dict[str, float]:
        """The columns of the log for the finished epoch."""
        seconds = time.monotonic() - self._started
        return {
            "epoch": self.epoch + 1,
            "loss": self._total / self.updates,
            "images_per_second": self.updates * self.batch_size / seconds,
            "seconds": seconds,
        }
