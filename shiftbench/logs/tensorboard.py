"""TensorBoard: an event file in the run's folder; nothing leaves the machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shiftbench.logs import LOGS, Sink


class TensorBoard:
    """Scalars by step; the file is made with the first of them."""

    def __init__(self, folder: Path, name: str, about: Mapping[str, Any]) -> None:
        self._folder, self._name, self._about = folder, name, about
        self._writer: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes scalars."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # Events from this step on are of a run that was cut short, or of an older one.
            self._writer = SummaryWriter(str(self._folder), purge_step=step)
            text = json.dumps(dict(self._about), indent=2, default=str)
            self._writer.add_text(self._name, f"```json\n{text}\n```", step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes what is left."""
        if self._writer is not None:
            self._writer.close()


LOGS.register("tensorboard", Sink("tensorboard", TensorBoard))
