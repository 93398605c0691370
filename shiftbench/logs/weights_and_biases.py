"""Weights & Biases: a run of the project `shiftbench`.

Its own variables hold: WANDB_PROJECT names another project, WANDB_MODE=offline keeps the run on
disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shiftbench.errors import UsageError
from shiftbench.logs import LOGS, Sink

PROJECT = "shiftbench"


class WeightsAndBiases:
    """Numbers by step, in a run of their own."""

    def __init__(self, folder: Path, name: str, about: Mapping[str, Any]) -> None:
        import wandb

        plain = json.loads(json.dumps(dict(about), default=str))
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=name,
                dir=folder,
                config=plain,
            )
        except wandb.Error as error:
            raise UsageError(
                f"Weights & Biases refused to begin a run: {error}; "
                "`wandb login`, or set WANDB_MODE=offline"
            ) from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Sends numbers, or keeps them where the mode is offline."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


LOGS.register("wandb", Sink("wandb", WeightsAndBiases))
