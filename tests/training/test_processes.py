"""Two processes train like one at the same global batch, and score the exported weights."""

import csv
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import training_runs
from torch import Tensor, distributed, nn
from training_runs import RECIPE, TinyNet, run, scenes

from aft_models.training import checkpoint
from aft_models.training.data import PixelBatches
from aft_models.training.device import Processes

VIEWS = {"shift": 2, "consistency": 4.0}
SETTINGS: dict[str, tuple[bool, dict[str, float]]] = {
    # folder -> True with batch norm, and changes of the recipe
    "plain": (False, {"ema_decay": 0.0}),
    "shift-consistency": (False, {"ema_decay": 0.0, **VIEWS}),
    "normed": (True, {"ema_decay": 0.0}),
    "averaged": (True, {"ema_decay": 0.9}),
}


def mean_logit(model: nn.Module, processes: Processes) -> float:
    """Return the mean logit over the images of all processes, which depends on every weight."""
    total = torch.zeros(2, dtype=torch.float64)
    for images, _ in PixelBatches(scenes(), RECIPE, 8, processes):
        logits: Tensor = model(images)[:, 0]
        total += torch.tensor([logits.double().sum(), len(logits)])
    summed, count = processes.total(total).tolist()
    return float(summed / count)


def train_share(folder: Path, name: str) -> None:
    """Train with the processes of this group."""
    batch_norm, changes = SETTINGS[name]
    torch.manual_seed(7)
    joined = distributed.is_initialized()
    processes = (
        Processes(distributed.get_rank(), distributed.get_world_size()) if joined else Processes()
    )
    run(
        folder,
        dataclasses.replace(RECIPE, **changes),
        model=TinyNet(batch_norm=batch_norm),
        processes=processes,
        evaluate=lambda model, epoch: {"score": mean_logit(model, processes)},
    )


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run every training with two processes; return the folder."""
    folder = tmp_path_factory.mktemp("two")
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    launch += ["--rdzv-endpoint=localhost:0", "--local-addr=localhost"]
    paths = [str(Path(training_runs.__file__).parent), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        [sys.executable, *launch, __file__, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    return folder


def losses(folder: Path) -> list[float]:
    with (folder / "log.csv").open() as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("name", ["plain", "shift-consistency"])  # CPUs do not share batch norm
def test_training_two_processes_equal_one(by_two: Path, tmp_path: Path, name: str) -> None:
    train_share(tmp_path, name)
    assert len(losses(tmp_path)) == RECIPE.epochs
    assert losses(by_two / name) == pytest.approx(losses(tmp_path), rel=1e-4)


@pytest.mark.parametrize("name", SETTINGS)
def test_training_scores_are_those_of_saved_weights(by_two: Path, name: str) -> None:
    kept = torch.load(by_two / name / checkpoint.LAST, weights_only=True)
    model = TinyNet(batch_norm=SETTINGS[name][0]).eval()
    model.load_state_dict(kept["model_ema"] or kept["model"])
    with torch.no_grad():
        alone = mean_logit(model, Processes())
    assert kept["rows"][-1]["score"] == pytest.approx(alone, rel=1e-5)


if __name__ == "__main__":  # entry point for torchrun
    distributed.init_process_group("gloo")
    for name in SETTINGS:
        train_share(Path(sys.argv[1]) / name, name)
    distributed.destroy_process_group()
