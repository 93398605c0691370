"""Loggers: send the numbers of a training or a record to TensorBoard or Weights & Biases."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shiftbench.errors import UsageError
from shiftbench.records.result import Result
from shiftbench.registry import unknown_name

LOGGERS = ("tensorboard", "wandb")  # packages, and extras of shiftbench
Write = Callable[[int, Mapping[str, float]], None]  # attribute of a step, which never decreases


def require_loggers(names: Sequence[str]) -> None:
    """Raise UsageError if a logger is unknown or not installed."""
    for name in names:
        if name not in LOGGERS:
            raise unknown_name("logger", name, LOGGERS)
        if find_spec(name) is None:
            raise UsageError(f"{name} is not installed. Run `pip install 'shiftbench[{name}]'`")


@contextmanager
def open_loggers(
    names: Sequence[str], folder: Path, name: str, about: Mapping[str, Any]
) -> Iterator[Write]:
    """Open loggers in a folder, for a run of this name and settings; yield a function that logs."""
    require_loggers(names)
    settings = json.loads(json.dumps(dict(about), default=str))
    board: Any = None
    run: Any = None
    if "wandb" in names:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        project = os.environ.get("WANDB_PROJECT", "shiftbench")
        try:
            run = wandb.init(project=project, name=name, dir=folder, config=settings)
        except wandb.Error as error:
            raise UsageError(f"cannot start wandb: {error}. Run `wandb login`") from error

    def write(step: int, values: Mapping[str, float]) -> None:
        nonlocal board
        if "tensorboard" in names and board is None:
            from torch.utils.tensorboard import SummaryWriter

            # Events from this step on are of a run that was repeated.
            board = SummaryWriter(str(folder), purge_step=step)
            board.add_text(name, f"```json\n{json.dumps(settings, indent=2)}\n```", step)
        for key, value in values.items() if board is not None else ():
            board.add_scalar(key, value, step)
        if run is not None:
            run.log(dict(values), step=step)

    try:
        yield write
    finally:
        if board is not None:
            board.close()
        if run is not None:
            run.finish()


def log_result(result: Result, names: Sequence[str], folder: Path) -> None:
    """Write every score: points of curves at the step of their max shift, others at step 0."""
    steps: dict[int, dict[str, float]] = {}
    for name, score in result.scores.items():
        steps.setdefault(name.radius or 0, {})[name.stem] = score.value
    data = asdict(replace(result.data, classes=()))
    about = {"model": asdict(result.model), "data": data, "settings": dict(result.settings)}
    with open_loggers(names, folder, result.model.name, about) as write:
        for step in sorted(steps):
            write(step, steps[step])
