"""The training loop: updates, averaging, evaluation, checkpoints, resume."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from timm.optim import create_optimizer_v2, param_groups_weight_decay
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from aft_models.errors import AftModelsError
from aft_models.training import checkpoint
from aft_models.training.augment import Mixing, mixed_seed
from aft_models.training.data import Batch, Batches
from aft_models.training.device import DeviceConfig, Processes
from aft_models.training.progress import Meter, Progress, Row, draw_curves, write_log
from aft_models.training.recipe import Recipe
from aft_models.training.shift_consistency import shift_consistency_loss


class DivergedError(AftModelsError):
    """The loss is no longer a number; the last good checkpoint is kept."""


@dataclass(frozen=True)
class Outcome:
    """Result of a finished run: the weights to use and the history."""

    model: nn.Module  # averaged weights if the recipe averages
    rows: list[Row]
    best: float | None  # highest accuracy of any epoch, with its checkpoint in best.pt


Evaluate = Callable[[nn.Module, int], Mapping[str, float]]
"""Called by every process after each epoch with the model in eval mode and the number of finished
epochs; returns the same scores (fractions) everywhere. `accuracy` determines the best epoch."""

Log = Callable[[int, Mapping[str, float]], None]
"""Called by the main process after each epoch with the number of finished epochs and the rest of
its row, for example to call TensorBoard's `add_scalar` for each number."""


def train(
    model: nn.Module,
    batches: Batches,
    *,
    identity: checkpoint.Identity,
    folder: Path,
    device_config: DeviceConfig | None = None,
    processes: Processes | None = None,
    evaluate: Evaluate | None = None,
    report: Callable[[Progress], None] | None = None,
    log: Log | None = None,
    resume: bool = True,
) -> Outcome:
    """Train `model` to the end of its recipe, from the last checkpoint in `folder` if any.

    Raises:
        AftModelsError: A checkpoint of another run, or a loss that is not a number.
    """
    run = _Run(
        model, batches, identity, folder, device_config or DeviceConfig(), processes or Processes()
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
            run.processes.share_buffers(run.scored)  # the scored weights are those that are kept
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
    """State of one run."""

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        identity: checkpoint.Identity,
        folder: Path,
        device_config: DeviceConfig,
        processes: Processes,
    ) -> None:
        recipe = identity.recipe
        self.recipe, self.identity, self.folder = recipe, identity, folder
        self.device_config, self.processes, self.batches = device_config, processes, batches
        self.model = device_config.place(model, processes)
        self.norms = [
            module
            for module in self.model.modules()
            if isinstance(module, _BatchNorm) and module.track_running_stats
        ]
        if not recipe.learns:
            self._reset_statistics()
        elif recipe.norm_momentum:
            for norm in self.norms:
                norm.momentum = recipe.norm_momentum
        self.optimizer = make_optimizer(self.model, recipe)
        self.scheduler = make_scheduler(self.optimizer, recipe, batches.updates)
        self.scaler = torch.amp.GradScaler(
            device_config.device.type, enabled=device_config.precision == "fp16"
        )
        self.ema = (
            ModelEmaV3(self.model, decay=recipe.ema_decay, use_warmup=True)
            if recipe.ema_decay
            else None
        )
        self.forward = device_config.wrap(self.model, processes)
        self.mixing = (
            Mixing(recipe, classes=identity.classes, seed=identity.seed)
            if recipe.mixup or recipe.cutmix
            else None
        )
        self.cross_entropy = nn.CrossEntropyLoss(
            label_smoothing=0.0 if self.mixing else recipe.label_smoothing
        )
        self.epoch = 0
        self.rows: list[Row] = []
        self.best: float | None = None
        torch.manual_seed(mixed_seed(identity.seed, processes.rank))

    @property
    def scored(self) -> nn.Module:
        """Weights that are evaluated and exported."""
        return self.model if self.ema is None else self.ema.module

    def train_epoch(self, report: Callable[[Progress], None] | None) -> Row:
        """Train for one epoch.

        Returns:
            The row of the log.
        """
        self._set_training_mode()
        stream = self.batches.epoch(self.epoch)
        updates = self.batches.updates
        meter = Meter(
            self.epoch, self.recipe.epochs, updates, self.recipe.batch_size, self.processes
        )
        for update in range(updates):
            step = self._update if self.recipe.learns else self._measure
            progress = meter.add(step(stream, self.epoch * updates + update))
            if progress is not None:
                self._require_finite(progress.loss)
                if report is not None:
                    report(progress)
        if not self.recipe.learns:
            for norm in self.norms:  # on CPUs each process has its own statistics
                for statistic in (norm.running_mean, norm.running_var):
                    assert statistic is not None
                    self.processes.total(statistic).div_(self.processes.count)
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

    def _reset_statistics(self) -> None:
        if not self.norms:
            raise AftModelsError(
                f"recipe {self.recipe.name} measures the statistics of batch norms, and "
                f"{self.identity.model} has none: use a recipe that learns, such as finetune"
            )
        for norm in self.norms:
            norm.reset_running_stats()
            norm.momentum = None  # a mean over all batches, not a moving average

    def _set_training_mode(self) -> None:
        self.model.train(self.recipe.learns)
        for norm in self.norms:
            norm.train()

    @torch.no_grad()
    def _measure(self, stream: Iterator[Batch], index: int) -> Tensor:
        """Measure the statistics of batch norms on the images of one update.

        Returns:
            The mean loss.
        """
        total = torch.zeros(1, device=self.device_config.device)
        for _ in range(self.recipe.accumulate):
            images, labels = self.device_config.move(*next(stream))
            with self.device_config.autocast():
                # Not through DistributedDataParallel, which would overwrite the statistics.
                logits = _require_logits(self.model(images))
                if not self.recipe.unlabeled:
                    total += self.cross_entropy(logits, labels) / self.recipe.accumulate
        return total

    def _update(self, stream: Iterator[Batch], index: int) -> Tensor:
        """Run one step of the optimizer.

        Returns:
            The mean loss and, if the recipe has one, the consistency term.
        """
        recipe = self.recipe
        self.scheduler.step_update(index)
        total = torch.zeros(2 if recipe.shift else 1, device=self.device_config.device)
        for step in range(recipe.accumulate):
            images, labels = self.device_config.move(*next(stream))
            if self.mixing is not None:
                images, labels = self.mixing(images, labels, index, step, self.processes.rank)
            last = step == recipe.accumulate - 1
            with nullcontext() if last else self._unsynchronized():
                with self.device_config.autocast():
                    losses = self._losses(images, labels) / recipe.accumulate
                loss: Any = self.scaler.scale(losses[0])
                loss.backward()
            total += losses.detach()
        if recipe.clip_grad:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip_grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update(self.model, step=index)
        return total

    def _losses(self, images: Tensor, labels: Tensor) -> Tensor:
        def forward(batch: Tensor) -> Tensor:
            return _require_logits(self.forward(batch))

        if self.recipe.shift:
            return torch.stack(shift_consistency_loss(self.recipe, forward, images, labels))
        loss: Tensor = self.cross_entropy(forward(images), labels)
        return loss[None]

    def _unsynchronized(self) -> Any:
        """Return a context without gradient exchange, except for the last accumulated step."""
        if isinstance(self.forward, DistributedDataParallel):
            return self.forward.no_sync()
        return nullcontext()

    def finish_epoch(self, row: Row) -> None:
        """Write the log and the checkpoints of a finished epoch."""
        self.rows.append(row)
        accuracy = row.get("accuracy")
        better = accuracy is not None and (self.best is None or accuracy > self.best)
        if better:
            self.best = accuracy
        states = self.processes.gather(checkpoint.random_state())
        if self.processes.is_main:
            content = self._content(states)
            checkpoint.save(self.folder / checkpoint.LAST, content)
            if better:
                checkpoint.save(self.folder / checkpoint.BEST, content)
            write_log(self.folder / "log.csv", self.rows)
        self.processes.wait()

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
        """Resume from the last checkpoint."""
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


def _require_logits(answer: Any) -> Tensor:
    if not isinstance(answer, Tensor):
        raise AftModelsError(
            f"expected logits from the model, got {type(answer).__name__}: build it without "
            "auxiliary classifiers, or wrap it in a module that returns its logits alone"
        )
    return answer


def make_optimizer(model: nn.Module, recipe: Recipe) -> Optimizer:
    """Build the optimizer, with weight decay for matrices and kernels.

    The recipe determines the decay of the parameters that the model exempts. XCiT lists its
    attention temperatures as exempt, but in the attention modules, which the authors' training
    script does not read: their models were trained with the decay.
    """

    def parameter_groups(module: nn.Module) -> list[dict[str, Any]]:
        listed = getattr(module, "no_weight_decay", None)
        exempt = set() if listed is None else set(listed())
        if recipe.decay_temperatures:
            exempt = {name for name in exempt if not name.endswith("temperature")}
        groups: list[dict[str, Any]] = param_groups_weight_decay(
            module, recipe.weight_decay, no_weight_decay_list=exempt
        )
        return groups

    optimizer: Optimizer = create_optimizer_v2(
        model,
        opt=recipe.optimizer,
        lr=recipe.peak_lr,
        betas=recipe.betas,
        param_group_fn=parameter_groups,
    )
    return optimizer


def make_scheduler(optimizer: Optimizer, recipe: Recipe, updates: int) -> Scheduler:
    """Build a warm-up and a cosine schedule, one step per update (`updates` per epoch)."""
    scheduler, _ = create_scheduler_v2(
        optimizer,
        "cosine",
        num_epochs=recipe.epochs,
        warmup_epochs=recipe.warmup_epochs,
        warmup_lr=recipe.warmup_lr,
        min_lr=recipe.min_lr,
        step_on_epochs=False,
        updates_per_epoch=updates,
    )
    return scheduler
