"""Jobs: the canvas for every metric, and its errors and warnings."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from stored_images import save
from torch import Tensor, nn

from aft_models.preprocessing import Preprocessing
from aft_models.remedies import parse_remedies
from aft_models.remedies.inputs import build_inputs
from shiftbench.data import ImageSet, load_dataset
from shiftbench.errors import UsageError
from shiftbench.identity import Identity
from shiftbench.metrics.consistency import Consistency
from shiftbench.models import Model
from shiftbench.models.transforms import read_preprocessing
from shiftbench.running.job import Job, Settings, make_job


class Mean(nn.Module):
    """Network with two logits for images of any size."""

    def forward(self, images: Tensor) -> Tensor:
        mean = images.mean((1, 2, 3))
        return torch.stack([mean, -mean], 1)


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    for index, name in enumerate(("cat", "dog")):
        save(tmp_path / name / "x.png", index, (300, 280))
    return load_dataset(f"folder:{tmp_path}")


def mean_model(preprocessing: object, remedies: str = "") -> Model:
    specs = parse_remedies(remedies)
    return Model(
        Mean(),
        preprocessing,  # type: ignore[arg-type]
        name="mean",
        remedies=build_inputs(specs, read_preprocessing(preprocessing, "mean")),
        identity=Identity(remedies=remedies),
    )


CROPS = Settings(attacks=("crop",))


def test_make_job_margin_of_attack_and_remedy_too_large_raises_with_numbers(
    images: ImageSet,
) -> None:
    with pytest.raises(UsageError) as caught:
        make_job(mean_model(Preprocessing(224), "align:12:1"), images, CROPS)
    assert str(caught.value) == (
        "crop (6 px) and align:12:1 need a margin of 18 px, 256 px leave 16 around the view of 224 "
        "px. Use --max-shift 4, align:10:1, --pad reflect or --crop-pct 0.861"
    )


@pytest.mark.parametrize(
    ("remedy", "settings"),
    [
        ("align:12:1", Settings(attacks=("crop",), max_shift=4)),
        ("align:10:1", CROPS),
        ("align:12:1", Settings(attacks=("crop",), crop_pct="0.861")),
        ("align:12:1", Settings(attacks=("crop",), pad="reflect")),
        ("align:8:1", Settings()),
    ],
)
def test_make_job_ways_out_of_margin_error_fit(
    remedy: str, settings: Settings, images: ImageSet
) -> None:
    job = make_job(mean_model(Preprocessing(224), remedy), images, settings)
    assert job.geometry.side >= 224 + 2 * job.model.preprocessing.margin


def test_make_job_remedy_wider_than_image_raises_with_smaller_remedy(images: ImageSet) -> None:
    with pytest.raises(
        UsageError, match=r"align:20:1 needs a margin of 20 px, 256 px .*align:10:1"
    ):
        make_job(mean_model(Preprocessing(224), "align:20:1"), images, CROPS)


@pytest.mark.parametrize(
    ("preprocessing", "words"),
    [
        (
            {"input_size": 96, "crop_pct": 0.75},
            "your transform resizes to 128 px; evaluating at 110",
        ),
        ({"input_size": 96, "crop_pct": 1.0}, "your transform resizes to 96 px; evaluating at 110"),
        ({"input_size": 96, "crop_pct": 96 / 110}, ""),
        ({"input_size": 96}, ""),
        (Preprocessing(96, resize=128), ""),  # of a library: one rule for every model
    ],
)
def test_make_job_resize_of_user_replaced_warns(
    preprocessing: object, words: str, images: ImageSet, caplog: pytest.LogCaptureFixture
) -> None:
    model = mean_model(preprocessing)
    with caplog.at_level(logging.WARNING):
        make_job(model, images, Settings(attacks=("crop",), max_shift=1))
    assert words in caplog.text
    assert ("--crop-pct model" in caplog.text) == bool(words)
    caplog.clear()
    make_job(model, images, Settings(attacks=("crop",), max_shift=0, crop_pct="model", pad="zeros"))
    assert "your transform" not in caplog.text


def test_make_job_resize_of_torchvision_transform_replaced_warns(
    images: ImageSet, caplog: pytest.LogCaptureFixture
) -> None:
    from torchvision import transforms

    steps = [transforms.Resize(128), transforms.CenterCrop(96), transforms.ToTensor()]
    with caplog.at_level(logging.WARNING):
        make_job(mean_model(transforms.Compose(steps)), images, CROPS)
    assert "resizes to 128 px; evaluating at 110 px (--crop-pct model to use yours)" in caplog.text


def span(job: Job) -> int:
    (metric,) = (r.metric for r in job.requests if r.metric.name == "consistency_crop")
    assert isinstance(metric, Consistency)
    assert metric.table == f"consistency_crop.{metric.span}"
    return metric.span


def test_make_job_shared_remedy_margin_gives_one_span(images: ImageSet) -> None:
    settings = Settings(attacks=("none",), consistency=("crop",))
    plain, wide = (mean_model(Preprocessing(224), text) for text in ("", "align:8:1"))
    assert span(make_job(plain, images, settings)) == 32
    shared = Settings(attacks=("none",), consistency=("crop",), remedy_margin=8)
    assert span(make_job(plain, images, shared)) == span(make_job(wide, images, shared)) == 16
    small = mean_model(Preprocessing(96))  # 110 px leave 7 on each side: the remedy does not fit
    assert span(make_job(small, images, shared)) == 14
