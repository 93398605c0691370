"""Properties of every task: oracles, constants, rows, and equal cells on every path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import part_cases as cases
import pytest
import torch
from torch import Tensor

import shiftbench
from shiftbench.grid import ORIGIN, Offset
from shiftbench.tables import Cells, Parts
from shiftbench.tasks import TASKS, Seen, Target, task_of
from shiftbench.tasks.classification import CLASSIFICATION
from shiftbench.tasks.detection import DETECTION, box_ious, match
from shiftbench.tasks.frames import Frame
from shiftbench.tasks.segmentation import PIXELS, SEGMENTATION

IMAGES, TARGETS = cases.tensors()
# Of each task: an oracle, a model that ignores the image, and labels of three images.
CASES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Any], Any]] = {
    "classification": (cases.oracle_classifier, cases.constant_classifier, [0, 2, 1]),
    "detection": (cases.oracle_detector, cases.blind_detector, TARGETS[:3]),
    "segmentation": (cases.oracle_segmenter, cases.constant_segmenter, cases.masks()[:3]),
}
every_task = pytest.mark.parametrize("name", list(TASKS))


def evaluated(name: str, model: Callable[[Tensor], Any], **options: Any) -> shiftbench.Evaluation:
    options = {"attack": "crop", "max_shift": 2, "consistency": (), **options}
    return shiftbench.evaluate(model, IMAGES[:3], CASES[name][2], **options)


def test_every_task_has_a_case() -> None:
    assert set(CASES) == set(TASKS)


@every_task
def test_task_recognizes_output_of_its_models(name: str) -> None:
    for model in CASES[name][:2]:
        assert task_of(model(IMAGES)).name == name


@every_task
@pytest.mark.parametrize("attack", ["crop", "integer"])
def test_oracle_retains_everything_under_every_shift(name: str, attack: str) -> None:
    view = {"view": (cases.HEIGHT - 8, cases.WIDTH - 8)} if name == "classification" else {}
    result = evaluated(name, CASES[name][0], attack=attack, full_grid=True, **view)
    assert result.accuracy.value == 1
    assert result.adversarial_accuracy().value == 1


@every_task
def test_constant_model_scores_do_not_change(name: str) -> None:
    result = evaluated(name, CASES[name][1])
    assert result.accuracy.value == result.adversarial_accuracy().value < 1


def test_blind_detector_detects_nothing_and_needs_one_pass_per_image() -> None:
    result = evaluated("detection", cases.blind_detector)
    assert result.score("detected").value == result.score("detected_crop").value == 0
    assert result.forward_passes == 3


@every_task
def test_scores_do_not_depend_on_batch_size(name: str) -> None:
    first, second = (evaluated(name, CASES[name][0], batch_size=b).scores for b in (1, 3))
    assert first == second


@every_task
def test_forward_passes_are_counted_per_image(name: str) -> None:
    seen = 0

    def counting(images: Tensor) -> Any:
        nonlocal seen
        seen += len(images)
        return CASES[name][0](images)

    result = evaluated(name, counting, full_grid=True, batch_size=1)
    assert result.forward_passes == 3 * 25
    assert seen <= result.forward_passes + 6  # the first image is compared alone and in a batch


def test_classification_fill_equals_argmax_and_softmax() -> None:
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    cells = Cells(np.full((5, 3), -1, np.int16), np.full((5, 3), -1, np.float32), np.zeros(5, int))
    rows, columns = np.arange(5), np.zeros(5, np.intp)
    CLASSIFICATION.fill(cells, (rows, columns), logits, [], np.array([0, -1, 0]), 0.0)
    later = logits.flip(0)
    CLASSIFICATION.fill(cells, (rows, columns + 2), later, [], np.array([0, -1, 0]), 0.0)
    best = logits.argmax(1)
    assert cells.classes[:, 0].tolist() == best.tolist()
    assert cells.classes[:, 2].tolist() == later.argmax(1).tolist()
    expected = later.double().softmax(1).gather(1, best[:, None])[:, 0].float()
    assert cells.probabilities[:, 2].tolist() == expected.tolist()
    assert (cells.classes[:, 1] == -1).all()


def test_classification_cells_equal_fill() -> None:
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    cells = Cells(np.full((4, 1), -1, np.int16), np.full((4, 1), -1, np.float32), np.zeros(4, int))
    at = np.arange(4), np.zeros(4, np.intp)
    CLASSIFICATION.fill(cells, at, logits, [], np.array([0]), 0.0)
    frame = Frame(4, 4, 0, (4, 4))
    for row in range(4):
        one = CLASSIFICATION.cells(Seen("", frame), logits[row], ORIGIN)
        assert one.classes[0] == cells.classes[row, 0]
        assert one.scores[0] == pytest.approx(cells.probabilities[row, 0])


def output_of(task: Any, images: Tensor, name: str) -> Any:
    return task.checked(task.read(CASES[name][0](images), images, name), images, name)[0]


@pytest.mark.parametrize("name", ["detection", "segmentation"])
def test_rows_with_labels_do_not_depend_on_the_model(name: str) -> None:
    task = TASKS.get(name)
    target = Target(
        TARGETS[0]["boxes"].numpy(), TARGETS[0]["labels"].numpy(), cases.masks()[0].numpy()
    )
    seen = Seen("key", Frame(cases.HEIGHT, cases.WIDTH, 2, (44, 60)), target, None, 3, 0.5)
    first, second = (
        task.parts(seen, output_of(task, x[:1, :, 2:-2, 2:-2], name), ORIGIN)
        for x in (IMAGES, 1 - IMAGES)
    )
    nothing = task.parts(seen, None, ORIGIN)
    for other in (second, nothing):
        for field in ("numbers", "labels", "whole", "boxes"):
            np.testing.assert_array_equal(getattr(first, field), getattr(other, field))


# --- detection


def slow_match(
    ious: np.ndarray[Any, Any], objects: list[int], labels: list[int], scores: list[float], t: float
) -> list[int]:
    """Match as the definition reads, one detection after the other."""
    found = [-1] * len(objects)
    order = sorted(range(len(labels)), key=lambda d: -scores[d])
    for wanted, same_class in (("strong", True), ("strong", False), ("weak", True)):
        for d in order:
            if d in found or (scores[d] >= t) != (wanted == "strong"):
                continue
            best, chosen = 0.0, -1
            for o in range(len(objects)):
                free = found[o] < 0 and (objects[o] == labels[d] or not same_class)
                if free and ious[o, d] >= 0.5 and ious[o, d] > best:
                    best, chosen = ious[o, d], o
            if chosen >= 0:
                found[chosen] = d
    return found


@pytest.mark.parametrize("seed", range(30))
def test_match_equals_slow_reference(seed: int) -> None:
    random = np.random.default_rng(seed)
    objects, detections = random.integers(0, 9, 2)
    corners = random.uniform(0, 20, (objects, 2))
    first = np.concatenate([corners, corners + random.uniform(5, 12, (objects, 2))], 1)
    second = first[random.integers(0, max(objects, 1), detections)] if objects else np.empty((0, 4))
    second = second + random.normal(0, 0.8, second.shape)
    classes, labels = random.integers(0, 3, len(first)), random.integers(0, 3, len(second))
    scores = random.uniform(0, 1, len(second)).round(1)  # with ties
    ious = box_ious(first, second)
    expected = slow_match(ious, classes.tolist(), labels.tolist(), scores.tolist(), 0.4)
    assert match(ious, classes, labels, scores, 0.4).tolist() == expected


def test_box_ious_equal_torchvision() -> None:
    from torchvision.ops import box_iou

    random = torch.Generator().manual_seed(0)
    corners = torch.rand(6, 2, generator=random)
    boxes = torch.cat([corners, corners + torch.rand(6, 2, generator=random)], 1)
    np.testing.assert_allclose(
        box_ious(boxes.numpy(), boxes.numpy()), box_iou(boxes, boxes), atol=1e-6
    )


def detections(boxes: list[list[float]], labels: list[int], scores: list[float]) -> Any:
    output = [{"boxes": torch.tensor(boxes), "labels": labels, "scores": torch.tensor(scores)}]
    images = torch.zeros(1, 3, 8, 8)
    return DETECTION.checked(DETECTION.read(output, images, "x"), images, "x")[0]


def seen_objects(boxes: list[list[float]], labels: list[int]) -> Seen:
    frame = Frame(40, 40, 2, (36, 36))
    table = np.array(boxes, np.float32)
    parts = Parts(np.arange(1, len(labels) + 1), np.array(labels), np.full(len(labels), 2), table)
    return Seen("key", frame, None, parts, 3, 0.5)


def test_detection_cells_move_detections_back_by_the_offset() -> None:
    seen = seen_objects([[12, 12, 22, 22]], [1])
    for offset in (ORIGIN, Offset(2.0, -1.0), Offset(-2.0, 2.0)):
        box = [10 - offset.dx, 10 - offset.dy, 20 - offset.dx, 20 - offset.dy]
        cell = DETECTION.cells(seen, detections([box], [1], [0.8]), offset)
        assert (cell.classes[0], cell.scores[0]) == (1, pytest.approx(0.8))


@pytest.mark.parametrize(
    ("label", "score", "expected"),
    [(1, 0.8, (1, 0.8)), (2, 0.8, (2, 0.8)), (1, 0.3, (3, 0.3)), (2, 0.3, (3, 0.0))],
)
def test_detection_cell_class_and_score(
    label: int, score: float, expected: tuple[int, float]
) -> None:
    output = detections([[10, 10, 20, 20]], [label], [score])
    cell = DETECTION.cells(seen_objects([[12, 12, 22, 22]], [1]), output, ORIGIN)
    assert (cell.classes[0], cell.scores[0]) == (expected[0], pytest.approx(expected[1]))


def test_detection_near_threshold_is_a_near_tie() -> None:
    seen = seen_objects([[12, 12, 22, 22]], [1])
    scores = (0.5 + 1e-7, 0.6)
    ties = [
        DETECTION.cells(seen, detections([[10, 10, 20, 20]], [1], [s]), ORIGIN).ties for s in scores
    ]
    assert [bool(tie[0]) for tie in ties] == [True, False]


def test_object_cut_by_the_border_is_no_row_of_wider_grids() -> None:
    frame = Frame(40, 60, 3, (34, 54))  # the window begins at 3
    boxes = frame.in_view(
        np.array([[5, 10, 20, 20], [3, 10, 20, 20], [1, 10, 20, 20], [10, 8, 20, 30]])
    )
    assert frame.whole(boxes).tolist() == [2, 0, -1, 5]


def test_detection_without_labels_has_rows_of_the_unshifted_detections() -> None:
    result = shiftbench.evaluate(cases.oracle_detector, IMAGES, None, attack="crop", max_shift=2)
    frame = result.to_frame()
    assert result.record.settings["labels"] == "model"
    assert (frame["label"] == frame["prediction"]).all()
    assert result.score("detected_crop").value == 1
    assert result.record.data.empty == 1


# --- segmentation


def test_segmentation_pixels_are_distinct_and_follow_from_the_key() -> None:
    frame = Frame(cases.HEIGHT, cases.WIDTH, 3, (42, 58))
    target = Target(np.empty((0, 4)), np.empty(0, np.int64), cases.masks()[0].numpy())
    first, again, other = (SEGMENTATION.parts(Seen(k, frame, target), None, ORIGIN) for k in "aab")
    assert len(first.labels) == PIXELS == len(np.unique(first.boxes, axis=0))
    assert first.boxes.tolist() == again.boxes.tolist() != other.boxes.tolist()
    assert first.boxes.min() >= 6  # every view up to 3 px contains them
    x, y = first.boxes[:, :2].astype(int).T
    assert (cases.masks()[0].numpy()[y, x] == first.labels).all()


def test_segmentation_leaves_ignored_pixels_out() -> None:
    frame = Frame(cases.HEIGHT, cases.WIDTH, 0, (48, 64))
    mask = cases.masks()[0].numpy().copy()
    mask[mask == 0] = -1
    parts = SEGMENTATION.parts(
        Seen("k", frame, Target(np.empty((0, 4)), np.empty(0, int), mask)), None, ORIGIN
    )
    assert parts.labels.min() >= 1


def test_segmentation_map_of_lower_resolution_equals_interpolation() -> None:
    frame = Frame(32, 48, 0, (32, 48))
    maps = torch.randn(3, 8, 12, generator=torch.Generator().manual_seed(0))
    parts = SEGMENTATION.parts(Seen("k", frame, None), maps, ORIGIN)
    cell = SEGMENTATION.cells(Seen("k", frame, None, parts), maps, ORIGIN)
    full = torch.nn.functional.interpolate(maps[None], (32, 48), mode="bilinear")[0].argmax(0)
    x, y = torch.from_numpy(parts.boxes[:, :2]).long().T
    assert cell.classes.tolist() == full[y, x].tolist()
