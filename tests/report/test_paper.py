"""Published figures next to ours: printed as published, never as ours."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections import Counter
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from sample_records import make_record, spread, write_record

from shiftbench.errors import DataError, UsageError
from shiftbench.records.choose import load_records
from shiftbench.records.record import read_records
from shiftbench.report.paper import TABLES, Answer, answer, commands, read_claims
from shiftbench.report.published import read_published, side_by_side
from shiftbench_cli.main import cli, main
from shiftbench_cli.reproduce import command

PAPER = Path(__file__).resolve().parents[2] / "results" / "paper"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.mark.parametrize("table", TABLES)
def test_every_model_of_the_paper_can_be_built(table: str):
    presets = pytest.importorskip("aft_models.presets").PRESETS
    for claim in read_claims(table, PAPER):
        assert not claim.recipe or claim.model in presets


def test_without_records_there_is_no_number_of_ours(tmp_path: Path):
    rows = json.loads(run("-r", tmp_path, "--paper", PAPER, "--format", "json").stdout)
    assert all(row["ours_percent"] is None and row["difference"] is None for row in rows)
    assert all(row["command"].startswith("shiftbench ") for row in rows)


MODEL = "xcit_nano_12_p16"


def answers_of(folder: Path, model: str = MODEL) -> dict[str, Answer]:
    """What records answer to the claims of Table 1 about a model, by score."""
    answers = answer(read_claims("imagenet_main", PAPER), read_records([folder]))
    return {a.claim.score.column: a for a in answers if a.claim.model == model}


def test_a_record_of_the_same_model_and_data_answers_its_claims(tmp_path: Path):
    write_record(
        tmp_path,
        f"{MODEL}_af",
        broken={"integer": spread(200, [60, 2])},
        consistent={"half": [True] * 197 + [False] * 3},
        data="imagenet",
    )
    write_record(tmp_path, MODEL, broken={"crop": spread(20, [1])}, data="cifar10")
    assert all(a.score is None for a in answers_of(tmp_path).values())
    answers = answers_of(tmp_path, f"{MODEL}_af")
    answered = [metric for metric, a in answers.items() if a.score is not None]
    assert answered == ["top1", "consistency_half", "adversarial_integer"]
    assert answers["top1"].difference == pytest.approx(70.0 - 70.5)
    assert answers["adversarial_integer"].difference == pytest.approx(69.0 - 69.9)
    text = run("imagenet_main", "-r", tmp_path, "--paper", PAPER).stdout
    assert "69.0" in text
    assert "-0.9" in text


OTHERWISE = {
    "steps of a quarter pixel": ({"step": "1/4"}, "adversarial_integer[1/4] only"),
    "a sampled search": ({"mode": "sampled:2"}, "upper bound"),
    "a smaller grid": ({"max_shift": 3}, "adversarial_integer up to 3 steps only"),
    "the model's crop": ({"crop": "model"}, "crop model"),
    "padding": ({"pad": "reflect"}, "pad reflect"),
    "half precision": ({"precision": "bf16"}, "precision bf16"),
    "the training images": ({"split": "train"}, "split train"),
    "another engine": ({"engine": "compile"}, "engine compile"),
    "few images": ({"limit": 3}, "limit 3"),
    "few searched images": ({"search_limit": 5}, "5 of 20 images"),
}


@pytest.mark.parametrize("how", OTHERWISE)
def test_a_record_that_was_measured_otherwise_does_not_answer_and_says_why(
    tmp_path: Path, how: str
):
    changes, words = OTHERWISE[how]
    settings = {"split": "val", **changes}
    grid = {"max_shift": settings.pop("max_shift", 6)}
    shared = {"broken": {"integer": spread(20, [1])}, "data": "imagenet"}
    write_record(tmp_path / "1", MODEL, **shared, **grid, settings=settings)
    mine = answers_of(tmp_path)
    assert mine["adversarial_integer"].score is None
    assert words in mine["adversarial_integer"].remark
    assert mine["adversarial_half"].remark == ""  # nothing of the kind was measured
    clean = {"step", "mode", "search_limit", "max_shift"} & changes.keys()
    assert (mine["top1"].score is not None) == bool(clean)
    text = " ".join(run("imagenet_main", "-r", tmp_path, "--paper", PAPER).stdout.split())
    assert words in text
    assert f"-m {MODEL} -d imagenet:DIR" in text  # how to measure it
    older = {"created": "2020-01-01T00:00:00+00:00", "settings": {"split": "val"}}
    write_record(tmp_path / "2", MODEL, **shared, **older)  # as published
    beside = answers_of(tmp_path)["adversarial_integer"]
    assert beside.score is not None
    assert beside.remark == ""


def test_trainings_of_one_model_are_told_apart_by_their_name(tmp_path: Path):
    for variant, broken in (("scratch", 4), ("finetune", 2)):
        write_record(
            tmp_path,
            f"{MODEL}.{variant}",
            broken={"integer": spread(100, [broken])},
            data="cifar10",
        )
    records = read_records([tmp_path])
    for name, ours in (("scratch", 0.96), ("finetune", 0.98)):
        answers = answer(read_claims(name, PAPER), records)
        (only,) = [a for a in answers if a.score is not None]
        assert only.score is not None
        assert only.score.value == pytest.approx(ours)
    main = answer(read_claims("imagenet_main", PAPER), records)
    assert all(a.score is None for a in main)


def all_commands() -> list[str]:
    return commands([claim for table in TABLES for claim in read_claims(table, PAPER)])


def form(line: str) -> str:
    """A printed command without its model."""
    return re.sub(r"(xcit|timm:|hf:)[\w:/.-]+?(?=\.|/export|\s|$)", "MODEL", line)


def test_commands_make_each_record_once_and_parse():
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
    """Two folders of a few noisy images: one sorted by wnids, one by class numbers."""
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
    """Runs a printed line with a tiny model, tiny data and a tiny recipe, and nothing else."""
    Path("net.py").write_text(NETWORK)
    for step in line.split(" && "):
        words = shlex.split(step)[1:]
        words = [word.replace("xcit_nano_12_p16", "xcit_pico_6_p8") for word in words]
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


FORMS = {form(line): line for line in reversed(all_commands())}  # the first of each form: the nano


@pytest.mark.parametrize("shape", [f for f in FORMS if "train" not in f])
def test_the_printed_commands_measure(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    execute(FORMS[shape], stand_ins(tmp_path))
    (record,) = read_records([Path("results/runs")])
    assert record.data.name == "imagenet"


def test_a_printed_training_can_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (line,) = [line for line in all_commands() if f"runs/scratch-cifar10/{MODEL} " in line]
    execute(line, stand_ins(tmp_path))
    (record,) = read_records([Path("results/runs")])
    assert record.model.name == "xcit_pico_6_p8.scratch"


@pytest.mark.slow
@pytest.mark.parametrize("shape", [f for f in FORMS if "train" in f])
def test_every_printed_form_trains_and_measures(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    execute(FORMS[shape], stand_ins(tmp_path))
    (record,) = read_records([Path("results/runs")])
    words = shlex.split(FORMS[shape].rpartition(" && ")[2])
    entry = words[words.index("--name" if "--name" in words else "-m") + 1]
    assert record.model.name == entry.replace(MODEL, "xcit_pico_6_p8")


def test_mistakes_are_one_clear_sentence(tmp_path: Path):
    unknown = run("imagenet_mian", "--paper", PAPER)
    assert isinstance(unknown.exception, UsageError)
    assert "Did you mean 'imagenet_main'" in str(unknown.exception)
    missing = run("heads", "--paper", tmp_path)
    assert isinstance(missing.exception, DataError)
    assert "--paper" in str(missing.exception)
    assert "no folder" in str(run("heads", "-r", tmp_path / "no").exception)
    table = list(
        csv.DictReader(io.StringIO(run("heads", "--paper", PAPER, "--format", "csv").stdout))
    )
    assert table[0]["published_percent"] == "70.35"


def test_every_printed_score_is_published_as_printed():
    """Counted from the files themselves: whatever stands under a score's head is shown."""
    heads = ("top1", "consistency_", "adversarial_")
    printed = Counter(
        value
        for file in PAPER.glob("*.csv")
        if file.name != "public_networks.csv"  # shown beside what was measured
        for row in csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))
        for head, value in row.items()
        if head.startswith(heads)
    )
    figures = read_published(PAPER)
    assert Counter(figure.value for figure in figures) == printed
    zhang = [f for f in figures if "Zhang" in f.source]
    assert len(zhang) == 2 * 46
    assert zhang[-1][1:] == ("mobilenet_v2 blurpool", "imagenet", "consistency crop", "87.73")
    assert {f.metric for f in figures} >= {"adversarial integer 6 px", "adversarial half 3 px"}


def test_a_public_network_shows_both_figures_and_whether_they_agree() -> None:
    consistent = {"crop": [True] * 86 + [False] * 14}
    lost = {"tv:mobilenet_v2": 28, "timm:mobileone_s0": 60, "tv:resnet18": 30}
    records = [
        make_record(name, data="imagenet", broken={"crop": spread(100, [k])}, consistent=consistent)
        for name, k in lost.items()
    ]
    records.append(make_record("tv:squeezenet1_1", data="scenes"))
    first, second = side_by_side(records, PAPER)  # the others: not in the file, not on ImageNet
    assert (first.model, first.agrees) == ("tv:mobilenet_v2", True)
    assert str(first.published_consistency) == "86.50"
    assert first.cells()[1:5] == [
        "71.88 (torchvision)",
        "72.0 [62.5, 79.9]",
        "86.50",
        "86.0 [77.9, 91.5]",
    ]
    assert (second.model, second.agrees) == ("timm:mobileone_s0", False)
    assert second.published_consistency is None  # published of torchvision's weights alone


def test_a_published_accuracy_outside_our_interval_is_explained() -> None:
    records = load_records([PAPER.parent / "records"])
    board = [record for record in records if record.data.images >= 500]
    assert [p.model for p in side_by_side(board, PAPER) if not (p.agrees or p.remark)] == []
