"""Detectors and segmenters on files: sources, growth, shards, verification, reports, mistakes."""

from __future__ import annotations

import json
from dataclasses import replace
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
from shiftbench.models import load_model
from shiftbench.records.compare import compare
from shiftbench.records.folder import load_record
from shiftbench.records.verify import contradictions
from shiftbench.running.job import Settings
from shiftbench.running.runner import Execution, RunResult, run
from shiftbench.running.shards import Shard
from shiftbench.tables import BOX, Tables, merged, read_tables, to_parquet

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


def test_tables_with_parts_round_trip_and_merge(tmp_path: Path) -> None:
    record = measured("detector", f"yolo:{cases.write_yolo(tmp_path / 's')}", tmp_path / "r").record
    assert record is not None
    tables = record.tables
    file = tmp_path / "x.parquet"
    file.write_bytes(to_parquet(tables, {"a": 1}))
    back, _ = read_tables(file)
    halves = [back.take(back.keys[:1]), back.take(back.keys[1:])]
    for other in (back, merged(halves), merged([back, *halves])):
        assert to_parquet(other, {}) == to_parquet(tables, {})
    assert isinstance(back, Tables)
    assert back.array(BOX).shape[1] == 4
    assert back.predictions() == record.forward_passes


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


def test_two_tasks_in_one_table_raise(tmp_path: Path) -> None:
    place = cases.write_masks(cases.write_yolo(tmp_path / "set").parent / "masks")
    (tmp_path / "masks").rename(tmp_path / "other")
    (tmp_path / "set").rename(tmp_path / "boxes")
    (tmp_path / "other").rename(tmp_path / "set")
    assert place
    name = f"mine={cases.NETWORKS}"
    run(f"{name}:segmenter", f"masks:{tmp_path / 'set'}", SETTINGS, tmp_path / "runs")
    (tmp_path / "set").rename(tmp_path / "other")
    (tmp_path / "boxes").rename(tmp_path / "set")
    with pytest.raises(RecordError, match="task was segmentation, is detection"):
        run(f"{name}:detector", f"yolo:{tmp_path / 'set'}", SETTINGS, tmp_path / "runs")


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


# --- remedies


def textured(seed: int) -> torch.Tensor:
    """Draw a smooth texture with contrast along both axes: (3, 72, 96)."""
    noise = torch.rand(1, 3, 72, 96, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.avg_pool2d(noise, 7, 1, 3)[0]


def brightest(images: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """Return a box around the brightest pixel of each image, which moves with the content."""
    found = []
    for image in images:
        y, x = divmod(int(image.sum(0).argmax()), image.shape[-1])
        box = torch.tensor([[x - 4.0, y - 4.0, x + 5.0, y + 5.0]])
        found.append({"boxes": box, "labels": torch.tensor([0]), "scores": torch.tensor([0.9])})
    return found


def test_align_moves_boxes_back_by_its_offset(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for seed in range(6):
        image = textured(seed)
        image[:, 34:38, 44:48] = 1.0  # the brightest place, far from every border
        array = (255 * image).byte().permute(1, 2, 0).numpy()
        Image.fromarray(array).save(tmp_path / "set" / f"{seed}.png")
    file = tmp_path / "net.py"
    file.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_runs import brightest\n"
        "def build():\n"
        "    facts = {'input_size': 96, 'mean': 0.0, 'std': 1.0, 'interpolation': 'bilinear'}\n"
        "    return brightest, {**facts, 'class_names': ['spot']}\n"
    )
    for model in ("", "+align:4:1"):
        record = run(
            f"{file}:build{model}",
            f"folder:{tmp_path / 'set'}",
            replace(SETTINGS, remedy_margin=4),
            tmp_path / "runs",
        ).record
        assert record is not None
        assert record.score("detected_crop").value == 1
        assert record.score("detected_crop").n == 6


def test_remedy_that_moves_no_boxes_raises(tmp_path: Path) -> None:
    data = f"yolo:{cases.write_yolo(tmp_path / 'set')}"
    with pytest.raises(ShiftbenchError, match="expected logits"):
        measured("detector+vote:3", data, tmp_path / "runs")
