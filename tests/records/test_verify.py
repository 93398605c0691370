"""A record that tells the truth is accepted, and a made-up one is found out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from shiftbench.data import Scenes
from shiftbench.models import Classifier, as_classifier
from shiftbench.records.record import Record, ResultStore, read_record, read_records
from shiftbench.records.verify import contradictions, read_verification, save_verification
from shiftbench.run.benchmark import Execution, run
from shiftbench.run.remeasure import remeasure
from shiftbench.run.settings import Settings
from shiftbench_cli.main import main

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
def classifier() -> Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        network = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(128, 12))
    return as_classifier(network, RECIPE, name="honest")


@pytest.fixture
def record(classifier: Classifier, tmp_path: Path) -> Record:
    return run(
        classifier, Scenes("test", 24), SETTINGS, ResultStore(tmp_path), execution=CPU
    ).record


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


def test_an_honest_record_is_accepted(record: Record, classifier: Classifier) -> None:
    assert contradictions(record) == []
    assert remeasure(record, classifier, Scenes("test", 24), images=6, execution=CPU) == []


def test_every_committed_record_follows_from_its_samples() -> None:
    records = read_records([ROOT / "results" / "records"])
    assert len(records) >= 6
    assert {str(record.folder): contradictions(record) for record in records} == {
        str(record.folder): [] for record in records
    }


def raise_score(content: dict[str, Any]) -> None:
    content["scores"]["adversarial"]["crop"]["1"]["value"] = 0.99


def widen_interval(content: dict[str, Any]) -> None:
    content["scores"]["accuracy"]["low"] = 0.0


def claim_more_images(content: dict[str, Any]) -> None:
    content["metrics"]["adversarial_crop"]["images"] = 1000


def invent_score(content: dict[str, Any]) -> None:
    content["scores"]["consistency"]["half"] = content["scores"]["accuracy"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (raise_score, "adversarial_crop@1: 99.0%"),
        (widen_interval, "accuracy:"),
        (claim_more_images, "1000 images in the record, 24 in the samples"),
        (invent_score, "consistency_half: the samples do not give it"),
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


def test_a_consistent_forgery_is_found_by_measuring_again(
    record: Record, classifier: Classifier, tmp_path: Path
) -> None:
    """Another model's answers under this model's name: every score follows from the samples."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(128, 12))
    other = replace(as_classifier(network, RECIPE, name="honest"), digest=classifier.digest)
    scenes = Scenes("test", 24)
    forged = run(other, scenes, SETTINGS, ResultStore(tmp_path / "forged"), execution=CPU).record
    assert contradictions(forged) == []
    problems = remeasure(forged, classifier, scenes, images=10, execution=CPU)
    assert problems
    assert "was" in problems[0]


def test_other_weights_and_other_data_are_named(record: Record, classifier: Classifier) -> None:
    [problem] = remeasure(record, replace(classifier, digest="f" * 64), Scenes("test", 24))
    assert "weights are not the record's" in problem
    problems = remeasure(record, classifier, Scenes("test", 24, seed=9))
    assert any("images are not the record's" in problem for problem in problems)


def test_a_note_of_verification_belongs_to_one_version_of_a_record(record: Record) -> None:
    assert read_verification(record) is None
    save_verification(record, 6)
    note = read_verification(record)
    assert note is not None
    assert note.images == 6
    assert note.version == version("shiftbench")
    assert read_verification(edit_record(record, widen_interval)) is None
    assert record.folder is not None
    ResultStore(record.folder.parent).write(record, record.samples())
    assert not (record.folder / "verified.json").exists()


def test_the_command_says_so_and_exits_with_1(
    record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(record.folder)])
    assert stop.value.code == 0
    assert "every score follows from its samples" in capsys.readouterr().out
    edit_record(record, raise_score)
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(record.folder)])
    assert stop.value.code == 1
    assert "1 problem\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "honest"], "give both --model and --data"),
        (["--save"], "give --model and --data"),
    ],
)
def test_options_that_need_each_other(
    record: Record, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(record.folder), *words])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_the_command_measures_again_and_counts_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three images are searched, so no more than three can test every claim."""
    model = ["-m", "xcit_pico_6_p8.scenes", "-d", "scenes", "--device", "cpu"]
    small = ["--limit", "5", "--search-limit", "3", "-a", "integer", "--max-shift", "1"]
    with pytest.raises(SystemExit):
        main(["run", *model, *small, "-o", str(tmp_path), "-q"])
    (record,) = read_records([tmp_path])
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(record.folder), *model, "--save"])
    assert stop.value.code == 0
    assert "3 images measured again, all alike" in capsys.readouterr().out
    note = read_verification(record)
    assert note is not None
    assert note.images == 3
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(record.folder), "-m", "xcit_pico_6_p8_af.scenes", *model[2:]])
    assert stop.value.code == 1
    assert "the weights are not the record's" in capsys.readouterr().out
