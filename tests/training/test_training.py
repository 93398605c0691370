"""The training loop: loss, resume, NaN, checkpoints and accumulated steps."""

import csv
import dataclasses
import errno
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import training_runs
from torch import nn
from training_runs import RECIPE, SHIFT_CONSISTENCY, TinyNet, run

from aft_models.errors import AftModelsError
from aft_models.training import checkpoint
from aft_models.training.data import LoaderBatches
from aft_models.training.loop import DivergedError, Evaluate
from aft_models.training.recipe import Recipe
from shiftbench.data import Scenes


class KilledError(Exception):
    """Replacement of a kill between two epochs."""


def kill_after(epoch: int):  # type: ignore[no-untyped-def]
    """Return an evaluation that raises before the checkpoint of a later epoch is written."""

    def evaluate(model: nn.Module, finished: int) -> dict[str, float]:
        if finished > epoch:
            raise KilledError
        return {}

    return evaluate


def no_scores(model: nn.Module, finished: int) -> dict[str, float]:
    return {}


def test_train_loss_decreases(tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, epochs=20, lr=1e-2, ema_decay=0.0)
    rows = run(tmp_path, recipe).rows
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.2


def test_checkpoint_without_new_field_has_its_default(tmp_path: Path) -> None:
    short = dataclasses.replace(RECIPE, epochs=1)
    run(tmp_path, short)
    content = torch.load(tmp_path / checkpoint.LAST, weights_only=True)
    del content["identity"]["recipe.norm_momentum"]
    checkpoint.save(tmp_path / checkpoint.LAST, content)
    assert len(run(tmp_path, short).rows) == 1
    with pytest.raises(AftModelsError, match=r"recipe.norm_momentum 0.0 there, 0.5 here"):
        run(tmp_path, dataclasses.replace(short, norm_momentum=0.5))


@pytest.mark.parametrize("recipe", [RECIPE, SHIFT_CONSISTENCY], ids=["plain", "shift-consistency"])
def test_resumed_run_equals_uninterrupted_run(tmp_path: Path, recipe: Recipe) -> None:
    whole = run(tmp_path / "whole", recipe, evaluate=no_scores)
    with pytest.raises(KilledError):
        run(tmp_path / "parts", recipe, evaluate=kill_after(1))
    torch.manual_seed(99)  # another process would not have this random state either
    parts = run(tmp_path / "parts", recipe, evaluate=no_scores, model=TinyNet())
    columns = ["loss", "consistency_loss"] if recipe.shift else ["loss"]
    for row, other in zip(parts.rows, whole.rows, strict=True):
        assert [row[name] for name in columns] == [other[name] for name in columns]
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, parts.model.state_dict()[name]), name


def test_killed_process_leaves_a_resumable_checkpoint(tmp_path: Path) -> None:
    script = (
        "import os, signal\nfrom pathlib import Path\nfrom training_runs import run\n"
        "def evaluate(model, finished):\n"
        "    if finished > 1: os.kill(os.getpid(), signal.SIGKILL)\n    return {}\n"
        f"run(Path({str(tmp_path / 'killed')!r}), evaluate=evaluate)\n"
    )
    place = Path(training_runs.__file__).parent
    ended = subprocess.run([sys.executable, "-c", script], cwd=place, check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    killed = run(tmp_path / "killed", evaluate=no_scores)
    whole = run(tmp_path / "whole", evaluate=no_scores)
    assert [row["loss"] for row in killed.rows] == [row["loss"] for row in whole.rows]


@pytest.mark.parametrize("workers", [0, 2])
def test_train_equal_seeds_give_equal_augmentation_and_mixup(tmp_path: Path, workers: int) -> None:
    recipe = dataclasses.replace(
        RECIPE,
        epochs=2,
        pipeline="loader",
        canvas=0,
        rand_augment="rand-m9-mstd0.5-inc1",
        random_erasing=0.5,
        mixup=0.8,
        cutmix=1.0,
    )

    def finish(name: str, entropy: int, evaluate: Evaluate = no_scores) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = TinyNet()
        np.random.seed(entropy)  # noqa: NPY002 - a new process starts anywhere
        random.seed(entropy)
        batches = LoaderBatches(Scenes("train", 32), recipe, workers=workers)
        run(tmp_path / name, recipe, model=model, batches=batches, evaluate=evaluate)
        return model.state_dict()

    first, again = finish("first", 1), finish("again", 2)
    with pytest.raises(KilledError):
        finish("parts", 3, kill_after(1))
    resumed = finish("parts", 4)
    for name, value in first.items():
        assert torch.equal(value, again[name]), name
        assert torch.equal(value, resumed[name]), name


def test_checkpoint_of_another_run_raises(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(AftModelsError, match=r"recipe\.lr 0\.002 there, 0\.1 here"):
        run(tmp_path, dataclasses.replace(RECIPE, lr=0.1))
    with pytest.raises(AftModelsError, match="model 'tiny' there, 'other' here"):
        run(tmp_path, name="other")
    remedied = "timm:tf_efficientnet_lite0+circular+aps"  # full names that differ at the end
    with pytest.raises(AftModelsError, match=re.escape(f"'{remedied}' here")):
        run(tmp_path, name=remedied)
    assert run(tmp_path, name="other", resume=False).rows
    checkpoint.save(tmp_path / checkpoint.LAST, {"format": 1, "identity": {"model": "tiny"}})
    with pytest.raises(AftModelsError, match="has checkpoint format 1, written by another version"):
        run(tmp_path)
    (tmp_path / checkpoint.LAST).write_bytes(b"not a checkpoint")
    with pytest.raises(AftModelsError, match="not a readable training checkpoint"):
        run(tmp_path)


def test_checkpoint_interrupted_save_keeps_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.pt"
    checkpoint.save(path, {"value": 1})

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(path, {"value": 2})
    assert torch.load(path, weights_only=True) == {"value": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.pt"]


def test_train_nan_loss_raises_and_keeps_last_checkpoint(tmp_path: Path) -> None:
    class Breaks(TinyNet):
        calls = 0

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            self.calls += self.training
            return super().forward(images) * (float("nan") if self.calls > 3 else 1.0)

    with pytest.raises(DivergedError, match=r"epoch 2; .*last\.pt keeps epoch 1\."):
        run(tmp_path, model=Breaks())
    kept = torch.load(tmp_path / checkpoint.LAST, weights_only=True)
    assert kept["epoch"] == 1
    assert all(value.isfinite().all() for value in kept["model"].values())


def test_train_nan_after_last_update_is_not_saved(tmp_path: Path) -> None:
    model = TinyNet()
    updates: list[None] = []

    def spoil_the_last(gradient: torch.Tensor) -> torch.Tensor:
        updates.append(None)
        return gradient * (float("nan") if len(updates) == 3 else 1.0)

    model.head.weight.register_hook(spoil_the_last)
    with pytest.raises(DivergedError, match="no epoch was finished"):
        run(tmp_path, model=model)
    assert not (tmp_path / checkpoint.LAST).exists()


def test_train_writes_checkpoint_of_best_epoch(tmp_path: Path) -> None:
    scores = {1: 0.5, 2: 0.9, 3: 0.7}
    outcome = run(tmp_path, evaluate=lambda model, epoch: {"accuracy": scores[epoch]})
    assert outcome.best == 0.9
    assert torch.load(tmp_path / checkpoint.BEST, weights_only=True)["epoch"] == 2
    assert torch.load(tmp_path / checkpoint.LAST, weights_only=True)["epoch"] == 3


def test_log_has_a_row_per_epoch_and_empty_cells_between_scores(tmp_path: Path) -> None:
    run(tmp_path, evaluate=lambda model, epoch: {"consistency": 0.25} if epoch == 2 else {})
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert [row["consistency"] for row in rows] == ["", "0.25", ""]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_train_evaluates_and_returns_averaged_weights(tmp_path: Path) -> None:
    seen: list[nn.Module] = []
    model = TinyNet()
    outcome = run(tmp_path, model=model, evaluate=lambda m, epoch: seen.append(m) or {})  # type: ignore[func-returns-value]
    assert outcome.model is seen[-1] is not model
    plain = dataclasses.replace(RECIPE, ema_decay=0.0)
    assert run(tmp_path / "plain", plain, model=model).model is model


@pytest.mark.parametrize("recipe", [RECIPE, SHIFT_CONSISTENCY], ids=["plain", "shift-consistency"])
def test_train_accumulated_steps_equal_one_large_batch(tmp_path: Path, recipe: Recipe) -> None:
    recipe = dataclasses.replace(recipe, ema_decay=0.0)
    models = [TinyNet(batch_norm=False) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    once = run(tmp_path / "once", recipe, model=models[0], evaluate=no_scores)
    split = dataclasses.replace(recipe, accumulate=4)
    four = run(tmp_path / "four", split, model=models[1], evaluate=no_scores)
    for row, other in zip(once.rows, four.rows, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-5)
