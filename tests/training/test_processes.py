"""Two processes train as one does, at the same global batch."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed
from training_runs import RECIPE, TinyNet, run

from aft_models.training.loop import Outcome
from aft_models.training.processes import Processes


def train_share(folder: Path) -> Outcome:
    """A run by as many processes as there are; without batch norm, which CPUs do not share."""
    torch.manual_seed(7)
    recipe = dataclasses.replace(RECIPE, ema_decay=0.0)
    model = TinyNet(batch_norm=False)
    return run(folder, recipe, model=model, processes=Processes.current())


def losses(folder: Path) -> list[float]:
    header, *lines = (folder / "log.csv").read_text().splitlines()
    column = header.split(",").index("loss")
    return [float(line.split(",")[column]) for line in lines]


def test_two_processes_equal_one(tmp_path: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    launch += ["--rdzv-endpoint=localhost:0", "--local-addr=localhost"]
    subprocess.run(
        [sys.executable, *launch, __file__, str(tmp_path / "two")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=240,
    )
    train_share(tmp_path / "one")
    assert len(losses(tmp_path / "one")) == RECIPE.epochs
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


if __name__ == "__main__":  # what torchrun starts
    distributed.init_process_group("gloo")
    train_share(Path(sys.argv[1]))
    distributed.destroy_process_group()
