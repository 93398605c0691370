"""The training loop: updates, averaging, evaluation, checkpoints, resume."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from aft_models.errors import AftModelsError
from aft_models.training import checkpoint
from aft_models.training.data import Batch, Batches, mixed_seed
from aft_models.training.device import DeviceConfig
from aft_models.training.logbook import Row, draw_curves, write_log
from aft_models.training.meter import Meter, Progress
from aft_models.training.mixing import Mixing
from aft_models.training.optimizer import make_optimizer, make_scheduler
from aft_models.training.processes import Processes


class DivergedError(AftModelsError):
    """The loss is no longer a number; the last good checkpoint is kept."""


@dataclass(frozen=True)
class Outcome:
    """What a finished run has: the weights to use and its history."""

    model: nn.Module  # averaged weights where the recipe averages
    rows: list[Row]
    best: float | None  # highest accuracy of any epoch, with its checkpoint in best.pt


Evaluate = Callable[[nn.Module, int], Mapping[str, float]]
"""Called by every process after each epoch with the model in eval mode and the number of finished
epochs; returns the same scores (fractions) everywhere. `accuracy` decides which epoch is best."""

Log = Callable[[int, Mapping[str, float]], None]
"""Called by the leading process after each epoch with the number of finished epochs and the rest of
its row: TensorBoard's `add_scalar` in a loop, or whatever else keeps numbers."""


def train(
    model: nn.Module,
    batches: Batches,
    *,
    identity: checkpoint.Identity,
    folder: Path,
    machine: DeviceConfig | None = None,
    processes: Processes | None = None,
    evaluate: Evaluate | None = None,
    report: Callable[[Progress], None] | None = None,
    log: Log | None = None,
    resume: bool = True,
) -> Outcome:
    """Trains `model` to the end of its recipe, from the last checkpoint in `folder` if any.

    Raises:
        AftModelsError: A checkpoint of another run, or a loss that is not a number.
    """
    run = _Run(
        model, batches, identity, folder, machine or DeviceConfig(), processes or Processes()
    )
    if resume and (folder / checkpoint.LAST).exists():
        run.restore()
    elif run.processes.is_main:
        folder.mkdir(parents=True, exist_ok=True)
    run.processes.wait()
    while run.epoch < identity.recipe.epochs:
        row = run.train_epoch(report)
        if evaluate is not None:
            run.scored.eval()
            run.processes.share_buffers(run.scored)  # so that what is scored is what is kept
            with torch.no_grad():
                row |= {
                    name: float(value) for name, value in evaluate(run.scored, run.epoch).items()
                }
        run.finish_epoch(row)
        if log is not None and run.processes.is_main:
            log(run.epoch, {name: value for name, value in row.items() if name != "epoch"})
    if run.processes.is_main:
        draw_curves(folder / "curves.png", run.rows, identity.model)
    return Outcome(run.scored.eval(), run.rows, run.best)


class _Run:
    """The moving parts of one run."""

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        identity: checkpoint.Identity,
        folder: Path,
        machine: DeviceConfig,
        processes: Processes,
    ) -> None:
        recipe = identity.recipe
        self.recipe, self.identity, self.folder = recipe, identity, folder
        self.machine, self.processes, self.batches = machine, processes, batches
        self.model = machine.place(model, processes)
        if recipe.norm_momentum:
            _set_norm_momentum(self.model, recipe.norm_momentum)
        self.optimizer = make_optimizer(self.model, recipe)
        self.scheduler = make_scheduler(self.optimizer, recipe, batches.updates)
        self.scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.precision == "fp16")
        self.ema = (
            ModelEmaV3(self.model, decay=recipe.ema_decay, use_warmup=True)
            if (recipe.ema_decay)
            else None
        )
        self.forward = machine.wrap(self.model, processes)
        self.mixing = (
            Mixing(recipe, classes=identity.classes, seed=identity.seed)
            if recipe.mixup or recipe.cutmix
            else None
        )
        self.loss = nn.CrossEntropyLoss(
            label_smoothing=0.0 if self.mixing else recipe.label_smoothing
        )
        self.epoch = 0
        self.rows: list[Row] = []
        self.best: float | None = None
        torch.manual_seed(mixed_seed(identity.seed, processes.rank))

    @property
    def scored(self) -> nn.Module:
        """The weights that are evaluated and exported."""
        return self.model if self.ema is None else self.ema.module

    def train_epoch(self, report: Callable[[Progress], None] | None) -> Row:
        """Runs one epoch and returns its row of the log."""
        self.model.train()
        stream = self.batches.epoch(self.epoch)
        updates = self.batches.updates
        meter = Meter(
            self.epoch, self.recipe.epochs, updates, self.recipe.batch_size, self.processes
        )
        for update in range(updates):
            progress = meter.add(self._update(stream, self.epoch * updates + update))
            if progress is not None:
                self._require_finite(progress.loss)
                if report is not None:
                    report(progress)
        self._require_finite(float(sum(p.detach().sum() for p in self.model.parameters())))
        self.epoch += 1
        return meter.row() | {"lr": self.optimizer.param_groups[0]["lr"]}

    def _require_finite(self, value: float) -> None:
        if not math.isfinite(value):
            kept = f"{self.folder / checkpoint.LAST} keeps epoch {self.epoch}"
            raise DivergedError(
                f"the loss is no longer a number in epoch {self.epoch + 1}; "
                f"{kept if self.epoch else 'no epoch was finished'}. "
                "Train again with a lower lr or with clip_grad=1"
            )

    def _update(self, stream: Iterator[Batch], index: int) -> Tensor:
        """One step of the optimizer; returns its mean loss."""
        recipe = self.recipe
        self.scheduler.step_update(index)
        total = torch.zeros((), device=self.machine.device)
        for step in range(recipe.accumulate):
            images, labels = self.machine.move(*next(stream))
            if self.mixing is not None:
                images, labels = self.mixing(images, labels, index, step, self.processes.rank)
            last = step == recipe.accumulate - 1
            with nullcontext() if last else self._unsynchronized():
                with self.machine.autocast():
                    logits = _require_logits(self.forward(images))
                    loss = self.loss(logits, labels) / recipe.accumulate
                self.scaler.scale(loss).backward()
            total += loss.detach()
        if recipe.clip_grad:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip_grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update(self.model, step=index)
        return total

    def _unsynchronized(self) -> Any:
        """Gradients of all but the last accumulated step need no exchange."""
        if isinstance(self.forward, DistributedDataParallel):
            return self.forward.no_sync()
        return nullcontext()

    def finish_epoch(self, row: Row) -> None:
        """Writes the log and the checkpoints of a finished epoch."""
        self.rows.append(row)
        accuracy = row.get("accuracy")
        better = accuracy is not None and (self.best is None or accuracy > self.best)
        if better:
            self.best = accuracy
        states = self._gathered_random_states()
        if self.processes.is_main:
            content = self._content(states)
            checkpoint.save(self.folder / checkpoint.LAST, content)
            if better:
                checkpoint.save(self.folder / checkpoint.BEST, content)
            write_log(self.folder / "log.csv", self.rows)
        self.processes.wait()

    def _gathered_random_states(self) -> list[Any]:
        state = checkpoint.random_state()
        if self.processes.count == 1:
            return [state]
        states: list[Any] = [None] * self.processes.count
        torch.distributed.all_gather_object(states, state)
        return states

    def _content(self, random_states: list[Any]) -> dict[str, Any]:
        return {
            "format": checkpoint.FORMAT,
            "identity": self.identity.as_dict(),
            "epoch": self.epoch,
            "best": self.best,
            "rows": self.rows,
            "model": self.model.state_dict(),
            "model_ema": None if self.ema is None else self.ema.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": random_states,
        }

    def restore(self) -> None:
        """Goes on from the last checkpoint."""
        content = checkpoint.load(self.folder / checkpoint.LAST, self.identity)
        self.model.load_state_dict(content["model"])
        if self.ema is not None:
            self.ema.module.load_state_dict(content["model_ema"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.scheduler.load_state_dict(content["scheduler"])
        self.scaler.load_state_dict(content["scaler"])
        self.epoch, self.best, self.rows = content["epoch"], content["best"], content["rows"]
        states = content["random"]
        if len(states) == self.processes.count:
            checkpoint.restore_random_state(states[self.processes.rank])


def _set_norm_momentum(model: nn.Module, momentum: float) -> None:
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.momentum = momentum


def _require_logits(answer: Any) -> Tensor:
    if not isinstance(answer, Tensor):
        raise AftModelsError(
            f"expected logits from the model, got {type(answer).__name__}: build it without "
            "auxiliary classifiers, or wrap it in a module that returns its logits alone"
        )
    return answer
