"""Code on a pretended GPU: no operation mixes devices or waits for a value.

Fake tensors have a shape and a device and no values. An operation on tensors of two devices fails,
as on a real GPU. So does every step that needs a value (`item`, a branch, a copy to NumPy), for
which a program on a GPU would wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import aft_models
from aft_models.training.augment import Mixing
from aft_models.training.loop import make_optimizer
from aft_models.training.recipes import RECIPES
from aft_models.training.shift_consistency import shift_consistency_loss
from shiftbench.grid import Offset
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.metrics.base import Metric, read_cells
from shiftbench.metrics.consistency import DRAWS, Consistency
from shiftbench.running.predict import ImageBatch, Predictor, measure
from shiftbench.shifts import ATTACKS, SHIFTS
from shiftbench.tables import LABEL, Cells, Tables

CUDA = torch.device("cuda", 0)
MARGIN = 6
PIXEL_SHIFTS = [name for name in SHIFTS if not SHIFTS.get(name).digitizes]
SMALL = {"depth": 1, "class_depth": 1, "num_classes": 5, "img_size": 32}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTensorMode:
    # Modules are built on their device: fake parameters cannot be moved in place.
    monkeypatch.setattr(nn.Module, "to", lambda module, *args, **options: module)
    return FakeTensorMode()


@dataclass(frozen=True)
class OnGpu:
    """Views of images on the pretended GPU, for code that reads logits."""

    fake: FakeTensorMode
    shift: str

    def __call__(self, offset: Offset, rows: Tensor | None = None) -> Tensor:
        with self.fake:
            views = SHIFTS.get(self.shift).views(torch.empty(5, 3, 24, 24, device=CUDA), MARGIN)
            return views(offset, None if rows is None else torch.tensor(rows.tolist()))


def constant_logits(images: Tensor) -> Tensor:
    """Return constant logits on the CPU, one row per image."""
    assert images.device == CUDA
    return torch.arange(2.0 * len(images)).reshape(-1, 2).sin()


def test_pretended_gpu_mixed_devices_and_synchronization_raise(fake: FakeTensorMode) -> None:
    with fake:
        images = torch.empty(2, 3, device=CUDA)
        with pytest.raises(RuntimeError, match="device"):
            images + torch.ones(2, 3)
        with pytest.raises(DataDependentOutputException):
            images.sum().item()


@pytest.mark.parametrize("name", PIXEL_SHIFTS)
def test_shifts_stay_on_the_device(name: str, fake: FakeTensorMode) -> None:
    offsets = [Offset(0, 0), Offset(1, -2), Offset(0.5, -0.5)]
    for offset in offsets[: 2 if name == "crop" else 3]:
        for rows in (None, torch.tensor([2, 0])):
            view = OnGpu(fake, name)(offset, rows)
            assert view.device == CUDA
            assert len(view) == (5 if rows is None else 2)


def predicted(metric: Metric, shift: str, fake: FakeTensorMode) -> Cells:
    """Predict five images whose views are on the pretended GPU."""
    keys = list("abcde")
    tables = Tables(keys)
    tables.array(LABEL, 1)[:] = 0
    predictor = Predictor(constant_logits, CUDA, batch_size=4, _checked=True)
    views = {"crop": OnGpu(fake, "crop"), shift: OnGpu(fake, shift)}
    batch = ImageBatch(predictor, keys, torch.empty(0), MARGIN, _views=views)
    for _ in measure(batch, [(metric, range(5))], tables):
        pass
    return read_cells(tables, metric, keys)


@pytest.mark.parametrize("name", [a for a in ATTACKS if ATTACKS.get(a).shift in PIXEL_SHIFTS])
@pytest.mark.parametrize("full", [False, True])
def test_adversarial_reads_only_the_logits(name: str, full: bool, fake: FakeTensorMode) -> None:
    attack = ATTACKS.get(name)
    cells = predicted(Adversarial(name, 2, str(attack.step), full), attack.shift, fake)
    assert cells.known.sum() > 5


@pytest.mark.parametrize("name", list(DRAWS))
def test_consistency_reads_only_the_logits(name: str, fake: FakeTensorMode) -> None:
    metric = Consistency(name, 2, 1, 0)
    outcomes = metric.outcomes(predicted(metric, DRAWS.get(name).shift, fake))
    assert all(np.isfinite(values).all() for values in outcomes.values())


@pytest.mark.parametrize("variant", ["", "_aps", "_af", "_af_poly"])
def test_models_stay_on_the_device(variant: str, fake: FakeTensorMode) -> None:
    with fake, CUDA:
        model = aft_models.create_xcit(f"xcit_pico_6_p4{variant}", **SMALL).eval()
        logits = model(torch.empty(2, 3, 32, 32))
    assert (logits.device, logits.shape) == (CUDA, (2, 5))


@pytest.mark.parametrize(
    "remedies", [["circular+aps"], ["blurpool"], ["flc"], ["af"], ["vote:3"], ["canonical"]]
)
def test_remedies_stay_on_the_device(remedies: list[str], fake: FakeTensorMode) -> None:
    model = aft_models.repair(timm.create_model("resnet10t", num_classes=5), *remedies).eval()
    for part in model.modules():
        for own in (part._parameters, part._buffers):
            own.update({name: sent(fake, value) for name, value in own.items()})
    with fake:
        logits = model(torch.empty(2, 3, 64, 64, device=CUDA))
    assert logits.device == CUDA


def sent(fake: FakeTensorMode, value: Tensor | None) -> Tensor | None:
    """Return a parameter or buffer on the pretended GPU."""
    if value is None:
        return None
    there = fake.from_tensor(value.detach())
    with fake:
        there = there.to(CUDA)
        return nn.Parameter(there) if isinstance(value, nn.Parameter) else there


@pytest.mark.parametrize("variant", ["", "_aps", "_af"])
def test_training_step_stays_on_the_device(variant: str) -> None:
    # Autograd's threads need the driver of a GPU; the meta device has no values either.
    recipe = replace(RECIPES["cpu-imagenette"], mixup=0.2, cutmix=1.0)
    with torch.device("meta"):
        model = aft_models.create_xcit(f"xcit_pico_6_p4{variant}", **SMALL).train()
        images, labels = torch.empty(4, 3, 32, 32), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="device"):
        images + torch.ones(4, 3, 32, 32)  # mixing devices raises on the meta device too
    optimizer = make_optimizer(model, recipe)
    images, soft = Mixing(recipe, classes=5, seed=0)(images, labels, 0)
    nn.functional.cross_entropy(model(images), soft).backward()
    nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_grad)
    optimizer.step()
    assert all(p.grad is not None and p.grad.is_meta for p in model.parameters())


def test_shift_consistency_loss_on_cuda_stays_on_the_device(fake: FakeTensorMode) -> None:
    with fake, torch.device(CUDA):
        model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
        views, labels = torch.empty(2, 4, 3, 4, 4), torch.zeros(4, dtype=torch.long)
        loss, term = shift_consistency_loss(RECIPES["shift-consistency"], model, views, labels)
    assert (loss.device, term.device) == (CUDA, CUDA)
