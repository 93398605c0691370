"""Scale: camera pixels per network pixel, and cameras that digitize image files anew."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_runs
import torch
from PIL import Image
from small_runs import BASE, CPU, SIDE, Bench, assert_same_tables
from torch import nn

import aft_models
import shiftbench
from aft_models.preprocessing import Preprocessing, normalize
from aft_models.remedies import parse_remedies
from aft_models.remedies.inputs import build_inputs
from shiftbench.data import CanvasBatch, Canvases, ImageSet, load_dataset
from shiftbench.data.canvases import DigitizedViews
from shiftbench.errors import RecordError, UsageError
from shiftbench.geometry import geometry_for
from shiftbench.grid import Offset
from shiftbench.identity import Identity
from shiftbench.models import Model
from shiftbench.records.compare import compare
from shiftbench.records.result import Result
from shiftbench.running.job import Settings, make_job
from shiftbench.running.runner import run
from shiftbench.running.suite import RunSpec, with_shared_view
from shiftbench.running.verify import predict_again

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


def smooth(seed: int, width: int, height: int) -> Image.Image:
    """Return an image with structures of several pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """Image files of several sizes, whose classes are those that the network predicts."""
    home = tmp_path_factory.mktemp("files")
    network = small_runs.sensitive_network()
    geometry = geometry_for(Preprocessing(SIDE, MEAN, STD))
    for index, (width, height) in enumerate([(90, 70), (61, 75), (40, 40), (52, 47)] * 3):
        image = smooth(index, width, height)
        with torch.no_grad():
            seen = network(normalize(geometry.canvas(image)[None], MEAN, STD)).argmax(1).item()
        folder = home / f"{seen:02d}x"
        folder.mkdir(exist_ok=True)
        image.save(folder / f"{index}.png")
    for index in range(small_runs.CLASSES):
        (home / f"{index:02d}x").mkdir(exist_ok=True)
    for folder in home.iterdir():
        if not any(folder.iterdir()):
            smooth(99 + int(folder.name[:2]), 50, 50).save(folder / "filler.png")
    return load_dataset(f"folder:{home}")


def model(remedies: str = "", interpolation: str = "bilinear") -> Model:
    facts = Preprocessing(SIDE, MEAN, STD, interpolation)
    inputs = build_inputs(parse_remedies(remedies), facts)
    name = "+".join(filter(None, ["net", remedies]))
    return Model(
        small_runs.sensitive_network(),
        facts,
        name=name,
        remedies=inputs,
        identity=Identity(remedies=remedies),
    )


def measured(one: Model, images: ImageSet, root: Path, settings: Settings) -> Result:
    result = run(one, images, settings, root, execution=CPU).record
    assert result is not None
    return result


CAMERA = Settings(attacks=("camera",), consistency=(), full_grid=True, scale=2, pad="reflect")


# The digitized image


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("width", "height"), [(500, 375), (333, 500), (64, 64), (90, 51)])
@pytest.mark.parametrize("scale", [1, 2])
def test_digitized_at_integer_offset_equals_window_of_canvas(
    width: int, height: int, scale: int, interpolation: str
) -> None:
    image = smooth(1, width, height)
    recipe = Preprocessing(32, MEAN, STD, interpolation)
    geometry = geometry_for(recipe, margin=2, scale=scale)
    canvas, m = geometry.canvas(image), geometry.margin
    for dy, dx in itertools.product((-m, 0, 1, m), repeat=2):
        window = canvas[:, m + dy : m + dy + geometry.view, m + dx : m + dx + geometry.view]
        view = geometry.digitized(image, float(dy), float(dx))
        assert (view.int() - window.int()).abs().max() <= 1


@pytest.mark.parametrize(("dy", "dx"), [(1 / 3, 0.0), (-4 / 3, 5 / 3), (0.5, -0.25)])
def test_digitized_at_fraction_equals_resize_of_moved_box(dy: float, dx: float) -> None:
    image = smooth(2, 200, 160)
    geometry = geometry_for(Preprocessing(32, MEAN, STD), margin=2, scale=2)
    assert (geometry.resize, geometry.interpolation) == (74, "bicubic")
    per_x, per_y = 200 / int(74 * 200 / 160), 160 / 74
    left, top = round((92 - 64) / 2) + dx, round((74 - 64) / 2) + dy
    box = (per_x * left, per_y * top, per_x * (left + 64), per_y * (top + 64))
    expected = np.asarray(image.resize((64, 64), Image.Resampling.BICUBIC, box=box))
    view = geometry.digitized(image, dy, dx).permute(1, 2, 0).numpy()
    assert np.array_equal(view, expected)


@pytest.mark.parametrize("pad", ["reflect", "zeros"])
def test_digitized_beyond_the_image_is_padded(pad: str) -> None:
    image = smooth(3, 32, 32)
    geometry = geometry_for(Preprocessing(32, MEAN, STD), margin=1, finished=True, pad=pad)
    plain = geometry.digitized(image, 0.0, 0.0)
    assert torch.equal(plain, torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy()))
    moved = geometry.digitized(image, 0.5, -0.5)
    assert moved.shape == (3, 32, 32)
    edge = moved[:, -1, 1:]
    assert (edge == 0).all() if pad == "zeros" else torch.equal(edge, moved[:, -3, 1:])


def test_digitized_views_equal_one_image_at_a_time(files: ImageSet) -> None:
    geometry = geometry_for(Preprocessing(SIDE, MEAN, STD), margin=1, scale=2)
    batch = Canvases(files, geometry, workers=0, originals=True).take(5)
    assert isinstance(batch, CanvasBatch)
    views = DigitizedViews(geometry, batch)
    rows = torch.tensor([3, 0, 3])
    for offset in (Offset(2 / 3, -4 / 3), Offset(0.0, 1.0), Offset(-1.0, 0.5)):
        got = views(offset, rows)
        each = [geometry.digitized(files.image(i), offset.dy, offset.dx) for i in rows.tolist()]
        assert (got.int() - torch.stack(each).int()).abs().max() <= 1
        assert torch.equal(views(offset)[rows], got)


# Runs


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_run_at_scale_2_equals_slow_resize_of_every_view(
    interpolation: str, files: ImageSet, tmp_path: Path
) -> None:
    plain = model(interpolation=interpolation)
    settings = replace(CAMERA, attacks=("crop", "camera"), max_shift=1)
    result = measured(plain, files, tmp_path, settings)
    geometry = geometry_for(plain.preprocessing, margin=1, scale=2)
    tables, network = result.tables, small_runs.sensitive_network()
    compared = 0
    for info in result.requests[1:]:
        metric = info.loaded
        assert metric is not None
        cells = result.cells(info)
        for row, key in enumerate(result.keys(info.images)):
            image = files.image(files.keys.index(key))
            for column, offset in enumerate(metric.grid):
                seen = geometry.digitized(image, 2 * offset.dy, 2 * offset.dx)
                picture = Image.fromarray(seen.permute(1, 2, 0).numpy())
                small = picture.resize((SIDE, SIDE), Image.Resampling[interpolation.upper()])
                pixels = torch.from_numpy(np.array(small).transpose(2, 0, 1))
                with torch.no_grad():
                    logits = network(normalize(pixels[None], MEAN, STD))[0]
                best = logits.topk(2).values
                if best[0] - best[1] > 0.01:  # gray levels are rounded here, and not in the run
                    assert cells.classes[row, column] == int(logits.argmax())
                    compared += 1
    assert compared > 0.8 * 2 * 9 * len(tables.keys)


def test_camera_columns_of_whole_camera_pixels_repeat_crops(
    files: ImageSet, tmp_path: Path
) -> None:
    settings = replace(CAMERA, attacks=("crop", "camera:1/2"), max_shift=2)
    result = measured(model(), files, tmp_path, settings)
    crop, camera = (info.loaded for info in result.requests[1:])
    assert crop is not None
    assert camera is not None
    cells = {info.loaded.attack: result.cells(info) for info in result.requests[1:]}
    for column, offset in enumerate(camera.grid):
        if offset in crop.grid.offsets:
            other = crop.grid.offsets.index(offset)
            same = cells["camera"].classes[:, column] == cells["crop"].classes[:, other]
            assert same.all()


def test_camera_result_independent_of_batch_size_workers_and_resume(
    files: ImageSet, tmp_path: Path
) -> None:
    whole = measured(model("align:2"), files, tmp_path / "a", CAMERA)
    narrow = replace(CAMERA, max_shift=1)
    for size, workers in ((1, 0), (5, 2)):
        root = tmp_path / f"{size}"
        execution = replace(CPU, batch_size=size, workers=workers)
        run(model("align:2"), files, narrow, root, execution=execution)
        grown = run(model("align:2"), files, CAMERA, root, execution=execution).record
        assert grown is not None
        assert_same_tables(whole.tables, grown.tables)
    assert whole.data.enlarged == sum(min(files.image(i).size) < 2 * 18 for i in range(len(files)))


def test_run_states_scale_in_conditions_and_geometry(files: ImageSet, tmp_path: Path) -> None:
    fine = measured(model(), files, tmp_path / "a", replace(BASE, scale=2))
    plain = measured(model(), files, tmp_path / "b", BASE)
    assert fine.conditions["scale"] == "2"
    assert plain.conditions["scale"] == "1"
    assert "scale 2, resized to 36 px, view 32 px" in fine.data.geometry_text
    assert "scale" not in plain.data.geometry
    with pytest.raises(UsageError, match="scale is 1 and 2"):
        compare(plain, [fine])
    with pytest.raises(RecordError, match=r"geometry\.view was 32, is 16"):
        run(model(), files, replace(BASE, scale=1), tmp_path / "a", execution=CPU)


def test_verify_predicts_camera_cells_again(files: ImageSet, tmp_path: Path) -> None:
    result = measured(model("align:2"), files, tmp_path, CAMERA)
    again = predict_again(result, model("align:2"), files, images=4)
    assert (again.problems, again.cells > 100) == ((), True)
    other = model("align:2")
    nn.init.normal_(other.network.head.weight)
    assert predict_again(result, other, files, images=4).problems


def test_run_constant_images_are_counted_and_left_in_the_center(tmp_path: Path) -> None:
    for index, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        Image.new("RGB", (64, 64), (90 * index,) * 3).save(tmp_path / name / "flat.png")
        smooth(index, 64, 64).save(tmp_path / name / "smooth.png")
    (tmp_path / "classes.json").write_text('{"a": 0, "b": 1}')
    images = load_dataset(f"folder:{tmp_path}", class_map=tmp_path / "classes.json")
    settings = replace(BASE, scale=2, pad="reflect")
    result = measured(model("align:2"), images, tmp_path / "runs", settings)
    assert result.data.no_phase == 2
    assert "2 of 4 images without a phase (not aligned)" in result.data.geometry_text


# Settings


@pytest.mark.parametrize(
    ("remedies", "settings", "scale"),
    [
        ("", Settings(), 1),
        ("", Settings(attacks=("camera",)), 2),
        ("align:2", Settings(), 2),
        ("align:2:1", Settings(), 1),
        ("align:2:1", Settings(attacks=("crop",), scale=2), 2),
    ],
)
def test_make_job_scale_follows_from_remedies_and_attacks(
    remedies: str, settings: Settings, scale: int, files: ImageSet
) -> None:
    job = make_job(model(remedies), files, replace(settings, max_shift=1, pad="reflect"))
    assert job.geometry.scale == scale
    names = {request.metric.name for request in job.requests}
    assert ("adversarial_integer" in names) == (remedies == "" and scale == 1)
    assert ("consistency_half" in names) == (remedies == "" and scale == 1)


@pytest.mark.parametrize(
    ("remedies", "settings", "words"),
    [
        ("align:2", Settings(attacks=("integer",)), "adversarial_integer with views of scale 2"),
        ("align:2:1", Settings(attacks=("half",)), "adversarial_half with align:2:1"),
        ("", Settings(attacks=("bilinear",), scale=2), "crop or camera, or --scale 1"),
        ("align:2", Settings(attacks=("crop",), scale=1), "multiple of 2, which align:2 needs"),
        ("", Settings(attacks=("crop:1/3",), scale=2), "1/3 px at scale 2. Use --scale 3"),
        ("", Settings(attacks=("crop:1/2",)), "1/2 px at scale 1. Use --scale 2"),
    ],
)
def test_make_job_unsupported_shift_or_scale_raises(
    remedies: str, settings: Settings, words: str, files: ImageSet
) -> None:
    with pytest.raises(UsageError, match=words):
        make_job(model(remedies), files, replace(settings, max_shift=1, pad="reflect"))


def test_shared_view_uses_scale_2_for_camera_on_files_only() -> None:
    runs = [
        RunSpec(model="timm:resnet50", data="folder:photos", attacks=("camera",)),
        RunSpec(model="timm:resnet18", data="folder:photos", attacks=("crop",)),
        RunSpec(model="xcit_pico_6_p8.scenes", data="scenes", attacks=("camera",)),
        RunSpec(model="timm:resnet18", data="folder:others", scale=3),
    ]
    assert [spec.scale for spec in with_shared_view(runs)] == [2, 2, 1, 3]


def test_evaluate_with_scale_counts_offsets_in_network_pixels() -> None:
    bench = Bench.make()
    images = torch.randn(6, 3, 2 * SIDE + 8, 2 * SIDE + 8)
    net = aft_models.repair(
        nn.Sequential(nn.AvgPool2d(2), bench.network), "vote:2", input_size=2 * SIDE
    ).eval()
    labels = net(images[:, :, 4:-4, 4:-4]).argmax(1)
    result = shiftbench.evaluate(
        net, images, labels, attack="crop", max_shift=2, view=2 * SIDE, scale=2, consistency=()
    )
    frame = result.to_frame()
    expected = [
        all(
            net(images[i : i + 1, :, 4 + dy : 36 + dy, 4 + dx : 36 + dx]).argmax(1) == labels[i]
            for dy in (-4, -2, 0, 2, 4)
            for dx in (-4, -2, 0, 2, 4)
        )
        for i in range(6)
    ]
    assert frame["crop_failure_radius"].isna().tolist() == expected
