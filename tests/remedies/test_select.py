"""`select`: the same crop under shifts, and the wider view that it needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
import torch.nn.functional as F
from repair_cases import Residual
from shifted_models import scene
from torch import Tensor, nn

from aft_models import AftModelsError, repair
from aft_models.onnx import export_onnx
from aft_models.preprocessing import Preprocessing
from aft_models.remedies.repair import reports
from aft_models.remedies.select import Select, _scores
from shiftbench.data import load_dataset
from shiftbench.errors import UsageError
from shiftbench.geometry import geometry_for
from shiftbench.grid import Offset
from shiftbench.models import Model, load_model


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def crop(canvas: Tensor, dy: int, dx: int, side: int) -> Tensor:
    """The view whose camera has moved by (dy, dx) from the middle of the canvas."""
    start = (canvas.shape[-1] - side) // 2
    return canvas[:, :, start + dy : start + dy + side, start + dx : start + dx + side]


MOVES = [(0, 0), (1, 0), (0, -2), (3, 3), (-3, 2)]


def tiny_vit() -> nn.Module:
    return timm.create_model("test_vit", img_size=44, patch_size=4, num_classes=5)


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
def test_select_shift_with_peak_inside_keeps_every_bit(
    build: Callable[[], nn.Module], others: list[str]
) -> None:
    model = repair(build(), "+".join([*others, "select:6"]), input_size=44).eval()
    choose, canvas = Select(6), scene(72, 72, count=64).float()
    places = torch.stack([choose.place(crop(canvas, *move, 56)) for move in MOVES])
    seen = places + torch.tensor(MOVES)[:, None]  # on the canvas
    same = (seen == seen[0]).all(2).all(0)
    assert 3 <= int(same.sum()) < 64  # some winners stay inside for all moves, some do not
    still = model(crop(canvas, 0, 0, 56)[same])
    for move in MOVES:
        assert torch.equal(model(crop(canvas, *move, 56)[same]), still)


def test_select_crop_begins_on_lattice_of_highest_peak() -> None:
    images = torch.zeros(2, 3, 48, 48)
    images[0, :, 20, 23] = 1  # a dot; the first score stands at (9, 9)
    images[0, :, 30, 11] = 0.9
    images[1, :, 27, 24] = -1
    assert Select(8).place(images).tolist() == [[11, 14], [1, 15]]  # modulo 17


@pytest.mark.parametrize(("height", "width"), [(23, 40), (48, 61)])
def test_select_scores_equal_slow_difference_of_gaussians(height: int, width: int) -> None:
    image = torch.rand(1, 3, height, width, dtype=torch.float64)
    steps = torch.arange(-8, 9, dtype=torch.float64)
    blurred = []
    for sigma in (2.0, 4.0):
        kernel = torch.exp(-0.5 * (steps[:, None] ** 2 + steps**2) / sigma**2)
        blurred.append(F.conv2d(image.mean(1, keepdim=True), (kernel / kernel.sum())[None, None]))
    scores = (blurred[0] - blurred[1]).abs()[0, 0]
    expected = torch.zeros(height - 18, width - 18, dtype=torch.float64)
    for y, x in torch.cartesian_prod(*map(torch.arange, expected.shape)).tolist():
        beside = scores[[y, y + 2, y + 1, y + 1], [x + 1, x + 1, x, x + 2]]
        if scores[y + 1, x + 1] >= beside.max():
            expected[y, x] = scores[y + 1, x + 1]
    torch.testing.assert_close(_scores(image)[0], expected)


def test_select_crop_changes_once_per_period() -> None:
    canvas, margin = scene(96, 96, count=16).float(), 4
    for axis in ((1, 0), (0, 1)):
        moves = [(step * axis[0], step * axis[1]) for step in range(-4, 5)]
        choose = Select(margin)
        places = [choose.place(crop(canvas, *move, 64)) + torch.tensor(move) for move in moves]
        distinct = [len(set(map(tuple, image.tolist()))) for image in torch.stack(places, 1)]
        assert (
            sum(count <= 2 for count in distinct) >= 12
        )  # more only where the peak leaves the view


def test_select_gradients_reach_selected_crop_alone() -> None:
    model = repair(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(2)), "select:4", input_size=16)
    images = torch.randn(2, 3, 24, 24, requires_grad=True)
    model(images).sum().backward()
    touched = images.grad.ne(0).all(1).sum((1, 2))
    assert touched.tolist() == [16 * 16] * 2


def test_select_network_of_fixed_size_takes_wider_view() -> None:
    vit = timm.create_model("test_vit", img_size=32, patch_size=4, num_classes=10)
    model = repair(vit, "select:4")
    assert reports(model)[0].margin == 4
    assert model.eval()(torch.zeros(1, 3, 40, 40)).shape == (1, 10)
    with pytest.raises(AftModelsError, match=r"needs images of 19 pixels or more .* got 8 x 8"):
        Select(4).place(torch.zeros(1, 3, 8, 8))


@pytest.mark.parametrize("side", [32, 39, 48])
def test_select_image_of_other_size_raises_with_both_sizes(side: int) -> None:
    vit = timm.create_model(
        "test_vit", img_size=32, patch_size=4, num_classes=10, dynamic_img_size=True
    )
    words = rf"expected images of 40 x 40 px \(network 32 px, margin 4 px\), got {side} x {side} px"
    with pytest.raises(AftModelsError, match=words):
        repair(vit, "select:4").eval()(torch.zeros(1, 3, side, side))
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    bound = repair(conv, "select:4", input_size=32)
    again = repair(bound, "circular", input_size=None)
    for model in (bound, again):
        assert model(torch.zeros(1, 3, 40, 40)).shape == (1, 4)
        with pytest.raises(AftModelsError, match=f"{words}.*input_size={side - 8} to repair"):
            model(torch.zeros(1, 3, side, side))


def test_model_select_image_of_other_size_raises_with_both_sizes() -> None:
    model = load_model("xcit_pico_6_p8.scenes+select:6")
    size = model.preprocessing.size
    with pytest.raises(AftModelsError, match=f"expected images of {size + 12} x {size + 12} px"):
        model(torch.zeros(1, 3, size, size))


def test_select_exported_model_selects_the_same_crops() -> None:
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra `onnx`")
    model = repair(nn.Sequential(nn.Flatten()), "select:6", input_size=24)
    session = runtime.InferenceSession(export_onnx(model.eval(), (3, 36, 36)))
    images = scene(36, 36, count=64).float()
    (crops,) = session.run(None, {"images": images.numpy()})
    assert torch.equal(torch.from_numpy(crops), model(images))


def test_model_shown_ends_where_pixels_are_computed() -> None:
    images = scene(40, 40, count=4).float()
    selected, _ = Select(4).show(images)
    for remedies in ("select:4", "vote+select:4", "circular+aps+select:4"):
        model = Model(repair(Residual(), remedies, input_size=32), Preprocessing(40), name="net")
        assert model.shares_inputs
        assert torch.equal(model.shown(images), selected)
    assert not Model(repair(Residual(), "vote"), Preprocessing(40), name="net").shares_inputs


@pytest.mark.parametrize("number", ["0", "65", "-1"])
def test_select_number_out_of_range_raises(number: str) -> None:
    with pytest.raises(
        AftModelsError, match="select takes the margin of the wider view in pixels, 1 to 64"
    ):
        repair(Residual(), f"select:{number}")


def test_select_before_layer_remedies_equals_one_repair() -> None:
    stepwise = repair(repair(Residual(), "select:4", input_size=32), "circular+aps").eval()
    at_once = repair(Residual(), "circular+aps+select:4", input_size=32).eval()
    at_once.load_state_dict(stepwise.state_dict())
    images = torch.randn(2, 3, 40, 40)
    assert torch.equal(stepwise(images), at_once(images))


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


def test_load_model_select_widens_view() -> None:
    name = "xcit_pico_6_p8.scenes"
    plain, model = load_model(name), load_model(f"{name}+select:6")
    assert model.preprocessing.input_size == plain.preprocessing.input_size + 12
    assert model.preprocessing.size == plain.preprocessing.input_size
    assert model.num_classes == plain.num_classes


def test_rendered_wider_view_keeps_resolution() -> None:
    scenes = load_dataset("scenes", limit=2)
    plain, wide = scenes.views([0, 1], 32), scenes.views([0, 1], 32, wider=5)
    for offset in (Offset(0.0, 0.0), Offset(0.5, -1.0), Offset(3.0, 2.5)):
        assert torch.equal(wide(offset)[:, :, 5:-5, 5:-5], plain(offset))
