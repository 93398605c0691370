"""Canvas geometry: pixels of the usual pipeline, and a view that is independent of the margin."""

import json
from dataclasses import replace

import numpy as np
import pytest
import stored_images
import torch
from PIL import Image
from timm.data import create_transform
from torchvision import transforms

from aft_models.errors import AftModelsError
from aft_models.preprocessing import Preprocessing, cropped_from, normalize
from shiftbench.errors import UsageError
from shiftbench.geometry import Geometry, geometry_for

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def recipe(size: int = 224, interpolation: str = "bicubic", crop_pct: float = 0.9) -> Preprocessing:
    return Preprocessing(size, MEAN, STD, interpolation, resize=cropped_from(size, crop_pct))


def picture(width: int, height: int) -> Image.Image:
    return stored_images.picture(0, (width, height))


def test_paper_resize_is_the_same_for_every_model() -> None:
    sizes = {size: geometry_for(recipe(size)).resize for size in (32, 64, 224, 384)}
    assert sizes == {32: 37, 64: 73, 224: 256, 384: 439}
    assert geometry_for(recipe(crop_pct=1.0)).resize == 256


def test_geometry_images_of_input_size_are_not_resized() -> None:
    image = picture(32, 32)
    geometry = geometry_for(recipe(32), finished=True)
    assert geometry.resize == 32
    assert torch.equal(geometry.canvas(image), transforms.PILToTensor()(image))
    assert geometry_for(recipe(32)).resize == 37
    assert geometry_for(recipe(32), finished=True, crop_pct="model").resize == 35


def test_geometry_enlarged_training_images_are_resized() -> None:
    card = replace(recipe(32), resize=37, enlarge=True)
    assert geometry_for(card, finished=True).resize == 37
    assert geometry_for(card, finished=True).crop == "paper"
    # Other images are cut as usual.
    assert geometry_for(replace(recipe(64), resize=72, enlarge=True)).resize == 73


def test_geometry_margin_of_images_of_input_size_needs_padding() -> None:
    with pytest.raises(UsageError) as caught:
        geometry_for(recipe(32), margin=6, finished=True, shift="attack 'crop' up to 6 px")
    message = str(caught.value)
    assert "32 px, which are not resized, leave 0 around the view of 32 px. Use --pad" in message
    padded = geometry_for(recipe(32), margin=6, finished=True, pad="reflect")
    fraction = message.split("--crop-pct ")[1]
    enlarged = geometry_for(recipe(32), margin=6, finished=True, crop_pct=fraction)
    assert padded.resize == 32
    assert padded.canvas(picture(32, 32)).shape == enlarged.canvas(picture(32, 32)).shape


@pytest.mark.parametrize("size", [(300, 200), (200, 301), (45, 45), (97, 31), (500, 64)])
@pytest.mark.parametrize("crop_pct", [1.0, 0.9, 0.875])
@pytest.mark.parametrize("mode", ["center", "squash"])
def test_model_geometry_gives_the_pixels_of_timm(
    mode: str, crop_pct: float, size: tuple[int, int]
) -> None:
    own = replace(recipe(64, crop_pct=crop_pct), squash=mode == "squash")
    geometry = geometry_for(own, crop_pct="model")
    usual = {"interpolation": "bicubic", "mean": MEAN, "std": STD, "normalize": False}
    theirs = create_transform(64, crop_pct=crop_pct, crop_mode=mode, **usual)
    image = picture(*size)
    assert torch.equal(geometry.canvas(image), theirs(image))
    assert Geometry(**json.loads(json.dumps(geometry.to_json()))).canvas(image).equal(theirs(image))
    assert not geometry_for(own).squash  # one rule for every model


def test_squashed_canvas_contains_its_view() -> None:
    squash = replace(recipe(64, crop_pct=0.8), squash=True)
    image = picture(120, 90)
    canvas = geometry_for(squash, crop_pct="model", margin=8).canvas(image)
    view = geometry_for(squash, crop_pct="model").canvas(image)
    assert torch.equal(canvas[:, 8:-8, 8:-8], view)
    whole = replace(squash, resize=64)
    with pytest.raises(UsageError, match=r"64 px leave 0 around the view of 64 px\. Use --pad"):
        geometry_for(whole, crop_pct="model", margin=1)


def test_model_and_explicit_crop_fractions() -> None:
    assert geometry_for(recipe(crop_pct=224 / 232), crop_pct="model").resize == 232
    assert geometry_for(recipe(crop_pct=0.875), crop_pct="model").resize == 256
    assert geometry_for(recipe(), crop_pct=1.0).resize == 224
    assert geometry_for(recipe(), crop_pct="0.5").resize == 448
    assert geometry_for(recipe(), crop_pct="0.5").crop == "0.5"


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
@pytest.mark.parametrize("size", [(300, 200), (200, 301), (45, 45)])
def test_view_equals_the_usual_resize_and_center_crop(
    interpolation: str, size: tuple[int, int]
) -> None:
    geometry = geometry_for(recipe(64, interpolation))
    mode = transforms.InterpolationMode(interpolation)
    usual = transforms.Compose(
        [transforms.Resize(73, mode), transforms.CenterCrop(64), transforms.PILToTensor()]
    )
    image = picture(*size)
    assert torch.equal(geometry.canvas(image), usual(image))


@pytest.mark.parametrize("margin", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(300, 200), (201, 333), (90, 90)])
def test_margin_does_not_move_the_view(margin: int, size: tuple[int, int]) -> None:
    image = picture(*size)
    view = geometry_for(recipe(64)).canvas(image)
    canvas = geometry_for(recipe(64), margin=margin).canvas(image)
    assert canvas.shape == (3, 64 + 2 * margin, 64 + 2 * margin)
    assert torch.equal(canvas[:, margin:-margin, margin:-margin], view)


def test_geometry_missing_margin_raises_with_options() -> None:
    with pytest.raises(UsageError) as caught:
        geometry_for(recipe(32), margin=6, shift="attack 'crop' up to 6 px")
    message = str(caught.value)
    for part in ("attack 'crop' up to 6 px needs a margin of 6 px", "37 px leave 2"):
        assert part in message
    assert "--pad reflect" in message
    fraction = float(message.split("--crop-pct ")[1])
    assert geometry_for(recipe(32), margin=6, crop_pct=fraction).margin == 6  # the fix works


@pytest.mark.parametrize("pad", ["reflect", "zeros"])
def test_padding_fills_only_what_is_missing(pad: str) -> None:
    image = picture(37, 50)  # already R wide: the resize is the identity
    geometry = geometry_for(recipe(32), margin=6, pad=pad)
    canvas = geometry.canvas(image)
    pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
    assert canvas.shape == (3, 44, 44)
    # The width lacks 4 pixels on the left and 3 on the right; the height lacks none.
    top = round((50 - 32) / 2) - 6
    assert torch.equal(canvas[:, :, 4:41], pixels[:, top : top + 44])
    outside = canvas[:, :, :4]
    expected = pixels[:, top : top + 44, 1:5].flip(2) if pad == "reflect" else 0 * outside
    assert torch.equal(outside, expected)


def test_reflection_wider_than_the_image() -> None:
    canvas = geometry_for(recipe(4), margin=9, pad="reflect").canvas(picture(5, 5))
    assert canvas.shape == (3, 22, 22)


def test_rendered_canvas_has_every_margin() -> None:
    geometry = geometry_for(recipe(64), margin=40, rendered=True)
    assert geometry.to_json() == {
        **{"view": 64, "resize": 73, "margin": 40, "interpolation": "bicubic"},
        **{"pad": "none", "crop": "paper", "rendered": True},
    }
    assert Geometry(**geometry.to_json()) == geometry


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pad": "reflct"}, "Did you mean 'reflect'"),
        ({"crop_pct": "papr"}, "Did you mean 'paper'"),
        ({"crop_pct": 1.5}, "got 1.5"),
        ({"crop_pct": 0}, "got 0"),
        ({"margin": -1}, "got -1"),
    ],
)
def test_geometry_invalid_request_raises(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        geometry_for(recipe(), **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="interpolation 'bicubicc'"):
        geometry_for(recipe(interpolation="bicubicc"))


def test_normalize_equals_the_usual_transform() -> None:
    canvas = geometry_for(recipe(16)).canvas(picture(40, 30))
    usual = transforms.Normalize(MEAN, STD)(canvas.float() / 255)
    assert torch.equal(normalize(canvas[None], MEAN, STD)[0], usual)
    assert normalize(canvas[None], MEAN, STD, dtype=torch.float64).dtype == torch.float64


# Statistics of pixels


@pytest.mark.parametrize(("key", "value"), [("mean", 123.7), ("mean", 1.5), ("std", 58.4)])
def test_preprocessing_of_0_255_scale_raises(key: str, value: float) -> None:
    numbers: dict[str, tuple[float, ...]] = {key: (0.5, value, 0.5)}
    with pytest.raises(AftModelsError, match=f"{key} {value:g} is on the 0-255 scale; divide"):
        Preprocessing(224, **numbers)  # type: ignore[arg-type]
    assert Preprocessing(224, (1.0,) * 3, (1.0,) * 3).std == (1.0,) * 3
