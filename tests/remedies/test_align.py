"""Aligned crops equal PIL's resize, follow the content and do not depend on the batch."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from aft_models.errors import AftModelsError
from aft_models.remedies.align import Align

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def textures(count: int, height: int, width: int, *, seed: int = 0) -> Tensor:
    """Return 8-bit images (B, 3, height, width) with smooth structures and saturated noise."""
    generator = torch.Generator().manual_seed(seed)
    smooth = F.interpolate(
        torch.rand(count, 3, 12, 12, generator=generator), (height, width), mode="bicubic"
    )
    noise = torch.rand(count, 3, height, width, generator=generator)
    return ((1.6 * smooth - 0.4 + 0.4 * noise).clamp(0, 1) * 255).round().byte()


def waves(align: Align, starts: Tensor) -> Tensor:
    """Return gray views (B, 3, H, W), 0 to 1, whose crops start at known rows and columns."""
    height, width = align.input_size
    turn = 2 * math.pi / (2 * align.margin - 1)
    axes = [
        torch.cos(turn * ((torch.arange(side) + 0.5) / align.scale - 0.5 - start[:, None]))
        for side, start in zip((height, width), starts.T, strict=True)
    ]
    levels = -1.5 + 0.3 * (axes[0][:, :, None] + axes[1][:, None])
    return levels.exp()[:, None].expand(-1, 3, -1, -1).contiguous()


def own_phase(gray: Tensor, period: int) -> list[float]:
    """Measure the phase (pixels) of an image (H, W), 0 to 1, along rows and columns."""
    levels = torch.log(gray.double() + 0.02)
    height, width = (
        torch.cos((torch.arange(n) - (n - 1) / 2).double() / (n / 2 - 1) * math.pi / 2) ** 2
        * ((torch.arange(n) - (n - 1) / 2).abs() < n / 2 - 1)
        for n in gray.shape
    )
    weights = height[:, None] * width
    levels = (levels - (levels * weights).sum() / weights.sum()) * weights
    return [
        float(
            torch.angle((line * torch.exp(2j * math.pi * torch.arange(len(line)) / period)).sum())
        )
        * period
        / (2 * math.pi)
        for line in (levels.sum(1), levels.sum(0))
    ]


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(("size", "scale"), [(96, 2), ((64, 101), 2), (48, 3)])
def test_align_equals_pil_resize_within_one_level(
    interpolation: str, size: int | tuple[int, int], scale: int
) -> None:
    align = Align(size, margin=8, scale=scale, interpolation=interpolation, mean=MEAN, std=STD)
    views = textures(12, *align.input_size)
    inputs, undo = align.show(align.normalize(views))
    levels = (inputs * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]) * 255
    height, width = align.size
    for view, level, (dy, dx) in zip(views, levels, undo.offset.tolist(), strict=True):
        top, left = scale * (dy + align.margin), scale * (dx + align.margin)
        box = (left, top, left + scale * width, top + scale * height)
        image = Image.fromarray(view.permute(1, 2, 0).numpy())
        expected = np.asarray(image.resize((width, height), FILTERS[interpolation], box=box))
        got = level.permute(1, 2, 0).round().numpy()
        assert np.abs(got - expected).max() <= 1


@pytest.mark.parametrize("edge", [0.6, 15.4])
@pytest.mark.parametrize("interpolation", FILTERS)
def test_align_at_edge_of_view_equals_pil(interpolation: str, edge: float) -> None:
    align = Align(64, margin=8, interpolation=interpolation)
    clean = waves(align, torch.tensor([[edge, edge]]))
    views = (clean * 255 + 20 * torch.rand(clean.shape)).clamp(0, 255).byte()
    inputs, undo = align.show(align.normalize(views))
    start = 2 * (undo.offset[0] + 8)
    assert (start - 2 * edge).abs().max() <= 1
    top, left = start.tolist()
    image = Image.fromarray(views[0].permute(1, 2, 0).numpy())
    box = (left, top, left + 128, top + 128)
    expected = np.asarray(image.resize((64, 64), FILTERS[interpolation], box=box))
    assert np.abs((inputs[0] * 255).round().permute(1, 2, 0).numpy() - expected).max() <= 1


def test_align_scale_1_crop_is_exact() -> None:
    align = Align(64, margin=6, scale=1, mean=MEAN, std=STD)
    views = align.normalize(textures(5, 76, 76))
    inputs, undo = align.show(views)
    starts = undo.offset + 6
    assert torch.equal(starts, starts.round())
    for view, crop, (top, left) in zip(views, inputs, starts.int().tolist(), strict=True):
        assert torch.equal(crop, view[:, top : top + 64, left : left + 64])


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize("interpolation", FILTERS)
def test_align_independent_of_batch_size(interpolation: str, scale: int) -> None:
    align = Align(96, scale=scale, interpolation=interpolation, mean=MEAN, std=STD)
    views = align.normalize(textures(9, *align.input_size))
    inputs, places = align(views), align.place(views)
    assert inputs.is_contiguous()
    for batch in (1, 4):
        assert torch.equal(torch.cat([align(part) for part in torch.split(views, batch)]), inputs)
        assert torch.equal(
            torch.cat([align.place(part) for part in torch.split(views, batch)]), places
        )


def test_align_empty_batch_returns_empty() -> None:
    align = Align(32, margin=4)
    assert align(torch.zeros(0, 3, 80, 80)).shape == (0, 3, 32, 32)


@pytest.mark.parametrize("scale", [1, 2])
def test_place_of_wave_is_its_crest(scale: int) -> None:
    align = Align(96, scale=scale)
    starts = torch.tensor([[1.0, 23.0], [12.25, 5.0], [7.3, 18.6]])
    tolerance = 0.5 if scale == 1 else 1 / 16
    assert (align.place(waves(align, starts)) + 12 - starts).abs().max() <= tolerance


def test_align_crop_has_zero_phase() -> None:
    align = Align(96, mean=MEAN, std=STD)
    inputs, undo = align.show(align.normalize(textures(10, *align.input_size)))
    pixels = inputs * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
    inside = undo.offset.abs().amax(1) < 12  # a crop stops at the edge of the view
    assert inside.sum() >= 7
    phases = torch.tensor([own_phase(crop.mean(0), 23) for crop in pixels[inside]])
    assert phases.abs().median() <= 0.05
    assert phases.abs().max() <= 0.3  # positions use 2 x 2 means of camera pixels, crops a filter


@pytest.mark.parametrize("scale", [1, 2])
def test_place_follows_integer_shifts_exactly(scale: int) -> None:
    align = Align(96, scale=scale, mean=MEAN, std=STD)
    wide = Align(102, scale=scale)
    starts = torch.tensor([[15.0, 14.2], [12.6, 15.8], [10.3, 12.0], [13.1, 11.4]])
    crests = waves(wide, starts) + 0.1 * torch.rand(4, 3, *wide.input_size)
    canvas = align.normalize((crests * 255).clamp(0, 255).byte())
    side = align.input_size[0]
    expected, expected_place = None, None
    for dy, dx in [(3, 3), (0, 0), (1, 4), (6, 2), (5, 6)]:
        top, left = scale * dy, scale * dx
        inputs, undo = align.show(canvas[:, :, top : top + side, left : left + side])
        place = undo.offset + torch.tensor([dy, dx])
        if expected is None or expected_place is None:
            expected, expected_place = inputs, place
        assert torch.equal(place, expected_place)
        assert torch.equal(inputs, expected)


def test_place_wraps_by_one_period() -> None:
    align = Align(96)
    starts = torch.stack([torch.arange(0, 46, 2.5), torch.full((19,), 12.0)], 1)
    place = align.place(waves(align, starts)) + 12
    turns = (starts - place) / 23
    assert (turns - turns.round()).abs().max() <= 1 / 16 / 23
    assert place.min() >= 0
    assert place.max() <= 24


def test_align_constant_image_is_centered_and_counted() -> None:
    align = Align(64, margin=8, mean=MEAN, std=STD)
    flat = torch.full((2, 3, *align.input_size), 100, dtype=torch.uint8)
    flat[1] = 0
    mixed = torch.cat([flat, textures(1, *align.input_size)])
    inputs, undo = align.show(align.normalize(mixed))
    assert undo.offset[:2].tolist() == [[0, 0], [0, 0]]
    assert undo.has_phase.tolist() == [False, False, True]
    assert (inputs[0] - align.normalize(flat)[0, :, :64, :64]).abs().max() < 1e-5


def test_align_image_without_period_component_is_centered() -> None:
    align = Align(64, margin=8)
    checkerboard = (torch.arange(160)[:, None] // 2 + torch.arange(160) // 2) % 2
    views = (0.2 + 0.6 * checkerboard).expand(1, 3, -1, -1).contiguous()
    _, undo = align.show(views)
    assert undo.offset.tolist() == [[0, 0]]
    assert not undo.has_phase.any()


def test_align_stripes_are_centered_along_the_stripes() -> None:
    align = Align(96)
    views = waves(align, torch.tensor([[12.0, 7.5]])).mean(2, keepdim=True)
    _, undo = align.show(views.expand(-1, -1, align.input_size[0], -1).contiguous())
    assert undo.offset.tolist() == [[0, -4.5]]
    assert not undo.has_phase.any()


def test_align_non_finite_pixels_return_center() -> None:
    align = Align(32, margin=4)
    assert align.place(torch.full((1, 3, 80, 80), float("nan"))).tolist() == [[0, 0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_align_keeps_dtype(dtype: torch.dtype) -> None:
    align = Align(96, mean=MEAN, std=STD)
    views = align.normalize(textures(4, *align.input_size))
    expected = align(views)
    inputs = align.to(dtype)(views.to(dtype))
    assert inputs.dtype == dtype
    if dtype != torch.bfloat16:  # 8 bits of bfloat16 may move a position
        assert (inputs.float() - expected).abs().max() <= 0.02
        assert torch.equal(align.place(views.to(dtype)), align.place(views))


def test_align_autocast_keeps_place() -> None:
    align = Align(96, mean=MEAN, std=STD)
    views = align.normalize(textures(4, *align.input_size))
    expected = align(views)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(align(views), expected)


@pytest.mark.parametrize("interpolation", FILTERS)
def test_align_passes_gradients_and_has_no_state(interpolation: str) -> None:
    align = Align(48, margin=6, interpolation=interpolation)
    views = (0.3 + 0.4 * textures(2, *align.input_size) / 255).requires_grad_()
    align(views).sum().backward()
    assert views.grad is not None
    assert views.grad.sum() == pytest.approx(2 * 3 * 48 * 48, rel=1e-4)
    assert align.state_dict() == {}


def test_undo_points_and_boxes_add_the_offset() -> None:
    align = Align((64, 80), margin=8)
    _, undo = align.show(waves(align, torch.tensor([[10.0, 3.5], [6.0, 12.25]])))
    points = torch.tensor([[[4.0, 5.0]], [[0.0, 1.0]]])
    assert undo.points(points).tolist() == [[[-0.5, 7.0]], [[4.25, -1.0]]]
    boxes = torch.cat([points, points + 2], -1)
    assert undo.boxes(boxes).tolist() == [[[-0.5, 7.0, 1.5, 9.0]], [[4.25, -1.0, 6.25, 1.0]]]


@pytest.mark.parametrize("stride", [1, 4])
def test_undo_maps_return_to_center_view(stride: int) -> None:
    align = Align((64, 80), margin=8)
    _, undo = align.show(waves(align, torch.tensor([[10.0, 3.5]])))
    y = (torch.arange(64 // stride) + 0.5) * stride
    x = (torch.arange(80 // stride) + 0.5) * stride
    center = torch.stack(torch.meshgrid(y, x, indexing="ij"))[None]  # coordinates as values
    crop = center + undo.offset[:, :, None, None]
    moved = undo.maps(crop)
    inner = slice(12 // stride, -12 // stride)
    assert (moved - center)[:, :, inner, inner].abs().max() <= 1e-3
    classes = undo.maps((crop[:, :1] > 30).long(), mode="nearest")
    assert classes.dtype == torch.int64


def test_undo_wrong_number_of_images_raises() -> None:
    align = Align(32, margin=4)
    _, undo = align.show(torch.rand(2, 3, 80, 80))
    with pytest.raises(AftModelsError, match=r"expected coordinates of shape \(2, ..., 2\), got"):
        undo.points(torch.zeros(3, 1, 2))


def test_align_wrong_size_states_both_sizes() -> None:
    align = Align(224)
    with pytest.raises(AftModelsError) as raised:
        align(torch.zeros(1, 3, 248, 248))
    assert str(raised.value) == (
        "align:12 at scale 2 expected images of shape (B, 3, 496, 496) for a network input of "
        "224 x 224, got (1, 3, 248, 248). Resize the images to 496 x 496"
    )


def test_align_integer_images_name_the_helper() -> None:
    with pytest.raises(AftModelsError, match=r"got torch.uint8. Call normalize\(\) first"):
        Align(32, margin=4)(torch.zeros(1, 3, 80, 80, dtype=torch.uint8))
    with pytest.raises(AftModelsError, match=r"expected uint8 images, got torch\.float32"):
        Align(32, margin=4).normalize(torch.zeros(1, 3, 80, 80))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"margin": 1}, "expected a margin of 2 px or more, got 1"),
        ({"scale": 0}, "expected a scale of 1 or more, got 0"),
        ({"interpolation": "bicubik"}, "bilinear or bicubic interpolation, got 'bicubik'"),
        ({"margin": 20}, "Use a margin of at most 16 px"),
        ({"std": (1.0,)}, "expected one mean and std per channel, got 3 and 1"),
    ],
)
def test_align_invalid_setting_raises(settings: dict[str, object], message: str) -> None:
    with pytest.raises(AftModelsError, match=message):
        Align(32, **settings)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(("size", "scale"), [((61, 96), 2), (96, 1)])
def test_align_onnx_equals_torch(
    tmp_path: Path, interpolation: str, size: int | tuple[int, int], scale: int
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    align = Align(size, scale=scale, interpolation=interpolation, mean=MEAN, std=STD).eval()
    views = align.normalize(textures(7, *align.input_size))
    path = str(tmp_path / "align.onnx")
    batch = {0: torch.export.Dim("batch")}
    torch.onnx.export(align, (views[:2],), path, dynamo=True, dynamic_shapes=(batch,))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    for count in (1, 2, 7):
        (got,) = session.run(None, {name: views[:count].numpy()})
        assert np.abs(got - align(views[:count]).numpy()).max() <= 1e-4
