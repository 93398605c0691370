"""Detectors and segmenters on files: sources, growth, shards, verification, reports, mistakes."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import part_cases as cases
import pytest
import torch
from command_line import shiftbench as shell
from PIL import Image

import shiftbench
from shiftbench.data import load_dataset
from shiftbench.errors import DataError, ModelError, RecordError, ShiftbenchError, UsageError
from shiftbench.grid import Grid
from shiftbench.metrics.base import View
from shiftbench.models import load_model
from shiftbench.records.compare import compare
from shiftbench.records.folder import load_record
from shiftbench.records.verify import contradictions
from shiftbench.running.job import Settings, make_job
from shiftbench.running.runner import (
    Execution,
    RunResult,
    image_batch,
    load_ahead,
    make_predictor,
    predict_missing,
    run,
)
from shiftbench.running.shards import Shard
from shiftbench.tables import BOX, NO_PHASE, PROBABILITY, Tables, merged, read_tables, to_parquet

SETTINGS = Settings(attacks=("crop",), max_shift=2)
WRITERS = {"yolo": cases.write_yolo, "coco": cases.write_coco}


def measured(
    model: str, data: str, output: Path, settings: Settings = SETTINGS, **options: Any
) -> RunResult:
    return run(f"{cases.NETWORKS}:{model}", data, settings, output, **options)


def scores_of(result: RunResult) -> dict[str, float]:
    assert result.record is not None
    return {str(name): score.value for name, score in result.record.scores.items()}


# --- sources of data


@pytest.mark.parametrize("source", WRITERS)
@pytest.mark.parametrize("model", ["detector", "centered"])
def test_run_oracle_detector_detects_every_object(source: str, model: str, tmp_path: Path) -> None:
    place = WRITERS[source](tmp_path / "set")
    result = measured(model, f"{source}:{place}", tmp_path / "runs")
    record = result.record
    assert record is not None
    assert set(scores_of(result).values()) == {1.0}
    assert (record.data.images, record.data.rows, record.data.empty) == (4, 4, 1)
    assert record.score("detected_crop").n == 3  # the unit is the image
    assert record.settings["score_threshold"] == 0.5
    assert not contradictions(load_record(record.folder))  # type: ignore[arg-type]


def test_yolo_without_names_counts_by_index(tmp_path: Path) -> None:
    place = cases.write_yolo(tmp_path / "set", names=False)
    for model in ("detector", "unnamed"):
        result = measured(model, f"yolo:{place}", tmp_path / model)
        assert scores_of(result)["detected_crop@2"] == 1


def test_coco_and_yolo_have_equal_boxes_and_no_crowds(tmp_path: Path) -> None:
    first = load_dataset(f"coco:{cases.write_coco(tmp_path / 'coco')}")
    second = load_dataset(f"yolo:{cases.write_yolo(tmp_path / 'yolo')}")
    for index in range(len(first)):
        a, b = first.target(index), second.target(index)
        assert a is not None
        assert b is not None
        np.testing.assert_allclose(a.boxes, b.boxes, atol=1e-9)
        assert a.labels.tolist() == b.labels.tolist()


def test_run_oracle_segmenter_is_correct_at_every_pixel(tmp_path: Path) -> None:
    result = measured(
        "segmenter", f"masks:{cases.write_masks(tmp_path / 'set')}", tmp_path / "runs"
    )
    assert scores_of(result)["segmented_crop@2"] == 1
    assert result.record is not None
    assert result.record.data.rows == 4 * 256


def test_folder_of_images_serves_detectors_without_labels(tmp_path: Path) -> None:
    place = cases.write_images(tmp_path / "set") / "images"
    result = measured("detector", f"folder:{place}", tmp_path / "runs")
    assert result.record is not None
    assert result.record.settings["labels"] == "model"
    assert scores_of(result)["detected_crop@2"] == 1


# --- growth, shards, verification


def equal_records(first: RunResult, second: RunResult) -> bool:
    assert first.record is not None
    assert second.record is not None
    a, b = first.record.tables, second.record.tables
    same = first.record.scores == second.record.scores
    return same and to_parquet(a, {}) == to_parquet(b.take(a.keys), {})


@pytest.mark.parametrize(
    ("model", "source", "write"),
    [("detector", "yolo", cases.write_yolo), ("segmenter", "masks", cases.write_masks)],
)
def test_run_grown_and_sharded_equal_single_run(
    model: str, source: str, write: Any, tmp_path: Path
) -> None:
    data = f"{source}:{write(tmp_path / 'set')}"
    whole = measured(model, data, tmp_path / "whole")
    measured(model, data, tmp_path / "grown", replace(SETTINGS, limit=2))
    grown = measured(model, data, tmp_path / "grown")
    for index in (1, 2):
        sharded = measured(
            model, data, tmp_path / "sharded", execution=Execution(shard=Shard(index, 2))
        )
    assert equal_records(whole, grown)
    assert equal_records(whole, sharded)
    assert measured(model, data, tmp_path / "whole").complete


def test_run_smaller_radius_counts_more_objects(tmp_path: Path) -> None:
    data = f"yolo:{cases.write_yolo(tmp_path / 'set')}"
    both = replace(
        SETTINGS,
        attacks=(
            shiftbench.AttackSpec("crop", max_shift=6),
            shiftbench.AttackSpec("integer", max_shift=1),
        ),
    )
    record = measured("blind", data, tmp_path / "runs", both).record
    assert record is not None
    rows = {r.loaded.name: len(record.cells(r).labels) for r in record.requests if r.loaded}
    assert rows["detected_crop"] < rows["detected_integer"] <= rows["detected"]


def test_verify_predicts_cells_of_parts_again(tmp_path: Path) -> None:
    data = f"yolo:{cases.write_yolo(tmp_path / 'set')}"
    record = measured("detector", data, tmp_path / "runs").record
    assert record is not None
    model = f"{cases.NETWORKS}:detector"
    result = shiftbench.verify(record.folder or "", model=model, data=data, images=4, seed=1)
    assert result.problems == ()
    assert result.cells > 0
    other = shiftbench.verify(
        record.folder or "", model=f"{record.model.name}={cases.NETWORKS}:blind", data=data
    )
    assert other.problems


def test_changed_labels_cannot_continue_a_record(tmp_path: Path) -> None:
    place = cases.write_yolo(tmp_path / "set")
    measured("detector", f"yolo:{place}", tmp_path / "runs")
    (place / "labels" / "a.txt").write_text("1 0.4 0.4 0.2 0.2\n")
    with pytest.raises(RecordError, match=r"disagree on label of 'a\.png'"):
        measured(
            "detector",
            f"yolo:{place}",
            tmp_path / "runs",
            replace(SETTINGS, full_grid=True, metrics=("swing:crop",)),
        )


def test_score_threshold_is_part_of_the_record(tmp_path: Path) -> None:
    data = f"yolo:{cases.write_yolo(tmp_path / 'set')}"
    low = measured("detector", data, tmp_path / "low", replace(SETTINGS, score_threshold=0.95))
    assert scores_of(low)["detected"] == 0
    with pytest.raises(RecordError, match=r"score_threshold was 0.95, is 0.5"):
        measured("detector", data, tmp_path / "low")


def test_swing_is_the_range_of_the_scores_of_an_object() -> None:
    def swinging(images: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        found = cases.oracle_detector(images)
        for one in found:
            one["scores"] = 0.5 + one["boxes"][:, 0] / 100  # moves with the object
        return found

    images, targets = cases.tensors()
    result = shiftbench.evaluate(
        swinging, images, targets, attack="crop", max_shift=2, metrics="swing:crop"
    )
    assert result.score("swing_crop@1").value == pytest.approx(0.02, abs=1e-6)
    assert result.score("swing_crop@2").value == pytest.approx(0.04, abs=1e-6)
    assert result.record.lower_is_better(next(n for n in result.scores if n.family == "swing"))


@pytest.mark.parametrize("labeled", [True, False])
def test_tables_with_parts_round_trip_and_merge(labeled: bool, tmp_path: Path) -> None:
    place = cases.write_yolo(tmp_path / "s")
    data = f"yolo:{place}" if labeled else f"folder:{place / 'images'}"
    record = measured("detector", data, tmp_path / "r").record
    assert record is not None
    tables = record.tables
    file = tmp_path / "x.parquet"
    file.write_bytes(to_parquet(tables, {"a": 1}))
    back, _ = read_tables(file)
    halves = [back.take(back.keys[:1]), back.take(back.keys[1:])]
    for other in (back, merged(halves), merged([back, *halves])):
        assert to_parquet(other, {}) == to_parquet(tables, {})
    assert isinstance(back, Tables)
    assert (BOX in back.arrays) != labeled  # boxes of the data are no part of a record
    assert back.predictions() == record.forward_passes


@pytest.mark.parametrize(
    ("model", "source", "write"),
    [("detector", "yolo", cases.write_yolo), ("segmenter", "masks", cases.write_masks)],
)
def test_records_of_labeled_data_contain_no_position(
    model: str, source: str, write: Any, tmp_path: Path
) -> None:
    record = measured(model, f"{source}:{write(tmp_path / 'set')}", tmp_path / "r").record
    assert record is not None
    numbers = {n for n, a in record.tables.arrays.items() if np.issubdtype(a.dtype, np.floating)}
    assert all(name.endswith(PROBABILITY) for name in numbers)


# --- reports


def test_reports_show_scores_of_detectors(tmp_path: Path) -> None:
    data = f"yolo:{cases.write_yolo(tmp_path / 'set')}"
    runs = tmp_path / "runs"
    for model in ("detector", "blind"):
        measured(model, data, runs, replace(SETTINGS, full_grid=True))
    first, second = (load_record(folder) for folder in sorted(runs.iterdir()))
    differences, _ = compare(first, [second])
    gains = {str(d.name): d.test.difference for d in differences}
    assert gains["detected"] == gains["detected_crop@2"] == 1
    for ending in ("md", "tex", "html", "csv"):
        output = tmp_path / f"board.{ending}"
        shell("leaderboard", runs, "-o", output, "--sort", "detected_crop", code=0)
        assert "detected" in output.read_text()
    for picture in (
        ["-o", str(tmp_path / "c.png")],
        ["--kind", "overview", "-o", str(tmp_path / "o.png")],
    ):
        shell("plot", runs, *picture, code=0)
    assert (tmp_path / "c.png").stat().st_size > 1000


def test_run_command_prints_detection_and_fails_below_a_limit(tmp_path: Path) -> None:
    data = f"yolo:{cases.write_yolo(tmp_path / 'set')}"
    words = ["run", "-m", f"{cases.NETWORKS}:blind", "-d", data, "-a", "crop", "--max-shift", "2"]
    done = shell(*words, "-o", str(tmp_path / "r"), "--fail-below", "detected_crop=0.6", code=3)
    assert "detected" in done.out
    assert "1 images without objects" in done.err
    assert "detected_crop@2 is 0.0000, below 0.6" in done.err


def test_run_command_prints_average_precision(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    data = f"coco:{cases.write_coco(tmp_path / 'set')}"
    words = [
        "run",
        "-m",
        f"{cases.NETWORKS}:detector",
        "-d",
        data,
        "-a",
        "crop",
        "--max-shift",
        "1",
    ]
    done = shell(*words, "-o", str(tmp_path / "r"), "--ap")
    assert "AP 90.0, 90.0 to 90.0 over the offsets (not ranked)" in done.err


def test_show_draws_objects_by_how_often_they_are_detected(tmp_path: Path) -> None:
    place = cases.write_yolo(tmp_path / "set")
    picture = str(place / "images" / "a.png")
    for model, words in (("detector", "2 always, 0 sometimes, 0 never"), ("blind", "2 never")):
        done = shell(
            *("show", picture, "-m", f"{cases.NETWORKS}:{model}", "-d", f"yolo:{place}"),
            *("-o", str(tmp_path / f"{model}.png")),
        )
        assert words in done.err
    Image.open(tmp_path / "detector.png").verify()


def test_show_image_without_whole_objects_raises(tmp_path: Path) -> None:
    place = cases.write_yolo(tmp_path / "set")
    picture = str(place / "images" / "d.png")
    words = ["-m", f"{cases.NETWORKS}:detector", "-d", f"yolo:{place}"]
    done = shell("show", picture, *words, "-o", str(tmp_path / "x.png"), code=1)
    assert "expected objects that are whole in every view up to 3 px, got none in d.png" in done.err


# --- sources of models


def test_torchvision_detector_and_segmenter_have_their_tasks() -> None:
    options = "pretrained=false,input_size=64"
    detector = load_model(f"tv:ssdlite320_mobilenet_v3_large,{options}")
    assert (detector.task.name, detector.preprocessing.size) == ("detection", 64)
    segmenter = load_model(f"tv:lraspp_mobilenet_v3_large,{options}")
    assert (segmenter.task.name, segmenter.num_classes) == ("segmentation", 21)


def test_torchvision_detector_does_not_resize_square_images() -> None:
    model = load_model("tv:fasterrcnn_mobilenet_v3_large_320_fpn,pretrained=false,input_size=96")
    images = torch.rand(1, 3, 96, 96)
    resized, _ = model.network.network.transform(list(images))  # type: ignore[union-attr]
    assert resized.image_sizes == [(96, 96)]


def test_transformers_detector_and_segmenter_have_their_tasks(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    labels = {"id2label": {0: "cat", 1: "dog"}, "label2id": {"cat": 0, "dog": 1}}
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    yolos = transformers.YolosConfig(
        **small, intermediate_size=16, image_size=[32, 32], num_detection_tokens=5, **labels
    )
    transformers.YolosForObjectDetection(yolos).save_pretrained(tmp_path / "yolos")
    processor = {"size": {"shortest_edge": 24, "longest_edge": 64}, "image_mean": [0.5] * 3}
    content = {**processor, "image_std": [0.25] * 3, "image_processor_type": "YolosImageProcessor"}
    (tmp_path / "yolos" / "preprocessor_config.json").write_text(json.dumps(content))
    model = load_model(f"hf:{tmp_path / 'yolos'}")
    assert (model.task.name, model.class_names) == ("detection", ("cat", "dog"))
    assert (model.preprocessing.size, model.preprocessing.mean[0]) == (32, 0.5)
    output = model(torch.rand(2, 3, 32, 32))
    assert len(output) == 2
    assert output[0].boxes.shape == (5, 4)
    config = transformers.SegformerConfig(
        hidden_sizes=[8, 8, 8, 8], depths=[1] * 4, num_attention_heads=[1] * 4,
        decoder_hidden_size=8, **labels,
    )  # fmt: skip
    transformers.SegformerForSemanticSegmentation(config).save_pretrained(tmp_path / "segformer")
    segmenter = load_model(f"hf:{tmp_path / 'segformer'},input_size=64")
    assert (segmenter.task.name, segmenter.num_classes) == ("segmentation", 2)


# --- mistakes


def changed_coco(**entry: Any) -> dict[str, Any]:
    content = cases.coco_content()
    content["annotations"][0] |= entry
    return content


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"bbox": [10, 12, 0, 18]}, "expected boxes with an area in instances.json .a.png."),
        ({"bbox": [60, 12, 16, 18]}, "expected boxes inside the image in instances.json .a.png."),
        ({"category_id": 99}, "got category 99 in a.png. Add it to `categories`"),
    ],
)
def test_coco_bad_object_raises(entry: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = cases.write_coco(tmp_path / "set", changed_coco(**entry))
    with pytest.raises(DataError, match=words):
        load_dataset(f"coco:{file}")


def test_classes_that_the_model_lacks_raise(tmp_path: Path) -> None:
    content = cases.coco_content()
    content["categories"][0]["name"] = "violet"
    file = cases.write_coco(tmp_path / "set", content)
    with pytest.raises(UsageError, match=r"'violet' of .* is not one class of the model"):
        measured("detector", f"coco:{file}", tmp_path / "runs")


def test_yolo_bad_label_line_raises(tmp_path: Path) -> None:
    place = cases.write_yolo(tmp_path / "set")
    (place / "labels" / "a.txt").write_text("cat 0.5 0.5 0.1 0.1\n")
    with pytest.raises(DataError, match="expected lines `class cx cy w h`"):
        load_dataset(f"yolo:{place}")


def test_mask_of_another_size_raises(tmp_path: Path) -> None:
    place = cases.write_masks(tmp_path / "set")
    Image.new("L", (9, 9)).save(place / "masks" / "a.png")
    with pytest.raises(DataError, match=r"expected a mask of 64 x 48 pixels for a\.png, got 9 x 9"):
        measured("segmenter", f"masks:{place}", tmp_path / "runs")


def test_mask_of_colors_raises(tmp_path: Path) -> None:
    place = cases.write_masks(tmp_path / "set")
    Image.new("RGB", (64, 48)).save(place / "masks" / "a.png")
    with pytest.raises(DataError, match="expected a mask of class indices"):
        measured("segmenter", f"masks:{place}", tmp_path / "runs")


@pytest.mark.parametrize("attack", ["half", "bilinear"])
def test_attack_of_fractions_raises_by_name(attack: str, tmp_path: Path) -> None:
    data = f"yolo:{cases.write_yolo(tmp_path / 'set')}"
    with pytest.raises(UsageError, match=f"crop or integer., got '{attack}'"):
        measured("detector", data, tmp_path / "runs", Settings(attacks=(attack,)))


@pytest.mark.parametrize("metric", ["flip", "agreement:3", "consistency:crop", "segmented:crop"])
def test_metric_without_meaning_for_detection_raises(metric: str, tmp_path: Path) -> None:
    data = f"yolo:{cases.write_yolo(tmp_path / 'set')}"
    with pytest.raises(UsageError, match="is not defined for detection"):
        measured("detector", data, tmp_path / "runs", replace(SETTINGS, metrics=(metric,)))


def test_metric_of_objects_raises_for_classifiers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'detected' is of objects and pixels"):
        run("xcit_pico_6_p8.scenes", "scenes", Settings(metrics=("detected:crop",)), tmp_path)


def test_data_of_another_task_raises(tmp_path: Path) -> None:
    masks = f"masks:{cases.write_masks(tmp_path / 'masks')}"
    with pytest.raises(
        UsageError, match="expected data for detection, got labels for segmentation"
    ):
        measured("detector", masks, tmp_path / "runs")
    with pytest.raises(UsageError, match="expected a class for each image, got none"):
        run("xcit_pico_6_p8.scenes", masks, SETTINGS, tmp_path / "runs")


@pytest.mark.parametrize("models", [("detector", "segmenter"), ("segmenter", "detector")])
def test_run_second_task_on_same_images_is_error_and_first_is_kept(
    models: tuple[str, str], tmp_path: Path
) -> None:
    place = cases.write_images(tmp_path / "set") / "images"
    words = [word for name in models for word in ("-m", f"{name}={cases.NETWORKS}:{name}")]
    output = tmp_path / "r"
    done = shell(
        "run",
        *words,
        "-d",
        f"folder:{place}",
        "-a",
        "crop",
        "--max-shift",
        "1",
        "-o",
        str(output),
        code=1,
    )
    tasks = {"detector": "detection", "segmenter": "segmentation"}
    first, second = models
    assert (
        f"got {first} for {tasks[first]} and {second} for {tasks[second]}. Use a command for each"
    ) in done.err
    (folder,) = output.iterdir()
    assert folder.name.startswith(first)
    assert first in done.out
    assert second not in done.out


def test_run_classifier_and_detector_raises(tmp_path: Path) -> None:
    place = tmp_path / "set"
    for label in ("0", "1"):
        cases.write_images(place / label)
    words = ["-m", f"{cases.NETWORKS}:classifier", "-m", f"{cases.NETWORKS}:detector"]
    words += ["-a", "none", "-d", f"folder:{place}"]
    done = shell("run", *words, "-o", str(tmp_path / "r"), code=1)
    assert "for classification and" in done.err


def test_record_of_another_task_cannot_continue(tmp_path: Path) -> None:
    name = f"mine={cases.NETWORKS}"
    for source, write in (("masks", cases.write_masks), ("yolo", cases.write_yolo)):
        write(tmp_path / source / "set")
    data = {source: f"{source}:{tmp_path / source / 'set'}" for source in ("masks", "yolo")}
    run(f"{name}:segmenter", data["masks"], SETTINGS, tmp_path / "runs")
    with pytest.raises(RecordError, match="task was segmentation, is detection"):
        run(f"{name}:detector", data["yolo"], SETTINGS, tmp_path / "runs")


def test_reports_of_two_tasks_have_a_table_each(tmp_path: Path) -> None:
    boxes, masks = cases.write_yolo(tmp_path / "a"), cases.write_masks(tmp_path / "b")
    measured("detector", f"yolo:{boxes}", tmp_path / "r")
    measured("segmenter", f"masks:{masks}", tmp_path / "r")
    done = shell("leaderboard", tmp_path / "r", code=0)
    assert "task detection" in done.out
    assert "task segmentation" in done.out
    folders = [str(folder) for folder in sorted((tmp_path / "r").iterdir())]
    done = shell("compare", *folders, code=2)
    assert "task is detection and segmentation" in done.err


def test_compare_of_two_tasks_raises(tmp_path: Path) -> None:
    boxes, masks = cases.write_yolo(tmp_path / "a"), cases.write_masks(tmp_path / "b")
    first = measured("detector", f"yolo:{boxes}", tmp_path / "r").record
    second = measured("segmenter", f"masks:{masks}", tmp_path / "r").record
    assert first is not None
    assert second is not None
    with pytest.raises(UsageError, match="task is detection and segmentation"):
        compare(first, [second])


def test_grid_without_whole_objects_raises(tmp_path: Path) -> None:
    data = f"yolo:{cases.write_yolo(tmp_path / 'set')}"
    with pytest.raises(DataError, match="expected objects that are whole in every view up to 15"):
        measured("detector", data, tmp_path / "runs", Settings(attacks=("crop",), max_shift=15))


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ([{"boxes": torch.zeros(1, 4)}], "got no labels"),
        ([{"boxes": torch.zeros(1, 3), "labels": [1], "scores": torch.ones(1)}], "expected boxes"),
        ([], "expected detections of"),
        ([{"boxes": torch.full((1, 4), torch.nan), "labels": [1], "scores": [0.9]}], "finite"),
    ],
)
def test_detector_with_wrong_output_raises(output: Any, words: str) -> None:
    images, targets = cases.tensors()
    many = output[:1]

    def wrong(batch: torch.Tensor) -> Any:
        return many * len(batch) if output else [{"boxes": torch.zeros(0, 4)}] * (len(batch) + 1)

    with pytest.raises(ModelError, match=words):
        shiftbench.evaluate(wrong, images, targets, attack="crop", max_shift=1)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"boxes": [[5, 5, 5, 9]], "labels": [0]}, "inside image 0"),
        ({"boxes": [[5, 5, 99, 9]], "labels": [0]}, "inside image 0"),
        ({"boxes": [[5, 5, 9, 9]], "labels": []}, "1 boxes and 0 labels"),
        ({"labels": [0]}, "expected boxes and labels"),
    ],
)
def test_evaluate_bad_target_raises(target: Any, words: str) -> None:
    images, targets = cases.tensors()
    with pytest.raises(ShiftbenchError, match=words):
        shiftbench.evaluate(cases.oracle_detector, images, [target, *targets[1:]], max_shift=1)


# --- scale and remedies

HALF = Settings(attacks=("crop:1/2",), max_shift=2, full_grid=True, remedy_margin=4, scale=2)
SPOTS = 3  # images with a spot


def spot_network(folder: Path) -> str:
    """Write images with a bright spot, and a detector of the spot; return the name of the latter.

    Images have as many pixels as the canvas at scale 2, with the spot at a distance from every
    border.
    """
    (folder / "set").mkdir()
    for seed in range(SPOTS):
        image = textured(seed)
        image[:, 94:134, 112:152] = 0.0
        image[:, 110:118, 128:136] = 1.0
        array = (255 * image).byte().permute(1, 2, 0).numpy()
        Image.fromarray(array).save(folder / "set" / f"{seed}.png")
    file = folder / "net.py"
    file.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_runs import spot\n"
        "def build():\n"
        "    facts = {'input_size': 126, 'mean': 0.0, 'std': 1.0, 'interpolation': 'bilinear'}\n"
        "    return spot, {**facts, 'class_names': ['spot'], 'fill': 20}\n"
    )
    return f"{file}:build"


def textured(seed: int) -> torch.Tensor:
    """Draw a smooth texture with contrast along both axes: (3, 216, 272)."""
    noise = torch.rand(1, 3, 216, 272, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.avg_pool2d(noise, 15, 1, 7)[0]


def spot(images: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """Return a box around the center of the spot, at fractions of a pixel."""
    found = []
    for image in images:
        gray = image.mean(0)
        y, x = divmod(int(gray[5:-5, 5:-5].argmax()), image.shape[2] - 10)
        y, x = y + 5, x + 5
        near = gray[y - 5 : y + 6, x - 5 : x + 6]  # the spot is in a black square
        steps = torch.arange(-4.5, 6.5)
        y, x = ((near.sum(axis) * steps).sum() / near.sum() + at for axis, at in ((1, y), (0, x)))
        box = torch.tensor([[x - 6, y - 6, x + 6, y + 6]])
        found.append({"boxes": box, "labels": torch.tensor([0]), "scores": torch.tensor([0.9])})
    return found


@pytest.mark.parametrize(
    ("remedy", "settings"),
    [
        ("", replace(SETTINGS, remedy_margin=4)),
        ("+align:4:1", SETTINGS),
        ("+align:4:1", replace(HALF, remedy_margin=0)),
        ("+align:3:1", replace(SETTINGS, remedy_margin=4)),
        ("", HALF),
        ("+align:4", HALF),
        ("+align:3", HALF),
    ],
)
def test_detector_behind_align_finds_objects_at_every_offset(
    remedy: str, settings: Settings, tmp_path: Path
) -> None:
    network = spot_network(tmp_path)
    record = run(
        f"{network}{remedy}", f"folder:{tmp_path / 'set'}", settings, tmp_path / "r"
    ).record
    assert record is not None
    name = "detected_crop" + "[1/2]" * (settings.attacks == HALF.attacks)
    assert record.score(name).value == 1
    assert record.score(name).n == SPOTS
    assert record.data.geometry.get("scale", 1) == (settings.scale or 1)
    assert record.data.no_phase == 0
    assert not contradictions(load_record(record.folder))  # type: ignore[arg-type]


@pytest.mark.parametrize("remedy", ["", "+align:4", "+align:4:1"])
def test_boxes_at_scale_2_are_moved_back_by_the_offset_of_window_and_crop(
    remedy: str, tmp_path: Path
) -> None:
    name = spot_network(tmp_path)
    job = make_job(load_model(f"{name}{remedy}"), load_dataset(f"folder:{tmp_path / 'set'}"), HALF)
    predictor = make_predictor(job, torch.device("cpu"), 4)
    (canvases,) = load_ahead(job, job.keys, SPOTS, job.images(), workers=0)
    batch, offsets = image_batch(job, canvases, predictor), Grid(2, Fraction(1, 2))
    assert job.geometry.side == 2 * (126 + 2 * (1 + 4)) == 272
    chosen = set()
    for row in range(SPOTS):
        views = [View("crop", offset) for offset in offsets]
        for output, moved in batch.outputs([row] * len(views), views):
            box = output.boxes.numpy() + np.array([moved.dx, moved.dy] * 2)
            x1, y1, x2, y2 = batch.seen(row).frame.from_view(box)[0]  # type: ignore[union-attr]
            # The center of the spot in network pixels.
            assert ((x1 + x2) / 2, (y1 + y2) / 2) == pytest.approx((66, 57), abs=0.01)
            chosen |= {moved.dy, moved.dx}
    assert any(d % 0.5 for d in chosen) == (remedy == "+align:4")  # others use integer shifts


@pytest.mark.parametrize("remedy", ["", "+align:4"])
def test_oracle_detector_at_scale_2_detects_every_object(remedy: str, tmp_path: Path) -> None:
    place = cases.write_yolo(tmp_path / "set", factor=2)
    model = f"{cases.NETWORKS}:finer{remedy}"
    settings = Settings(attacks=("crop:1/2",), max_shift=2, full_grid=True, scale=2)
    found = run(model, f"yolo:{place}", replace(settings, remedy_margin=4), tmp_path / "r").record
    assert found is not None
    assert found.score("detected_crop[1/2]@2").value == 1
    assert found.score("detected").value == 1


@pytest.mark.parametrize("remedy", ["", "+align:4"])
def test_blind_detector_at_scale_2_detects_nothing(remedy: str, tmp_path: Path) -> None:
    data = f"yolo:{cases.write_yolo(tmp_path / 'set')}"
    settings = replace(SETTINGS, attacks=("crop:1/2",), scale=2)
    result = run(f"{cases.NETWORKS}:blind_finer{remedy}", data, settings, tmp_path / "r")
    assert set(scores_of(result).values()) == {0.0}


def test_half_pixel_crops_of_detectors_need_scale_2(tmp_path: Path) -> None:
    data = f"yolo:{cases.write_yolo(tmp_path / 'set')}"
    with pytest.raises(UsageError, match=r"got 1/2 px at scale 1\. Use --scale 2"):
        measured("detector", data, tmp_path / "r", Settings(attacks=("crop:1/2",)))


def test_images_enlarged_at_scale_2_are_counted(tmp_path: Path) -> None:
    data = f"yolo:{cases.write_yolo(tmp_path / 'set')}"
    record = measured("blind_finer", data, tmp_path / "r", replace(SETTINGS, scale=2)).record
    assert record is not None
    assert record.data.enlarged == 4
    assert "4 of 4 images enlarged" in record.data.geometry_text


def test_images_without_phase_are_counted_for_detectors(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for name, level in (("a", 90), ("b", 90)):
        Image.new("RGB", (96, 80), (level,) * 3).save(tmp_path / "set" / f"{name}.png")
    Image.fromarray((255 * textured(0)).byte().permute(1, 2, 0).numpy()).save(
        tmp_path / "set/c.png"
    )
    job = make_job(
        load_model(f"{cases.NETWORKS}:finer+align:4"),
        load_dataset(f"folder:{tmp_path / 'set'}"),
        SETTINGS,
    )
    tables = job.images()
    for _ in predict_missing(job, job.keys, tables, Execution(workers=0)):
        pass
    assert tables.column(NO_PHASE)[tables.rows(["a.png", "b.png", "c.png"])].tolist() == [1, 1, 0]


def test_scale_below_that_of_the_remedy_raises(tmp_path: Path) -> None:
    data = f"yolo:{cases.write_yolo(tmp_path / 'set')}"
    with pytest.raises(UsageError, match="or align:4:1 for scale 1"):
        measured("finer+align:4", data, tmp_path / "r", replace(SETTINGS, scale=1))


def test_models_with_and_without_align_share_scale_and_canvas(tmp_path: Path) -> None:
    name = spot_network(tmp_path)
    words = [
        "run",
        "-m",
        f"a={name}",
        "-m",
        f"b={name}+align:4",
        "-d",
        f"folder:{tmp_path / 'set'}",
    ]
    shell(*words, "-a", "crop:1/2", "--max-shift", "2", "-o", str(tmp_path / "r"), code=0)
    first, second = (load_record(folder) for folder in sorted((tmp_path / "r").iterdir()))
    assert first.data.geometry == second.data.geometry
    assert first.data.geometry["scale"] == 2


def test_evaluate_detector_with_align_detects_at_every_offset(tmp_path: Path) -> None:
    model = load_model(f"{spot_network(tmp_path)}+align:4")
    images = torch.stack(
        [
            torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) / 255
            for file in sorted((tmp_path / "set").iterdir())
        ]
    )
    result = shiftbench.evaluate(model, images, scale=2, attack="crop", max_shift=2)
    assert result.score("detected_crop").value == 1
    target = {"boxes": [[120, 102, 144, 126]], "labels": [0]}  # in pixels of the images
    result = shiftbench.evaluate(
        model, images, [target] * SPOTS, scale=2, attack="crop", max_shift=2
    )
    assert result.score("detected_crop").value == 1
    with pytest.raises(UsageError, match="Pass scale=2"):
        shiftbench.evaluate(model, images, attack="crop", max_shift=2)


def test_remedy_that_moves_no_boxes_raises(tmp_path: Path) -> None:
    data = f"yolo:{cases.write_yolo(tmp_path / 'set')}"
    with pytest.raises(ShiftbenchError, match="expected logits"):
        measured("detector+vote:3", data, tmp_path / "runs")
