"""`shiftbench.evaluate`: equal results for every form of images, one line for wrong input."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import PIL.Image
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import shiftbench
from shiftbench.errors import DataError, ModelError, UsageError
from shiftbench.evaluation import Evaluation
from shiftbench.records.compare import compare
from shiftbench.records.folder import load_record, load_records
from shiftbench.records.verify import contradictions
from shiftbench.shifts import ATTACKS, SHIFTS

COUNT, SIZE = 21, 16
PIXEL_ATTACKS = [name for name in ATTACKS if not SHIFTS.get(ATTACKS.get(name).shift).digitizes]


def images() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    color = torch.rand(COUNT, 3, 1, 1, generator=generator)
    return color + 0.3 * torch.rand(COUNT, 3, SIZE, SIZE, generator=generator)


@pytest.fixture(name="model")
def fragile_model() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        network = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2),
            nn.ReLU(),
            nn.BatchNorm2d(6),
            nn.Dropout(0.5),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.Linear(24, 5),
        ).eval()
        # Centered logits: every class is predicted somewhere, and small shifts change the class.
        with torch.no_grad():
            network[-1].bias -= network(images()).mean(0)
        return network


@pytest.fixture(name="labels")
def most_likely(model: nn.Sequential) -> Tensor:
    with torch.no_grad():
        classes: Tensor = model(images()[..., 2:-2, 2:-2]).argmax(1)
        return classes


def frame(model: nn.Sequential, *data: object, **options: object) -> pd.DataFrame:
    result = shiftbench.evaluate(model, *data, **{"max_shift": 2, **options})  # type: ignore[arg-type]
    return result.to_frame()


@pytest.mark.parametrize("attack", PIXEL_ATTACKS)
def test_evaluate_curve_accuracy_and_frame_agree(
    attack: str, model: nn.Sequential, labels: Tensor
) -> None:
    result = shiftbench.evaluate(model, images(), labels, attack=attack, max_shift=3, batch_size=4)
    table, curve = result.to_frame(), result.curve()
    assert result.accuracy == result.adversarial_accuracy(0)
    assert result.accuracy.value == (table.label == table.prediction).mean()
    assert curve.value.is_monotonic_decreasing
    assert curve.max_shift.tolist() == [0, 1, 2, 3]
    radius = table[f"{attack}_failure_radius"]
    for s in range(4):
        unbroken = (radius.isna() | (radius > s)).mean()
        assert result.adversarial_accuracy(s).value == pytest.approx(unbroken)
    assert result.adversarial_accuracy() == result.adversarial_accuracy(3)
    for kind in ("integer", "half"):
        name = f"consistency_{kind}"
        assert result.score(name).value == table[name].mean()
    searches = shiftbench.evaluate(
        model, images(), labels, attack=attack, max_shift=3, consistency=()
    )
    assert result.forward_passes == searches.forward_passes + 2 * COUNT
    assert f"n = {COUNT}" in str(result)


def test_evaluate_every_form_of_images_gives_equal_results(
    model: nn.Sequential, labels: Tensor
) -> None:
    x = images()
    expected = frame(model, x, labels, batch_size=64)
    dataset = TensorDataset(x, labels)
    forms: list[tuple[object, ...]] = [
        (x.numpy().astype(np.float64), labels.tolist()),
        (dataset,),
        (DataLoader(dataset, batch_size=5),),
        ([(x[:20], labels[:20]), (x[20:], labels[20:])],),
        (((image.numpy(), int(label)) for image, label in zip(x, labels, strict=True)),),
    ]
    for form in forms:
        rows = frame(model, *form, batch_size=3)
        pd.testing.assert_frame_equal(rows, expected, rtol=1e-4, atol=1e-5)
    assert expected["crop_failure_radius"].nunique(dropna=False) > 1
    assert expected["label"].nunique() > 2


def test_evaluate_measures_a_loader_while_it_is_read(model: nn.Sequential, labels: Tensor) -> None:
    """Images need not fit into memory."""
    seen, at_image = 0, []

    def counted(x: Tensor) -> Tensor:
        nonlocal seen
        seen += len(x)
        logits: Tensor = model(x)
        return logits

    def loader() -> Iterator[tuple[Tensor, int]]:
        for image, label in zip(images(), labels.tolist(), strict=True):
            at_image.append(seen)
            yield image, label

    shiftbench.evaluate(counted, loader(), max_shift=1, batch_size=2)
    assert at_image[0] == 0
    assert len(set(at_image)) == 3  # chunks of 8, 8 and 5 images


def test_evaluate_restores_the_mode_of_a_module(model: nn.Sequential, labels: Tensor) -> None:
    model.train()
    model[2].eval()  # a frozen batch norm inside a module in training
    statistics = model[2].state_dict()
    once, again = (frame(model, images(), labels) for _ in range(2))
    pd.testing.assert_frame_equal(once, again)
    assert model.training
    assert model[3].training
    assert not model[2].training
    assert all(torch.equal(v, model[2].state_dict()[k]) for k, v in statistics.items())


def test_evaluate_default_view_leaves_the_margin_of_the_grid(
    model: nn.Sequential, labels: Tensor
) -> None:
    sizes = set()

    def watched(x: Tensor) -> Tensor:
        sizes.add(tuple(x.shape[-2:]))
        logits: Tensor = model(x)
        return logits

    tall = torch.cat([images(), images()], 2)
    for attack, expected in (("crop", (28, 12)), ("bilinear", (30, 14)), ("integer", (32, 16))):
        sizes.clear()
        shiftbench.evaluate(watched, tall, labels, attack=attack, max_shift=2)
        assert sizes == {expected}


def test_evaluate_view_is_the_center_of_the_images(model: nn.Sequential, labels: Tensor) -> None:
    x = images()
    expected = frame(model, x[..., 2:14, 2:14], labels, max_shift=1, view=10)
    for wider in (x[..., 2:15, 2:15], x[..., 1:15, :], x[..., 2:14, 1:16]):
        rows = frame(model, wider, labels, max_shift=1, view=10)
        pd.testing.assert_frame_equal(rows, expected)


def test_evaluate_step_and_full_grid(model: nn.Sequential, labels: Tensor) -> None:
    result = shiftbench.evaluate(
        model, images(), labels, attack="integer", max_shift=2, step=1 / 3, consistency=()
    )
    assert {name.stem for name in result.scores} == {"accuracy", "adversarial_integer[1/3]"}
    full = shiftbench.evaluate(model, images(), labels, max_shift=1, full_grid=True)
    assert len(full.record.accuracy_by_offset("crop")) == 9


def test_evaluate_several_attacks_at_once(model: nn.Sequential, labels: Tensor) -> None:
    both = shiftbench.evaluate(model, images(), labels, attack=("crop", "integer"), max_shift=2)
    crop = shiftbench.evaluate(model, images(), labels, attack="crop", max_shift=2)
    assert both.score("adversarial_crop") == crop.adversarial_accuracy()
    assert both.adversarial_accuracy() == crop.adversarial_accuracy()
    assert both.score("adversarial_integer@1").n == COUNT


def test_evaluate_draws_follow_from_the_pixels(model: nn.Sequential, labels: Tensor) -> None:
    keys = [f"picture {i}" for i in range(COUNT)]
    options = {"consistency": ("integer", "half", "crop"), "max_shift": 2}
    options["consistency_samples"] = 3
    table = frame(model, images(), labels, keys=keys, **options)
    backwards = frame(model, images().flip(0), labels.flip(0), keys=keys[::-1], **options)
    pd.testing.assert_frame_equal(
        table, backwards[::-1].reset_index(drop=True), rtol=1e-4, atol=1e-5
    )
    assert table.key.tolist() == keys
    renamed = frame(model, images(), labels, **options)
    pd.testing.assert_frame_equal(renamed.drop(columns="key"), table.drop(columns="key"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"attack": "crops"}, UsageError, "Did you mean 'crop'"),
        ({"attack": "camera"}, UsageError, "image files or rendered images"),
        ({"consistency": ["whole"]}, UsageError, "unknown consistency 'whole'"),
        ({"max_shift": 8}, UsageError, "needs 8 pixels around the view, but images of 16x16"),
        ({"view": 14}, UsageError, "needs 2 pixels .* view of 14x14"),
        ({"view": 0}, UsageError, "are too small for a view of 0x0"),
        ({"attack": "crop", "step": 0.5}, UsageError, "integer offset"),
        ({"batch_size": 0}, UsageError, "batch size"),
        ({"attack": "integer", "consistency": ["crop"]}, UsageError, "larger than the view"),
        ({"keys": ["one"]}, DataError, "key per image, got only 1"),
        ({"labels": None}, UsageError, "came without labels"),
        ({"labels": [0] * 3}, DataError, "3 labels for 21 images"),
        ({"labels": [0.5] * COUNT}, DataError, "one integer per image"),
        ({"labels": [-1] * COUNT}, DataError, "labels of 0 or more"),
        ({"labels": [7] * COUNT}, ModelError, "a model of 5 classes, got 7"),
        ({"images": torch.zeros(0, 3, 16, 16), "labels": []}, DataError, "at least one image"),
        ({"images": [], "labels": None}, DataError, "at least one image"),
        ({"images": torch.zeros(COUNT, 3, 16, 16).byte()}, DataError, "subtract the mean"),
        ({"images": torch.zeros(COUNT, 16, 16, 3)}, DataError, r"permute\(0, 3, 1, 2\)"),
        ({"images": [torch.zeros(3, 16, 16)], "labels": None}, DataError, "pairs, got Tensor"),
        ({"images": [("a.png", 1)], "labels": None}, DataError, "tensors, got str"),
        ({"images": [torch.zeros(3, 16, 16)]}, UsageError, "from a list, got labels as well"),
        ({"images": [PIL.Image.new("RGB", (9, 9))]}, UsageError, r"torch\.stack"),
        ({"labels": ["cat"] * COUNT}, DataError, "names such as 'cat'"),
        ({"labels": np.array(["cat"] * COUNT)}, DataError, "names such as 'cat'"),
        ({"device": "cuda:99"}, UsageError, "visible GPU"),
        ({"precision": "fp8"}, UsageError, "unknown precision 'fp8'"),
        (
            {"images": [(torch.zeros(3, 9, 9), 0), (torch.zeros(3, 8, 9), 0)], "labels": None},
            DataError,
            "images of one size",
        ),
    ],
)
def test_evaluate_wrong_input_raises_one_line(
    change: dict[str, object],
    error: type[Exception],
    message: str,
    model: nn.Sequential,
    labels: Tensor,
) -> None:
    request = {"images": images(), "labels": labels, "max_shift": 2, **change}
    with pytest.raises(error, match=message) as caught:
        shiftbench.evaluate(model, **request)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_adversarial_accuracy_beyond_max_shift_raises(model: nn.Sequential, labels: Tensor) -> None:
    result = shiftbench.evaluate(model, images(), labels, max_shift=1)
    for s in (2, -1):
        with pytest.raises(UsageError, match="max shift of 0 to 1 step, got"):
            result.adversarial_accuracy(s)


def test_package_lists_its_public_names() -> None:
    assert all(getattr(shiftbench, name) is not None for name in shiftbench.__all__)
    assert set(shiftbench.__all__) <= set(dir(shiftbench))
    with pytest.raises(AttributeError, match="no attribute 'evaluat'"):
        _ = shiftbench.evaluat


def test_evaluate_warns_of_a_smaller_default_view(
    model: nn.Sequential, labels: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "shiftbench"):
        result = shiftbench.evaluate(model, images(), labels, max_shift=2)
        assert "central 12x12 of 16x16 px, because crop needs a margin of 2 px" in caplog.text
        assert "images of 20x20 px with view=16" in caplog.text
        assert "view 12 of 16 px, margin 2 px" in str(result)
        caplog.clear()
        shiftbench.evaluate(model, images(), labels, max_shift=2, view=12)
        shiftbench.evaluate(model, images(), labels, attack="integer", max_shift=2)
        assert caplog.text == ""


def test_evaluate_network_of_another_size_raises(labels: Tensor) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE**2, 5))
    with pytest.raises(ModelError, match=r"Sequential failed on images of 12x12 px.*view=SIZE"):
        shiftbench.evaluate(network, images(), labels, max_shift=2)
    larger = torch.nn.functional.pad(images(), (2, 2, 2, 2))
    assert shiftbench.evaluate(network, larger, labels, max_shift=2, view=16).accuracy.n == COUNT


def test_evaluate_not_finite_logits_raise(labels: Tensor) -> None:
    with pytest.raises(ModelError, match="finite logits, got NaN"):
        shiftbench.evaluate(lambda x: x.mean((2, 3)) * torch.nan, images(), labels * 0)


# --- in a notebook


Small = Callable[..., Evaluation]


@pytest.fixture
def small(model: nn.Sequential, labels: Tensor) -> Small:
    def run(other: Any = None, **options: Any) -> Evaluation:
        options = {"max_shift": 1, "consistency": (), **options}
        return shiftbench.evaluate(other or model, images(), labels, **options)

    return run


def test_saved_evaluation_is_a_record_to_compare(small: Small, tmp_path: Path) -> None:
    one = small(name="one")
    folder = one.save(tmp_path)
    small(name="two").save(tmp_path)
    record = load_record(folder)
    assert contradictions(record) == []
    assert record.scores == one.scores
    pd.testing.assert_frame_equal(record.to_frame(), one.to_frame(), check_dtype=False)
    differences, left_out = compare(record, load_records([tmp_path])[1:])
    assert left_out == []
    assert {d.test.difference for d in differences} == {0.0}


def test_evaluation_repr_html_and_plot(small: Small) -> None:
    result = small()
    assert repr(result) == (
        f"<Evaluation of {COUNT} images, view 14 of 16 px: accuracy {result.accuracy.text()}%, "
        f"adversarial_crop@1 {result.adversarial_accuracy().text()}%>"
    )
    assert "adversarial_crop@1" in result._repr_html_()
    assert f"{result.accuracy:.3f}" == f"{result.accuracy.value:.3f}"
    assert (result.accuracy > 0.5) == (result.accuracy.value > 0.5)
    figure = result.plot()
    assert figure.axes
    plt.close(figure)


def test_evaluate_accepts_the_names_of_the_command_line(small: Small) -> None:
    assert {name.kind for name in small(attack="all").scores} == {
        "", "integer", "half", "crop", "bilinear"
    }  # fmt: skip
    assert small(consistency="integer").score("consistency_integer").n == COUNT
    assert small(metrics="agreement:2").score("agreement_2").n == COUNT


def test_evaluate_unpacks_outputs_and_probabilities(small: Small, model: nn.Sequential) -> None:
    plain = small(consistency=("integer",))
    for other in (
        lambda x: (model(x), None),
        lambda x: {"logits": model(x), "features": x.flatten(1)},
        lambda x: model(x).softmax(1),
    ):
        result = small(other, consistency=("integer",))
        for name, score in plain.scores.items():
            assert result.scores[name].value == pytest.approx(score.value, abs=1e-6), name


def test_evaluate_checkpoint_equals_module_with_these_weights(tmp_path: Path) -> None:
    images, labels = torch.rand(8, 3, 16, 16), [0, 1] * 4

    def network(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    trained, other = network(1), network(2)
    state = {f"student.{key}": value for key, value in trained.state_dict().items()}
    extra = {f"teacher.{key}": value for key, value in other.state_dict().items()}
    torch.save({"state_dict": {**state, **extra}}, tmp_path / "net.ckpt")
    how: dict[str, Any] = {"max_shift": 1, "consistency": ()}
    expected = shiftbench.evaluate(trained, images, labels, **how).to_frame()
    given = {"checkpoint": tmp_path / "net.ckpt", "strip_prefix": "student."}
    loaded = shiftbench.evaluate(network(3), images, labels, **given, **how).to_frame()
    assert loaded.equals(expected)
    with pytest.raises(ModelError, match="does not fit the model"):
        shiftbench.evaluate(nn.Sequential(nn.Conv2d(3, 9, 3)), images, labels, **given, **how)
    with pytest.raises(UsageError, match="expected a torch module for the weights of"):
        shiftbench.evaluate(lambda x: trained(x), images, labels, **given, **how)
