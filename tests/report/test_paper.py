"""Published numbers next to scores of records, and the commands that produce such records."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from command_line import shiftbench
from PIL import Image
from sample_records import make_result, save_result, spread

from aft_models.cards import WeightsCard, weights_card
from aft_models.training.recipes import get_recipe
from shiftbench.errors import UsageError
from shiftbench.records.folder import load_records
from shiftbench.records.result import Result
from shiftbench.report import paper
from shiftbench.report.hyperparameters import hyperparameters
from shiftbench.report.paper import (
    PUBLISHED,
    TABLES,
    Match,
    commands,
    left_out,
    match_claims,
    read_claims,
)
from shiftbench.training.runtime import measure_runtimes
from shiftbench_cli.main import cli, main

MODEL = "xcit_nano_12_p16"


@pytest.fixture
def small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace ImageNet by 20 images of 64 px."""
    monkeypatch.setattr(paper, "SIDE", 64)
    monkeypatch.setitem(paper.IMAGES, "imagenet", 20)
    monkeypatch.setitem(paper.IMAGES, "cifar10", 20)


def matches_of(*results: Result, model: str = MODEL) -> dict[str, Match]:
    """Return the matches to the claims of Table 1 about a model, by score."""
    matches = match_claims(read_claims("imagenet_main"), results)
    return {a.claim.score.column: a for a in matches if a.claim.model == model}


@pytest.mark.parametrize("table", TABLES)
def test_claims_are_of_models_that_can_be_built(table: str) -> None:
    presets = pytest.importorskip("aft_models.presets").PRESETS
    for claim in read_claims(table):
        assert not claim.recipe or claim.model in presets


def test_match_without_records_has_no_score() -> None:
    assert all(one.score is None and one.difference is None for one in matches_of().values())


@pytest.mark.usefixtures("small_sets")
def test_match_is_the_score_of_the_same_model_and_data() -> None:
    model = f"{MODEL}_af"
    measured = make_result(
        model,
        failures={"integer": spread(20, [6])},
        consistent={"half": [1] * 19 + [0]},
        data="imagenet",
        split="val",
    )
    elsewhere = make_result(MODEL, failures={"crop": spread(20, [1])}, data="cifar10")
    assert all(one.score is None for one in matches_of(measured, elsewhere).values())
    matches = matches_of(measured, elsewhere, model=model)
    answered = [name for name, one in matches.items() if one.score is not None]
    assert answered == ["top1", "consistency_half", "adversarial_integer"]
    assert matches["top1"].difference == pytest.approx(70.0 - 70.5)
    assert matches["adversarial_integer"].difference == pytest.approx(70.0 - 69.9)


OTHERWISE: dict[str, tuple[dict[str, Any], str]] = {
    "steps of a quarter pixel": ({"step": "1/4"}, "adversarial_integer[1/4] only"),
    "a smaller grid": ({"max_shift": 3}, "adversarial_integer up to 3 steps only"),
    "few attacked images": ({"attack_limit": 5}, "5 of 20 images"),
    "the model's crop": ({"crop": "model"}, "crop model"),
    "padding": ({"pad": "reflect"}, "pad reflect"),
    "half precision": ({"precision": "bf16"}, "precision bf16"),
    "the training images": ({"split": "train"}, "split train"),
}


@pytest.mark.usefixtures("small_sets")
@pytest.mark.parametrize("how", OTHERWISE)
def test_match_measured_otherwise_has_the_reason_instead(how: str) -> None:
    changes, words = OTHERWISE[how]
    shared: dict[str, Any] = {"failures": {"integer": spread(20, [1])}, "data": "imagenet"}
    other = make_result(MODEL, **{**shared, "split": "val", **changes})
    matches = matches_of(other)
    assert matches["adversarial_integer"].score is None
    assert words in matches["adversarial_integer"].remark
    assert matches["adversarial_half"].remark == ""  # no such attack
    only_attack = {"step", "attack_limit", "max_shift"} & changes.keys()
    assert (matches["top1"].score is not None) == bool(only_attack)
    older = make_result(MODEL, **shared, split="val", created="2020-01-01T00:00:00+00:00")
    assert matches_of(other, older)["adversarial_integer"].score is not None


def test_match_of_a_subset_of_the_images_has_the_reason_instead() -> None:
    few = make_result(MODEL, failures={"integer": spread(20, [1])}, data="imagenet", split="val")
    assert matches_of(few)["top1"].remark == "images of 64 px; 20 of 50,000 images"


def card_with(**changes: Any) -> dict[str, WeightsCard]:
    """Return the card of all sample records, trained with the paper's recipe of small sets."""
    recipe = {**get_recipe("xcit-small-sets").for_model(MODEL).settings(), **changes}
    card = weights_card("xcit_pico_6_p8.scenes")
    return {"d" * 64: replace(card, recipe=recipe)}


@pytest.mark.usefixtures("small_sets")
def test_match_distinguishes_trainings_of_one_model() -> None:
    results = [
        make_result(f"{MODEL}.{name}", failures={"integer": spread(20, [at])}, data="cifar10")
        for name, at in (("scratch", 4), ("finetune", 2))
    ]
    for name, value in (("scratch", 0.8), ("finetune", 0.9)):
        assert not any(one.score for one in match_claims(read_claims(name), results))
        matches = match_claims(read_claims(name), results, card_with())
        (only,) = [one.score for one in matches if one.score is not None]
        assert only.value == pytest.approx(value)
    assert not any(one.score for one in matches_of(*results).values())


@pytest.mark.usefixtures("small_sets")
def test_match_of_another_recipe_has_the_reason_instead() -> None:
    result = make_result(
        f"{MODEL}.scratch", failures={"integer": spread(20, [4])}, data="cifar10", split="test"
    )
    cards = card_with(epochs=1, batch_size=4)
    matches = match_claims(read_claims("scratch"), [result], cards)
    assert not any(one.score for one in matches)
    (line,) = left_out(matches)
    assert line == (
        f"{MODEL}.scratch on cifar10: epochs 1 instead of 1000; batch_size 4 instead of 1024"
    )


@pytest.mark.usefixtures("small_sets")
@pytest.mark.parametrize("ending", ["tex", "csv", "md"])
def test_reproduce_writes_the_layout_of_the_paper(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    failures = {"integer": spread(20, [6]), "half": spread(20, [6, 1])}
    result = make_result(MODEL, failures=failures, data="imagenet", split="val")
    save_result(tmp_path, result)
    file = tmp_path / f"table.{ending}"
    ran = shiftbench("reproduce", "imagenet_main", "-r", tmp_path, "-o", file, code=0)
    assert "†: weights without a card" in ran.out
    (line,) = [
        line
        for line in file.read_text().splitlines()
        if MODEL in line.replace("\\", "").split()[0:2] or f"{MODEL}," in line
    ]
    assert "70.4" in line
    assert "-0.4" in line


def test_reproduce_works_outside_of_the_source_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert PUBLISHED.parent.name == "shiftbench"
    ran = shiftbench("reproduce", code=0)
    assert "6 of 6 rows are not measured: `shiftbench reproduce imagenet_main`" in ran.out
    assert len(ran.out.splitlines()) < 200


def test_commands_take_the_fewest_metrics() -> None:
    (line, *_) = commands(read_claims("imagenet_ablation"))
    assert "-a none --no-consistency --nproc 8" in line
    (line, *_) = commands(read_claims("imagenet_main"))
    assert "-a integer,half --nproc 8" in line


def test_read_claims_unknown_table_raises() -> None:
    with pytest.raises(UsageError, match="Did you mean 'imagenet_main'"):
        read_claims("imagenet_mian")


def all_commands() -> list[str]:
    return commands([claim for table in TABLES for claim in read_claims(table)])


def form(line: str) -> str:
    """Return a printed command without its model."""
    return re.sub(r"(xcit|timm:|hf:)[\w:/.-]+?(?=\.|/export|\s|$)", "MODEL", line)


def test_commands_make_each_record_once_and_parse() -> None:
    outputs = []
    for line in all_commands():
        *trainings, measured = [shlex.split(part) for part in line.split(" && ")]
        for words in (*trainings, measured):
            assert words[0] == "shiftbench"
            context = click.Context(cli, **cli.context_settings)
            command = cli.get_command(context, words[1])
            assert command is not None
            command.make_context(words[1], words[2:], parent=context)
        made: list[str] = []
        for words in trainings:
            if "--checkpoint" in words:
                assert words[words.index("--checkpoint") + 1] == f"{made[-1]}/export"
            made.append(words[words.index("-o") + 1])
        if trainings:
            assert measured[measured.index("--checkpoint") + 1] == f"{made[-1]}/export"
        entry = measured[measured.index("--name" if "--name" in measured else "-m") + 1]
        outputs.append((entry, measured[measured.index("-d") + 1]))
    assert len(set(outputs)) == len(outputs)


def stand_ins(root: Path) -> dict[str, str]:
    """Write two folders of noise: one with wnids as classes, one with numbers."""
    noise = np.random.default_rng(0)
    for data, classes in (("in", ("n01440764", "n01443537")), ("few", ("0", "1"))):
        for place in (root / data / split / name for split in ("train", "val") for name in classes):
            place.mkdir(parents=True)
            for number in range(4):
                pixels = noise.integers(0, 255, (24, 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    return {"imagenet": f"imagenet:{root / 'in'}", "other": f"folder:{root / 'few'}"}


TINY = ("image_size=16", "epochs=1", "warmup_epochs=0", "batch_size=8")
NETWORK = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.Flatten(), nn.Linear(64, 1000))
    return network, {"input_size": 16, "mean": (0.5,) * 3, "std": (0.25,) * 3}
"""


def execute(line: str, data: dict[str, str]) -> None:
    """Run a printed line with a tiny model, tiny data and a tiny recipe."""
    Path("net.py").write_text(NETWORK)
    for step in line.split(" && "):
        words = shlex.split(step)[1:]
        words = [word.replace("xcit_nano_12_p16", "xcit_pico_6_p8") for word in words]
        del words[words.index("--nproc") : words.index("--nproc") + 2]
        words = ["net.py:make" if word.startswith(("timm:", "hf:")) else word for word in words]
        place = words.index("-d") + 1
        name = words[place].partition(":")[0]
        words[place] = data[name if name in data else "other"]
        if words[0] == "train":
            words += [word for change in TINY for word in ("--set", change)]
            words += ["-j", "0"]
        else:
            words += ["--max-shift", "1"]
        with pytest.raises(SystemExit) as ended:
            main([*words, "--device", "cpu", "-q"])
        assert ended.value.code == 0, step


FORMS = {form(line): line for line in reversed(all_commands())}  # the first of each form


@pytest.mark.parametrize("shape", [f for f in FORMS if "train" not in f])
def test_printed_run_commands_work(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    execute(FORMS[shape], stand_ins(tmp_path))
    (record,) = load_records([Path("results/runs")])
    assert record.data.name == "imagenet"


def test_printed_training_command_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = [line for line in all_commands() if f"runs/scratch-cifar10/{MODEL} " in line]
    execute(line, stand_ins(tmp_path))
    (record,) = load_records([Path("results/runs")])
    assert record.model.name == "xcit_pico_6_p8.scratch"


@pytest.mark.slow
@pytest.mark.parametrize("shape", [f for f in FORMS if "train" in f])
def test_every_printed_form_works(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    execute(FORMS[shape], stand_ins(tmp_path))
    (record,) = load_records([Path("results/runs")])
    words = shlex.split(FORMS[shape].rpartition(" && ")[2])
    entry = words[words.index("--name" if "--name" in words else "-m") + 1]
    assert record.model.name == entry.replace(MODEL, "xcit_pico_6_p8")


def test_reproduce_hyperparameters_are_those_of_the_recipes(tmp_path: Path) -> None:
    found = {one.name: one for one in hyperparameters()}
    assert len(found) == 12
    assert all(one.same for one in found.values())
    assert found["base_lr"].ours == "0.001 (baseline), 0.0005 (AF, APS)"
    assert not replace(found["base_lr"], ours="0.001").same
    ran = shiftbench("reproduce", "hyperparameters", "-o", tmp_path / "table.md", code=0)
    assert "stochastic_depth" in ran.out
    assert len((tmp_path / "table.md").read_text().splitlines()) == 14


def test_list_recipe_shows_every_field_per_variant() -> None:
    fields = json.loads(shiftbench("list", "recipes", "xcit-imagenet", "--format", "json").out)
    by_name = {entry.pop("name"): list(entry.values()) for entry in fields}
    assert by_name["batch_size"] == ["1024", "512", "1024", "512"]
    assert by_name["drop_path"] == ["0.0", "0.0", "0.05", "0.05"]
    assert len(by_name) == len(get_recipe("xcit-imagenet").settings()) + 1


def test_measure_runtimes_are_per_image_and_positive() -> None:
    names = ["xcit_pico_6_p8", "xcit_pico_6_p8_af"]
    plain, alias_free = measure_runtimes(names, device="cpu", batch_size=2, size=32, rounds=2)
    assert 0 < plain.forward < plain.train
    assert alias_free.model == "xcit_pico_6_p8_af"
