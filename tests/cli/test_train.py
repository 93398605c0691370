"""`shiftbench train`, from its options to its output folder."""

import csv
import json
from pathlib import Path

import pytest
from command_line import shiftbench

from aft_models.cards import list_weights, weights_card
from shiftbench.models import load_model

SMALL = ("image_size=16", "canvas=20", "sizes=()", "batch_size=8", "epochs=2", "warmup_epochs=0")


def train(*words: str, code: int = 0) -> tuple[str, str]:
    return shiftbench("train", *words, code=code)[1:]


def words(folder: Path, model: str = "xcit_pico_6_p8", *more: str) -> list[str]:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    small = ["--limit", "24", "--shift-limit", "12", "--device", "cpu"]
    required = ["-m", model, "-d", "scenes", "--recipe", "cpu-scenes", "-o", str(folder)]
    return [*required, *settings, *small, *more]


def test_train_writes_log_curves_checkpoints_and_weights(tmp_path: Path) -> None:
    out, err = train(*words(tmp_path, "xcit_pico_6_p8", "--format", "json"))
    result = json.loads(out)
    assert result["epochs"] == 2
    assert result["scores"]["accuracy"]["n"] == 24
    assert result["scores"]["consistency_half"]["n"] == 12
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["accuracy"]) == pytest.approx(result["scores"]["accuracy"]["value"])
    assert rows[0]["consistency_integer"] == ""
    assert rows[1]["consistency_integer"] != ""
    assert {"last.pt", "best.pt", "log.csv", "curves.png", "export"} <= {
        entry.name for entry in tmp_path.iterdir()
    }
    assert list_weights(result["export"]) == ["xcit_pico_6_p8.scenes"]
    loaded = load_model("xcit_pico_6_p8", checkpoint=result["export"])
    assert loaded.num_classes == 12
    assert loaded.preprocessing.std == (0.18, 0.18, 0.18)
    assert "img/s" in err
    assert "left" in err

    # Repeating the command does nothing; other settings raise an error.
    again, _ = train(*words(tmp_path, "xcit_pico_6_p8", "--format", "json"))
    assert json.loads(again)["scores"] == result["scores"]
    _, complaint = train(*words(tmp_path, "xcit_pico_6_p8", "--set", "lr=1"), code=2)
    assert "belongs to another run: recipe.lr" in complaint

    # So does other data, with both values in the error.
    for options, differences in (
        (("--limit", "30"), ("data.limit 24 there, 30 here", "scored.images 24 there, 30 here")),
        (("--train-split", "val"), ("data.split 'train' there, 'val' here", "data.fingerprint")),
        (("--eval-split", "train"), ("scored.split", "there, 'train' here")),
        (("--shift-limit", "24"), ("scored.shift_images 12 there, 24 here",)),
    ):
        _, complaint = train(*words(tmp_path, "xcit_pico_6_p8", *options), code=2)
        assert "last.pt belongs to another run: " in complaint
        assert len(complaint.strip().splitlines()) == 1
        for difference in differences:
            assert difference in complaint

    # Exported weights can be fine-tuned.
    tuned = words(tmp_path / "tuned", "xcit_pico_6_p8", "--checkpoint", result["export"])
    out, _ = train(*tuned, "-q", "--eval-every", "0", "--tag", "again")
    assert list_weights(tmp_path / "tuned" / "export") == ["xcit_pico_6_p8.again"]
    assert "accuracy: " in out
    assert "n=24" in out
    with (tmp_path / "tuned" / "log.csv").open() as file:
        assert [row["accuracy"] != "" for row in csv.DictReader(file)] == [False, True]


def test_train_pretrained_starts_from_given_weights(tmp_path: Path) -> None:
    required = ["-m", "xcit_pico_6_p8.scenes", "--pretrained", "-d", "scenes", "-o", str(tmp_path)]
    few = ["--set", "epochs=1", "--set", "batch_size=12", "--set", "warmup_epochs=0"]
    rest = ["--limit", "24", "--shift-limit", "12", "--device", "cpu", "-j", "0", "-q"]
    train(*required, "--recipe", "finetune", *few, *rest)
    card = weights_card("xcit_pico_6_p8.scenes", tmp_path / "export")
    start = weights_card("xcit_pico_6_p8.scenes")
    assert (card.input_size, card.mean, card.std) == (start.input_size, start.mean, start.std)
    assert card.recipe["image_size"] == start.input_size
    assert card.scores["accuracy"] > 0.7  # the initial weights have these classes


@pytest.mark.parametrize(
    ("model", "more", "complaint"),
    [
        ("xcit_pico_6_p9", (), "unknown model to train 'xcit_pico_6_p9'. Did you mean"),
        ("xcit_pico_6_p8", ("--set", "epoch=2"), "Did you mean 'epochs'"),
        ("xcit_pico_6_p8", ("--pretrained",), "add their tag"),
        ("xcit_pico_6_p8", ("--tag", "my/tag"), "--tag takes letters, digits, _ and -"),
        ("xcit_pico_6_p8.scenes", (), "add --pretrained"),
        ("xcit_pico_6_p8", ("--set", "canvas=21"), "canvas must be image_size plus an even"),
        ("xcit_pico_6_p8", ("--precision", "bf16"), "needs a CUDA device"),
        ("xcit_pico_6_p8", ("--recipe", "imagenet"), "unknown recipe 'imagenet'"),
        ("xcit_pico_6_p8", ("--checkpoint", "nowhere.pt"), "no checkpoint at nowhere.pt"),
        ("xcit_pico_6_p8", ("--device", "gpu"), "unknown device 'gpu'"),
    ],
)
def test_train_invalid_request_prints_one_line(
    tmp_path: Path, model: str, more: tuple[str, ...], complaint: str
) -> None:
    code = 1 if "--checkpoint" in more else 2
    out, err = train(*words(tmp_path, model, *more), code=code)
    assert complaint in err
    assert out == ""
    assert len(err.strip().splitlines()) == 1
