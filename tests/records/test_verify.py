"""A record that tells the truth is accepted, and a made-up one is found out."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from command_line import shiftbench
from torch import nn

from aft_models.cards import list_weights
from shiftbench.data import Scenes, load_dataset
from shiftbench.identity import Identity
from shiftbench.models import Model, load_model
from shiftbench.records.record import Record, read_record, read_records, write_record
from shiftbench.records.verify import contradictions, read_verification, save_verification
from shiftbench.run.job import Settings
from shiftbench.run.remeasure import remeasure
from shiftbench.run.runner import Execution, run
from shiftbench.run.store import describe

CPU = Execution(device="cpu", batch_size=8)
ROOT = Path(__file__).resolve().parents[2]
RECIPE = {"input_size": 16, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
SETTINGS = Settings(
    attacks=("crop", "half"),
    max_shift=1,
    consistency=("integer",),
    repeats=2,
    metrics=("agreement:3",),
)


@pytest.fixture(scope="module")
def classifier() -> Model:
    return honest(seed=5)


def honest(seed: int) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pool = nn.AdaptiveMaxPool2d(1)
        layers = (nn.Conv2d(3, 16, 4, 4), nn.ReLU(), pool, nn.Flatten(), nn.Linear(16, 12))
    return Model(nn.Sequential(*layers), RECIPE, name="honest")


@pytest.fixture(scope="module")
def scenes(classifier: Model) -> Scenes:
    """Images that the model mostly gets right."""
    images = Scenes("test", 24)
    pixels = images.render(range(24), 16).float() / 255
    with torch.no_grad():
        seen = classifier((pixels - 0.5) / 0.25).argmax(1).tolist()
    vars(images)["labels"] = [c if i % 3 else (c + 1) % 12 for i, c in enumerate(seen)]
    return images


@pytest.fixture
def record(classifier: Model, scenes: Scenes, tmp_path: Path) -> Record:
    return run(classifier, scenes, SETTINGS, tmp_path, execution=CPU).record


def edit_record(record: Record, change: Callable[[dict[str, Any]], None]) -> Record:
    assert record.folder is not None
    path = record.folder / "record.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return read_record(record.folder)


def edit_samples(record: Record, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Record:
    assert record.folder is not None
    path = record.folder / "samples.parquet"
    change(pd.read_parquet(path)).to_parquet(path, index=False)
    return read_record(record.folder)


def test_an_honest_record_is_accepted(record: Record, classifier: Model, scenes: Scenes) -> None:
    assert contradictions(record) == []
    assert remeasure(record, classifier, scenes, images=6, execution=CPU) == ([], 6)


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """A change of record.json: the keys that lead to a value, and the value."""

    def change(content: dict[str, Any]) -> None:
        *places, key, value = path
        for place in places:
            content = content[place]
        content[key] = value

    return change


RAISE = put("scores", "adversarial", "crop", "1", "value", 0.99)
WIDEN = put("scores", "accuracy", "low", 0.0)
WHOLE = {"value": 1.0, "low": 0.9, "high": 1.0, "n": 24}
CELL = {"dy": 0.0, "dx": 0.0, **WHOLE}
CROP, INTEGER = ("metrics", "adversarial_crop"), ("metrics", "consistency_integer", "settings")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(*CROP, "settings", "radius", 6), "radius is 6 in the record, 1"),
        (put(*INTEGER, "repeats", 50), "repeats is 50 in the record, 2"),
        (put(*INTEGER, "seed", 9), "its seed is 9, the record's is 0"),
        (
            put("metrics", "agreement_3", "settings", "views", 5),
            "the samples have no column agreement_5",
        ),
        (
            put("maps", "adversarial_crop", [CELL]),
            "the scores by offset do not follow from the samples",
        ),
        (
            put(*CROP, "parts", {"adversarial_crop@1": "0" * 64}),
            "other images or labels than the record",
        ),
        (RAISE, "adversarial_crop@1: 99.0%"),
        (WIDEN, "accuracy:"),
        (put(*CROP, "images", 1000), "1000 images in the record, 24 in the samples"),
        (
            put("scores", "consistency", "half", WHOLE),
            "consistency_half: the samples do not give it",
        ),
    ],
)
def test_a_changed_record_is_found_out(
    record: Record, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    problems = contradictions(edit_record(record, change))
    assert any(words in problem for problem in problems), problems


def heal(frame: pd.DataFrame) -> pd.DataFrame:
    """Every image survives, and nothing else of the row changes."""
    return frame.assign(crop_broken_radius=frame["crop_broken_radius"].mask(frame.index >= 0))


def drop_row(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.iloc[1:]


def repeat_row(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame.iloc[1:], frame.iloc[1:2]])


def swap_label(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(label=frame["label"].mask(frame.index == 0, 11))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (heal, "broken at ring 0"),
        (lambda frame: frame.assign(agreed_integer=-1), "no counts"),
        (lambda frame: frame.assign(consistent_integer=True), "is called consistent"),
        (lambda frame: frame.assign(change_integer=1.5), "a change outside [0, 1]"),
        (drop_row, "24 images in the record, 23 in the samples"),
        (repeat_row, "more than once"),
        (swap_label, "other images or labels"),
        (lambda frame: frame.drop(columns="agreement_3"), "no column agreement_3"),
        (lambda frame: frame.drop(columns="label"), "no column label"),
    ],
)
def test_changed_samples_are_found_out(
    record: Record, change: Callable[[pd.DataFrame], pd.DataFrame], words: str
) -> None:
    problems = contradictions(edit_samples(record, change))
    assert any(words in problem for problem in problems), problems


def test_impossible_values_of_other_metrics_are_found_out(
    classifier: Model, tmp_path: Path, scenes: Scenes
) -> None:
    settings = replace(SETTINGS, attacks=("crop",), metrics=("flip", "jitter"), pad="reflect")
    record = run(classifier, scenes, settings, tmp_path, execution=CPU).record
    assert contradictions(record) == []
    samples = record.samples()
    for column, value in (("flips", -1.0), ("top5_distance", 99.0), ("jitter_probability", -5.0)):
        forged = contradictions(replace(record, table=samples.assign(**{column: value})))
        assert any("flips" in p or "distance" in p or "variance" in p for p in forged), forged


def test_a_sampled_search_cannot_pass_for_an_exact_one(
    classifier: Model, tmp_path: Path, scenes: Scenes
) -> None:
    settings = replace(SETTINGS, mode="sampled:3", metrics=())
    record = run(classifier, scenes, settings, tmp_path, execution=CPU).record
    assert contradictions(record) == []
    edit_record(record, put(*CROP, "settings", "upper_bound", False))
    exact = edit_record(record, put(*CROP, "settings", "mode", "exhaustive"))
    problems = contradictions(exact)
    assert any("mode is exhaustive in the record, sampled:3" in p for p in problems), problems


def test_a_full_grid_is_held_to_its_bitmaps(
    classifier: Model, tmp_path: Path, scenes: Scenes
) -> None:
    settings = replace(SETTINGS, mode="full_grid", metrics=())
    record = run(classifier, scenes, settings, tmp_path, execution=CPU).record
    assert contradictions(record) == []
    samples = record.samples()
    bright = samples.assign(crop_bitmap=[b"\xff\x80"] * len(samples))
    problems = contradictions(replace(record, table=bright))
    assert any("a bitmap that contradicts its broken radius" in p for p in problems), problems
    short = samples.assign(crop_bitmap=[b"\xff"] * len(samples))
    assert any("another grid" in p for p in contradictions(replace(record, table=short)))


def test_a_consistent_forgery_is_found_by_measuring_again(
    record: Record, classifier: Model, tmp_path: Path, scenes: Scenes
) -> None:
    """Another model's answers under this model's name: every score follows from the samples."""
    other = honest(seed=6)
    other.identity = replace(other.identity, weights=classifier.identity.weights)
    forged = run(other, scenes, SETTINGS, tmp_path / "forged", execution=CPU).record
    assert contradictions(forged) == []
    problems, count = remeasure(forged, classifier, scenes, images=10, execution=CPU)
    assert count == 10
    assert problems
    assert "was" in problems[0]


def test_other_weights_and_other_data_are_named(
    record: Record, classifier: Model, scenes: Scenes
) -> None:
    preprocessing = classifier.preprocessing
    for change, words in (
        ({"identity": Identity("f" * 64)}, "the weights of the record"),
        ({"name": "other"}, "the model name of the record: honest; of what was given: other"),
        ({"preprocessing": replace(preprocessing, mean=(0.1, 0.1, 0.1))}, "the mean of"),
        ({"preprocessing": replace(preprocessing, interpolation="bilinear")}, "interpolation"),
    ):
        other = copy.copy(classifier)
        vars(other).update(change)
        problems, _ = remeasure(record, other, scenes)
        assert any(words in problem for problem in problems), problems
    problems, _ = remeasure(record, classifier, Scenes("test", 24, seed=9))
    assert any("the images of the record" in problem for problem in problems)


def forge(record: Record, samples: pd.DataFrame, **settings: Any) -> Record:
    """A record whose digests and scores are made anew for other samples."""
    metrics = [info.load() for info in record.metrics.values()]
    return describe(
        [metric for metric in metrics if metric is not None],
        samples,
        model=record.model,
        data=replace(record.data, images=len(samples)),
        settings={**record.settings, **settings},
        environment=record.environment,
        seconds=1.0,
        forward_passes=1,
    )


def without_wrong(samples: pd.DataFrame) -> pd.DataFrame:
    wrong = samples["label"] != samples["prediction"]
    return samples.drop(index=samples.index[wrong][:3])


def unsearched(samples: pd.DataFrame) -> pd.DataFrame:
    """The images that a search broke have not been searched."""
    broken = samples["crop_broken_radius"].notna()
    crop = [column for column in samples if column.startswith("crop_")]
    return samples.assign(**{column: samples[column].mask(broken) for column in crop})


def searched_less(samples: pd.DataFrame) -> pd.DataFrame:
    """Images that break at ring 1 were searched to ring 0 only."""
    outer = samples["crop_broken_radius"] == 1
    for word in ("broken_radius", "dy", "dx", "prediction"):
        samples = samples.assign(**{f"crop_{word}": samples[f"crop_{word}"].mask(outer)})
    return samples.assign(crop_reach=samples["crop_reach"].mask(outer, 0))


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        (without_wrong, {}),
        (without_wrong, {"limit": 21}),
        (without_wrong, {"skip_bad": True}),
        (unsearched, {"search_limit": 9}),
        (searched_less, {}),
    ],
)
def test_images_that_were_left_out_are_missed(
    record: Record,
    classifier: Model,
    change: Callable[[pd.DataFrame], pd.DataFrame],
    settings: dict[str, Any],
    scenes: Scenes,
) -> None:
    """Wrong answers dropped, digests and scores made anew: the images are not those of a run."""
    forged = forge(record, change(record.samples()), **settings)
    if "skip_bad" in settings:
        forged = replace(forged, data=replace(forged.data, skipped=3))
    assert forged.scores != record.scores
    problems, _ = remeasure(forged, classifier, scenes, execution=CPU)
    assert any("not of those that a limit takes" in problem for problem in problems)
    if not settings and change is without_wrong:
        assert any("no limit" in problem for problem in contradictions(forged))


def test_an_invented_record_whose_images_are_all_near_ties_is_refused(
    record: Record, classifier: Model, scenes: Scenes
) -> None:
    samples = record.samples()
    perfect = samples.assign(prediction=samples["label"], margin=1.0, near_tie=True)
    for attack in ("crop", "half"):
        for word in ("broken_radius", "dy", "dx", "prediction"):
            perfect[f"{attack}_{word}"] = pd.NA
    forged = forge(record, perfect)
    assert contradictions(forged) == []
    problems, _ = remeasure(forged, classifier, scenes, images=3, execution=CPU)
    assert problems


def test_a_model_that_is_all_ties_cannot_be_verified(tmp_path: Path, scenes: Scenes) -> None:
    class Flat(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(images), 12)

    flat = Model(Flat(), RECIPE, name="flat")
    settings = replace(SETTINGS, metrics=(), consistency=())
    tied = run(flat, scenes, settings, tmp_path, execution=CPU).record
    problems, _ = remeasure(tied, flat, scenes, images=5, execution=CPU)
    assert problems == [
        "rounding may decide 5 of 5 images that were measured again, too many to verify anything"
    ]


def test_a_note_of_verification_belongs_to_one_version_of_a_record(record: Record) -> None:
    assert read_verification(record) is None
    save_verification(record, 6)
    note = read_verification(record)
    assert note is not None
    assert note.images == 6
    assert note.version == version("shiftbench")
    assert read_verification(edit_record(record, WIDEN)) is None
    assert record.folder is not None
    write_record(record.folder, replace(record, table=record.samples()))
    assert not (record.folder / "verified.json").exists()


def test_the_command_says_so_and_exits_with_1(record: Record) -> None:
    holds = shiftbench("verify", record.folder, code=0)
    assert holds.out == f"{record.folder}: scores match samples\n"
    edit_record(record, RAISE)
    assert "1 problem\n" in shiftbench("verify", record.folder, code=1).out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "honest"], "give both --model and --data"),
        (["--save"], "give --model and --data"),
    ],
)
def test_options_that_need_each_other(record: Record, words: list[str], message: str) -> None:
    assert message in shiftbench("verify", record.folder, *words, code=2).err


def test_the_command_measures_again_and_counts_what_it_measured(tmp_path: Path) -> None:
    """Three images are searched; the claims about the others are tested on them all the same."""
    model = ["-m", "xcit_pico_6_p8.scenes", "-d", "scenes", "--device", "cpu"]
    small = ["--limit", "5", "--search-limit", "3", "-a", "integer", "--max-shift", "1"]
    shiftbench("run", *model, *small, "-o", tmp_path, "-q", code=0)
    (record,) = read_records([tmp_path])
    out = shiftbench("verify", record.folder, *model, "--save", code=0).out
    assert re.search(r"samples; 5 images re-measured \(seed \d+\), all match\n", out)
    note = read_verification(record)
    assert note is not None
    assert note.images == 5
    other = shiftbench("verify", record.folder, "-m", "xcit_pico_6_p8_af.scenes", *model[2:])
    assert other.code == 1
    assert "the weights of the record" in other.out


# --- every committed record can be measured again


COMMITTED = read_records([ROOT / "results" / "records"])
IMAGENETTE = ROOT.parent / "shared" / "data" / "imagenette128"


def data_of(record: Record) -> str | None:
    """Where the images of a committed record are, if they are at hand."""
    if record.data.name == "scenes":
        return "scenes"
    if record.data.name == "imagenette128" and IMAGENETTE.is_dir():
        return f"folder:{IMAGENETTE}"
    return None


@pytest.mark.parametrize("record", COMMITTED, ids=lambda record: record.folder.name)
def test_a_committed_record_follows_from_its_samples(record: Record) -> None:
    """Grown records have grids of several radii and numbers of images: its metrics come back."""
    assert contradictions(record) == []
    metrics = [info.load() for info in record.metrics.values()]
    assert all(m is not None and m.margin() <= record.data.geometry["margin"] for m in metrics)


@pytest.mark.slow
@pytest.mark.parametrize(
    "record",
    [r for r in COMMITTED if r.model.name.partition("+")[0] in list_weights() and data_of(r)],
    ids=lambda record: record.folder.name,
)
def test_a_committed_record_is_measured_again(record: Record) -> None:
    data = data_of(record)
    assert data is not None
    classifier, images = load_model(record.model.name), load_dataset(data, split=record.data.split)
    assert remeasure(record, classifier, images, images=2, seed=1, execution=CPU) == ([], 2)
