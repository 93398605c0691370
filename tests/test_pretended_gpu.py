"""On a GPU that is only pretended: no operation mixes devices or waits for a value.

Fake tensors carry a shape and a device and no values. An operation on tensors of two devices
fails, as it would on the real one, and so does every step that needs a value (`item`, a branch,
a copy to NumPy): on a GPU, that is where the program would wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import timm
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import aft_models
from aft_models.training.augment import Mixing
from aft_models.training.loop import make_optimizer
from aft_models.training.recipes import RECIPES
from aft_models.training.steady import steady_loss
from shiftbench.grid import ORIGIN, Grid, Offset
from shiftbench.metrics.base import ImageBatch
from shiftbench.metrics.consistency import CONSISTENCIES, Consistency
from shiftbench.metrics.predictions import predict_at
from shiftbench.metrics.search import search
from shiftbench.models import Model
from shiftbench.run.engine import Engine, TorchForward
from shiftbench.shifts import ATTACKS, SHIFTS

CUDA = torch.device("cuda", 0)
MARGIN = 6
PIXEL_SHIFTS = [name for name in SHIFTS if not SHIFTS.get(name).rendered]
SMALL = {"depth": 1, "class_depth": 1, "num_classes": 5, "img_size": 32}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTensorMode:
    # Modules are built where they run: fake parameters cannot be moved in place.
    monkeypatch.setattr(nn.Module, "to", lambda module, *args, **options: module)
    return FakeTensorMode()


@dataclass(frozen=True)
class OnGpu:
    """Views of images on the pretended GPU, for code that reads the model's answers."""

    fake: FakeTensorMode
    shift: str

    def __call__(self, offset: Offset, rows: Tensor | None = None) -> Tensor:
        with self.fake:
            views = SHIFTS.get(self.shift).views(torch.empty(5, 3, 24, 24, device=CUDA), MARGIN)
            return views(offset, None if rows is None else torch.tensor(rows.tolist()))


def answering(images: Tensor) -> Tensor:
    """A network on the GPU whose logits have come back: real numbers, one row per image."""
    assert images.device == CUDA
    return torch.arange(2.0 * len(images)).reshape(-1, 2).sin()


def test_mixed_devices_and_waiting_are_noticed(fake: FakeTensorMode) -> None:
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


@pytest.mark.parametrize("name", [a for a in ATTACKS if ATTACKS.get(a).shift in PIXEL_SHIFTS])
@pytest.mark.parametrize("mode", ["exhaustive", "full_grid"])
def test_a_search_reads_only_the_answers(name: str, mode: str, fake: FakeTensorMode) -> None:
    attack = ATTACKS.get(name)
    grid = Grid(2, step=attack.step)
    trace = search(answering, OnGpu(fake, attack.shift), [0] * 5, grid, batch_size=4, mode=mode)
    assert trace.forward_passes > 5


@pytest.mark.parametrize("name", list(CONSISTENCIES))
def test_consistency_reads_only_the_answers(name: str, fake: FakeTensorMode) -> None:
    shift = CONSISTENCIES.get(name).shift
    views = OnGpu(fake, shift)
    clean = predict_at(answering, views, [ORIGIN] * 5, batch_size=4)
    images, labels = torch.empty(0), np.zeros(5, dtype=np.int64)
    batch = ImageBatch(answering, 4, images, MARGIN, "abcde", labels, clean, _views={shift: views})
    rows = Consistency(name, 2, 1, 0).measure(batch, pd.DataFrame(index=range(5)))
    assert np.isfinite(rows[f"change_{name}"]).all()


@pytest.mark.parametrize("variant", ["", "_aps", "_af", "_af_poly"])
def test_models_stay_on_the_device(variant: str, fake: FakeTensorMode) -> None:
    with fake, CUDA:
        model = aft_models.create_xcit(f"xcit_pico_6_p4{variant}", **SMALL).eval()
        logits = TorchForward(model, "fp32")(torch.empty(2, 3, 32, 32))
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
        logits = TorchForward(model, "fp32")(torch.empty(2, 3, 64, 64, device=CUDA))
    assert logits.device == CUDA


def sent(fake: FakeTensorMode, value: Tensor | None) -> Tensor | None:
    """A parameter or buffer as it would lie on the GPU."""
    if value is None:
        return None
    there = fake.from_tensor(value.detach())
    with fake:
        there = there.to(CUDA)
        return nn.Parameter(there) if isinstance(value, nn.Parameter) else there


@pytest.mark.parametrize("variant", ["", "_aps", "_af"])
def test_a_training_step_stays_on_its_device(variant: str) -> None:
    # Autograd's threads need the driver of a GPU; the meta device has no values either.
    recipe = replace(RECIPES["cpu-imagenette"], mixup=0.2, cutmix=1.0)
    with torch.device("meta"):
        model = aft_models.create_xcit(f"xcit_pico_6_p4{variant}", **SMALL).train()
        images, labels = torch.empty(4, 3, 32, 32), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="device"):
        images + torch.ones(4, 3, 32, 32)  # mixing is noticed there too
    optimizer = make_optimizer(model, recipe)
    images, soft = Mixing(recipe, classes=5, seed=0)(images, labels, 0)
    nn.functional.cross_entropy(model(images), soft).backward()
    nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_grad)
    optimizer.step()
    assert all(p.grad is not None and p.grad.is_meta for p in model.parameters())


def test_steady_loss_on_cuda_stays_on_the_device(fake: FakeTensorMode) -> None:
    with fake, torch.device(CUDA):
        model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
        views, labels = torch.empty(2, 4, 3, 4, 4), torch.zeros(4, dtype=torch.long)
        loss, term = steady_loss(RECIPES["steady"], model, views, labels)
    assert (loss.device, term.device) == (CUDA, CUDA)


def test_the_engine_sends_bytes_and_stays_on_the_device(fake: FakeTensorMode) -> None:
    recipe = {"input_size": 32, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    classifier = Model(timm.create_model("resnet10t", num_classes=5), recipe, name="small")
    with fake, CUDA:
        classifier.network = timm.create_model("resnet10t", num_classes=5)
    with fake:
        engine = Engine(classifier, device=CUDA)
        engine._reference = None  # no values to compare
        images = engine.prepare(torch.zeros(7, 3, 32, 32, dtype=torch.uint8))
        assert images.device == CUDA
        assert engine(images).device == CUDA
