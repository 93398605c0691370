"""`align` as a remedy: the same crop under shifts, and the wider, finer view that it needs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from repair_cases import Residual
from shifted_models import scene
from torch import Tensor, nn

from aft_models import AftModelsError, repair
from aft_models.onnx import export_onnx
from aft_models.preprocessing import Preprocessing
from aft_models.remedies.align import Align
from aft_models.remedies.crops import FILTERS, Downscale
from aft_models.remedies.repair import reports
from shiftbench.data import load_dataset
from shiftbench.errors import UsageError
from shiftbench.geometry import geometry_for
from shiftbench.grid import Offset
from shiftbench.models import Model, load_model

HALF = Preprocessing(44, (0.5,) * 3, (0.5,) * 3, "bilinear")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def crop(canvas: Tensor, dy: int, dx: int, side: int) -> Tensor:
    """Return the view whose camera has moved by (dy, dx) pixels from the middle of the canvas."""
    start = (canvas.shape[-1] - side) // 2
    return canvas[:, :, start + dy : start + dy + side, start + dx : start + dx + side]


def tiny_vit() -> nn.Module:
    return timm.create_model("test_vit", img_size=44, patch_size=4, num_classes=5)


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize(
    ("build", "others"),
    [
        (tiny_vit, []),
        (Residual, []),
        (Residual, ["vote"]),
        (Residual, ["circular+aps"]),
        (Residual, ["canonical"]),
        (Residual, ["af"]),
        (Residual, ["blurpool"]),
    ],
)
def test_align_equal_crops_have_equal_logits(
    build: Callable[[], nn.Module], others: list[str], scale: int
) -> None:
    remedies = "+".join([*others, f"align:6:{scale}"])
    model = repair(build(), remedies, preprocessing=HALF, input_size=44).eval()
    align = next(r for r in model.remedies if isinstance(r, Align))
    side, moves = scale * 56, [(0, 0), (scale, 0), (0, -2 * scale), (3 * scale, -scale)]
    canvas = 2 * scene(side + 8 * scale, side + 8 * scale, count=48).float() - 1
    places = torch.stack([align.place(crop(canvas, *move, side)) for move in moves])
    seen = places + torch.tensor(moves)[:, None] / scale
    same = (seen - seen[0]).abs().amax((0, 2)) < 1e-6
    same &= places.abs().amax((0, 2)) < 5.5  # the filter reads no pixels beyond the view
    assert 3 <= int(same.sum()) < 48  # some crops stay within the view for all shifts, some do not
    still = model(crop(canvas, 0, 0, side)[same])
    for move in moves:
        assert torch.equal(model(crop(canvas, *move, side)[same]), still)


@pytest.mark.parametrize("scale", [1, 2])
def test_align_gradients_reach_the_crop_alone(scale: int) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(2))
    model = repair(net, f"align:4:{scale}", preprocessing=HALF, input_size=16)
    images = torch.randn(2, 3, 24 * scale, 24 * scale, requires_grad=True)
    model(images).sum().backward()
    rows = images.grad.ne(0).any(1).any(2).sum(1)
    taps = 0 if scale == 1 else 2
    assert ((rows >= 16 * scale) & (rows <= 16 * scale + taps)).all()


def test_align_network_of_fixed_size_takes_wider_finer_view() -> None:
    vit = timm.create_model("test_vit", img_size=32, patch_size=4, num_classes=10)
    model = repair(vit, "align:4")
    (report,) = reports(model)
    assert (report.margin, report.scale) == (4, 2)
    assert model.eval()(torch.zeros(1, 3, 80, 80)).shape == (1, 10)


@pytest.mark.parametrize("side", [32, 79, 96])
def test_align_image_of_other_size_raises_with_both_sizes(side: int) -> None:
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    bound = repair(conv, "align:4", input_size=32)
    again = repair(bound, "circular", input_size=None)
    words = rf"expected images of 80 x 80 px \(network 32 px, margin 4 px, scale 2\), got {side}"
    for model in (bound, again):
        assert model(torch.zeros(1, 3, 80, 80)).shape == (1, 4)
        with pytest.raises(AftModelsError, match=words):
            model(torch.zeros(1, 3, side, side))


def test_align_uint8_input_raises() -> None:
    model = repair(Residual(), "align:4", input_size=32)
    with pytest.raises(AftModelsError, match="expected floating-point images"):
        model(torch.zeros(1, 3, 80, 80, dtype=torch.uint8))


@pytest.mark.parametrize("remedies", ["align:6", "vote:2+align:6:1", "canonical+align:6"])
def test_align_constants_follow_the_network_and_its_copies(remedies: str) -> None:
    model = repair(Residual(), remedies, input_size=32).eval()
    twin = copy.deepcopy(model)
    align = next(r for r in twin.remedies if isinstance(r, Align))
    assert any(module is align for module in twin.modules())
    assert model.state_dict().keys() == Residual().state_dict().keys()
    side = 32 + 12 if ":1" in remedies else 2 * (32 + 12)
    images = torch.rand(2, 3, side, side)
    assert torch.equal(model(images), twin(images))
    assert twin.to(torch.float64)(images.double()).dtype == torch.float64
    assert all(b.dtype != torch.float64 for b in align.buffers())


def test_align_exported_model_cuts_the_same_crops() -> None:
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra `onnx`")
    model = repair(nn.Sequential(nn.Flatten()), "align:6", preprocessing=HALF, input_size=24)
    session = runtime.InferenceSession(export_onnx(model.eval(), (3, 72, 72)))
    images = 2 * scene(72, 72, count=32).float() - 1
    (crops,) = session.run(None, {"images": images.numpy()})
    assert torch.allclose(torch.from_numpy(crops), model(images), atol=1e-5)


def test_model_shown_ends_where_pixels_are_computed() -> None:
    images = 2 * scene(40, 40, count=4).float() - 1
    facts = Preprocessing(32, (0.5,) * 3, (0.5,) * 3)
    cut = Align(32, margin=4, scale=1, mean=facts.mean, std=facts.std)(images)
    wide = Preprocessing(40, (0.5,) * 3, (0.5,) * 3)
    for remedies in ("align:4:1", "vote+align:4:1", "circular+aps+align:4:1"):
        network = repair(Residual(), remedies, preprocessing=facts, input_size=32)
        model = Model(network, wide, name="net")
        assert model.shares_inputs
        assert torch.equal(model.shown(images), cut)
    assert not Model(repair(Residual(), "vote"), wide, name="net").shares_inputs
    finer = repair(Residual(), "align:4", input_size=16)
    assert not Model(finer, Preprocessing(48), name="net").shares_inputs


@pytest.mark.parametrize("numbers", ["1", "65", "-1", "8:0", "8:5", "8:2:1"])
def test_align_number_out_of_range_raises(numbers: str) -> None:
    with pytest.raises(AftModelsError, match="align takes"):
        repair(Residual(), f"align:{numbers}")


def test_align_margin_larger_than_half_the_network_raises_with_largest() -> None:
    with pytest.raises(AftModelsError, match="Use a margin of at most 16 px"):
        repair(Residual(), "align:20", input_size=32)


def test_align_before_layer_remedies_equals_one_repair() -> None:
    stepwise = repair(repair(Residual(), "align:4", input_size=32), "circular+aps").eval()
    at_once = repair(Residual(), "circular+aps+align:4", input_size=32).eval()
    at_once.load_state_dict(stepwise.state_dict())
    images = torch.randn(2, 3, 80, 80)
    assert torch.equal(stepwise(images), at_once(images))


def test_align_undo_moves_boxes_and_maps_and_keeps_logits() -> None:
    align = Align(32, margin=6, scale=1)
    images = scene(44, 44, count=3).float()
    _, undo = align.show(images)
    logits = torch.rand(3, 5)
    assert undo(logits) is logits
    detections = [{"boxes": torch.tensor([[1.0, 2.0, 3.0, 4.0]]), "scores": torch.ones(1)}] * 3
    for moved, (dy, dx) in zip(undo(detections), undo.offset.tolist(), strict=True):
        assert moved["boxes"].tolist() == [[1 + dx, 2 + dy, 3 + dx, 4 + dy]]
        assert moved["scores"].tolist() == [1.0]
    assert torch.equal(
        undo(torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(1))),
        undo.maps(torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(1))),
    )


# Scale


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("scale", [2, 3])
def test_downscale_equals_pil_resize_within_one_level(interpolation: str, scale: int) -> None:
    facts = Preprocessing(40, interpolation=interpolation)
    resize = Downscale(facts, scale)
    pixels = torch.randint(0, 256, (4, 3, 40 * scale, 40 * scale), dtype=torch.uint8)
    shown, _ = resize.show(resize.normalize(pixels))
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (facts.mean, facts.std))
    levels = ((shown * std + mean) * 255).round()
    for image, level in zip(pixels, levels, strict=True):
        whole = Image.fromarray(image.permute(1, 2, 0).numpy())
        expected = np.asarray(whole.resize((40, 40), Image.Resampling[interpolation.upper()]))
        assert np.abs(level.permute(1, 2, 0).numpy() - expected).max() <= 1


def test_downscale_of_other_filter_raises() -> None:
    with pytest.raises(AftModelsError, match="bilinear or bicubic interpolation, got 'lanczos'"):
        Downscale(Preprocessing(32, interpolation="lanczos"), 2)


# The view


@pytest.mark.parametrize("margin", [0, 3])
@pytest.mark.parametrize("wider", [1, 4, 7])
@pytest.mark.parametrize("length", [110, 111, 141])
def test_wider_view_keeps_scale_and_center(length: int, wider: int, margin: int) -> None:
    plain = geometry_for(Preprocessing(96), margin=margin)
    wide = geometry_for(Preprocessing(96, margin=wider), margin=0)
    assert wide.resize == plain.resize == 110
    assert wide.view == 96 + 2 * wider
    (few, _), (many, _) = (geometry._span(length) for geometry in (plain, wide))
    assert few.start + margin - many.start == wider
    assert few.stop - margin + wider == many.stop


def test_wider_view_beyond_image_raises() -> None:
    recipe = Preprocessing(224, margin=17)
    with pytest.raises(
        UsageError, match=r"the wider view needs a margin of 17 px, 256 px leave 16"
    ):
        geometry_for(recipe)
    with pytest.raises(UsageError, match="crop and the wider view need a margin of 20 px"):
        geometry_for(recipe, margin=3, shift="crop")
    assert geometry_for(recipe, pad="reflect").side == 258
    assert geometry_for(Preprocessing(32, margin=4), finished=True, rendered=True).resize == 32


def test_load_model_align_widens_view() -> None:
    name = "xcit_pico_6_p8.scenes"
    plain, model = load_model(name), load_model(f"{name}+align:6")
    assert model.preprocessing.input_size == 2 * (plain.preprocessing.input_size + 12)
    assert model.preprocessing.size == plain.preprocessing.input_size
    assert model.num_classes == plain.num_classes
    with pytest.raises(AftModelsError, match="expected images of 152 x 152 px"):
        model(torch.zeros(1, 3, 64, 64))


def test_rendered_wider_view_keeps_resolution() -> None:
    scenes = load_dataset("scenes", limit=2)
    plain, wide = scenes.views([0, 1], 32), scenes.views([0, 1], 32, wider=5)
    for offset in (Offset(0.0, 0.0), Offset(0.5, -1.0), Offset(3.0, 2.5)):
        assert torch.equal(wide(offset)[:, :, 5:-5, 5:-5], plain(offset))
