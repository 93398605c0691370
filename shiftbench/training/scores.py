"""Scores after an epoch of training: accuracy, and agreement under shifts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from aft_models.preprocessing import normalize
from aft_models.training.augment import Windows
from aft_models.training.data import Batch
from aft_models.training.device import DeviceConfig, Processes
from shiftbench.data import ImageSet, balanced, subset
from shiftbench.geometry import Geometry
from shiftbench.metrics.base import plan_metrics, read_cells, score
from shiftbench.running.job import Settings
from shiftbench.running.predict import predict_tables
from shiftbench.scores import find_score
from shiftbench.training.data import EVALUATION_BATCH, BatchBuilder, Unlabeled, load_pixels

SHIFT_KINDS = ("integer", "half")  # cyclic consistencies: they need no margin


class EpochEvaluator:
    """Accuracy and agreement under random shifts, each after every k-th epoch and the last."""

    def __init__(
        self,
        data: ImageSet,
        inputs: BatchBuilder,
        device_config: DeviceConfig,
        *,
        every: int,
        shift_every: int,
        shift_images: int,
    ) -> None:
        """Read the images once if the recipe keeps them in memory.

        Args:
            data: Images to score on.
            inputs: Builder of batches.
            device_config: Device of the model.
            every: Epochs between two accuracies; 0: the last only. A recipe that trains with
                shifted windows has its agreement measured as often.
            shift_every: Epochs between two consistencies; 0 likewise.
            shift_images: Number of images for shift scores, balanced over the classes.
        """
        self._device_config = device_config
        self._recipe = inputs.recipe
        self._processes = inputs.processes
        self._every, self._shift_every = every, shift_every
        chosen = subset(data, balanced(data.keys, data.labels, shift_images, seed=0))
        self._keys = chosen.keys
        self._few = inputs.evaluation(chosen, Processes())
        self.counts: dict[str, int] = {}  # score -> number of its images
        self._batches: Iterable[Batch] = ()
        if not isinstance(data, Unlabeled):
            self._batches = inputs.evaluation(data, inputs.processes)
            self.counts["accuracy"] = len(data)
        self._canvases: Tensor | None = None
        if self._recipe.shift:
            self._canvases = load_pixels(chosen, self._recipe).images
            self.counts["agreement_crop"] = len(chosen)
        self.counts |= {f"consistency_{name}": len(chosen) for name in SHIFT_KINDS}

    def __call__(self, model: nn.Module, epoch: int) -> Mapping[str, float]:
        """Return the columns of the log for a finished epoch."""
        scores = {}
        if self._due(epoch, self._every):
            if "accuracy" in self.counts:
                scores["accuracy"] = self._accuracy(model)
            if self._canvases is not None:
                scores["agreement_crop"] = self._agreement(model, self._canvases)
        if self._due(epoch, self._shift_every):
            scores |= self._consistencies(model)
        return scores

    def _due(self, epoch: int, every: int) -> bool:
        return epoch == self._recipe.epochs or (every > 0 and epoch % every == 0)

    def _accuracy(self, model: nn.Module) -> float:
        """Return the fraction of correctly classified images over all processes."""
        device = self._device_config.device
        counts = torch.zeros(2, dtype=torch.float32, device=device)  # correct, total
        for batch in self._batches:
            images, labels = self._device_config.move(*batch)
            with self._device_config.autocast():
                right = model(images).argmax(1) == labels
            counts += torch.stack([right.sum(), torch.tensor(len(labels), device=device)])
        right_all, seen_all = self._processes.total(counts).tolist()
        return float(right_all / seen_all)

    def _agreement(self, model: nn.Module, canvases: Tensor) -> float:
        """Return the fraction of the eight crops `shift` px off center that agree with it."""
        recipe, side = self._recipe, canvases.shape[-1]
        agree = 0
        for part in torch.split(canvases, EVALUATION_BATCH):
            center = Windows.centered(len(part), side, recipe.image_size)
            center_classes, *others = (
                self._predict(model, normalize(windows.cut(part), recipe.mean, recipe.std)).argmax(
                    1
                )
                for windows in (center, *center.around_center(3, recipe.shift, side))
            )
            agree += sum(int((other == center_classes).sum()) for other in others)
        return (agree - len(canvases)) / (8 * len(canvases))  # the center is one of the nine

    def _predict(self, model: nn.Module, images: Tensor) -> Tensor:
        with self._device_config.autocast():
            logits: Tensor = model(images.to(self._device_config.device))
        return logits

    def _consistencies(self, model: nn.Module) -> dict[str, float]:
        """Measure the same few images in every process, with equal results."""
        images = torch.cat([images for images, _ in self._few])
        side = images.shape[-1]
        texts = [f"consistency:{kind}" for kind in SHIFT_KINDS]
        metrics = plan_metrics(texts, Settings(), Geometry(side, side, 0, "none"))
        tables = predict_tables(
            lambda images: self._predict(model, images),
            images,
            [0] * len(images),  # consistency does not use labels
            metrics,
            keys=self._keys,
            batch_size=EVALUATION_BATCH,
        )
        cells = {metric.name: read_cells(tables, metric, self._keys) for metric in metrics}
        return {m.name: float(find_score(score(m, cells[m.name]), m.name)) for m in metrics}
