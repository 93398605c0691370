"""Trials of remedies from Python."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from repair_cases import Residual
from stored_images import save
from torch import nn

import shiftbench
from aft_models.remedies import REMEDIES
from shiftbench.auditing.layers import audit
from shiftbench.auditing.trials import Images, _all_remedies, repair, try_remedies
from shiftbench.errors import UsageError
from shiftbench.models import Model

PIXELS = torch.rand(3, 3, 16, 16, dtype=torch.float64)
IMAGES = Images(PIXELS, torch.zeros(3), margin=0)


class Constant(nn.Sequential):
    """Network that adds the same large number to every logit of an image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[0](x) + 1000 * (1 + x.mean((1, 2, 3))[:, None])


def nets() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = Residual().double().eval()
    return plain, Constant(plain).eval()


def test_try_remedies_change_ignores_constant_added_to_all_classes() -> None:
    plain, lifted = (
        try_remedies(net, IMAGES, ["aps", "vote", "canonical"], labeled=False) for net in nets()
    )
    for a, b in zip(plain, lifted, strict=True):
        assert (a.whole, a.half) == pytest.approx((b.whole, b.half), rel=1e-6, abs=1e-9)


def test_audit_logits_ignore_constant_added_to_all_classes() -> None:
    plain, lifted = (audit(net, PIXELS).whole for net in nets())
    assert plain.accumulated == pytest.approx(lifted.accumulated, rel=1e-6)


def test_try_remedies_default_contains_every_remedy() -> None:
    recipe = {"input_size": 32, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    model = Model(Residual(), recipe, name="mine")
    trials = {trial.remedies: trial for trial in shiftbench.repair(model, images=2)}
    assert {"", *REMEDIES, "circular+aps"} <= set(trials)
    assert trials[""].images == 2
    assert trials["aps"].right == ()
    with pytest.raises(UsageError, match="has remedies already"):
        shiftbench.repair("timm:resnet10t,pretrained=false+aps")


def test_try_remedies_correct_images_are_correct_at_every_crop() -> None:
    net, _ = nets()
    canvas = torch.rand(20, 3, 24, 24, dtype=torch.float64)
    labels = net(canvas[:, :, 4:20, 4:20]).argmax(1)
    labels[:3] = (labels[:3] + 1) % 5
    images = Images(canvas, labels, margin=4)
    plain, wide, wider = try_remedies(net, images, ["align:3:1", "align:5:1"])
    kept = [
        all(
            net(canvas[i : i + 1, :, 4 + dy : 20 + dy, 4 + dx : 20 + dx]).argmax(1) == labels[i]
            for dy in range(-r, r + 1)
            for dx in range(-r, r + 1)
        )
        for r in (0, 1, 2)
        for i in range(20)
    ]
    assert plain.right == tuple(sum(kept[20 * r : 20 * r + 20]) for r in (0, 1, 2))
    assert plain.right[0] == 17
    assert len(wide.right) == 2, "one pixel is left for crops"
    assert wider.refused == "needs a margin of 5 px, the images leave 4: use align:4"
    assert [score.n for score in plain.scores] == [20] * 3
    wrong = (labels + 1) % 5  # no image remains for crops
    wrong[:3] = labels[:3]
    trials = try_remedies(net, Images(canvas, wrong, margin=4), ["align:3:1"])
    assert [trial.right for trial in trials] == [(0, 0, 0), (0, 0)]


@pytest.mark.parametrize(("margin", "align"), [(32, "align"), (7, "align:5"), (2, "align:2")])
def test_repair_default_remedies_fit_the_margin(margin: int, align: str) -> None:
    names = _all_remedies(margin)
    assert align in names
    assert {"vote", "canonical", "circular", "circular+aps"} <= {*names}
    assert len(names) == len({*names})


def test_repair_small_network_tries_a_smaller_margin(tmp_path: Path) -> None:
    for index, name in enumerate(("cat", "dog")):
        save(tmp_path / name / "x.png", index, (64, 56))
    network = nn.Sequential(nn.Conv2d(3, 2, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = Model(network, {"input_size": 48, "mean": 0.5, "std": 0.5}, name="small")
    trials = repair(model, data=f"folder:{tmp_path}", images=2)
    (wide,) = (trial for trial in trials if trial.remedies.startswith("align"))
    assert (wide.remedies, wide.refused) == ("align:2", "")  # 55 px leave 3 on each side
    (large,) = repair(model, remedies=["align:8"], data=f"folder:{tmp_path}", images=2)[1:]
    assert large.refused == "needs a margin of 8 px, the images leave 3: use align:3"
