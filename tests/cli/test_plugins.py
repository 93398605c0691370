"""A plug-in with one entry of every registry appears in every output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

PLUGIN = Path(__file__).resolve().parents[1] / "toy_plugin.py"
# One process for all commands: the registries are its own, and torch is imported once.
SCRIPT = """
import contextlib, io, json, sys
from shiftbench_cli.main import main

ended = {}
for name, words in json.loads(sys.argv[1]).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as stop:
            ended[name] = [stop.code, out.getvalue(), err.getvalue()]
print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("plugged")
    plug, runs = ["--plugin", str(PLUGIN)], ["-o", "runs"]
    measure = ["-d", "noise", "-a", "mirrored", "-a", "turned"]
    measure += ["--max-shift", "1", "--metric", "opposites"]
    one = ["run", "-m", "toy:one", *measure, *plug, *runs]
    commands = {
        "models": ["list", "models", "toy*", *plug],
        "datasets": ["list", "datasets", "noise", *plug],
        "attacks": ["list", "attacks", "mirrored", *plug],
        "turns": ["list", "attacks", "turned", *plug],
        "metrics": ["list", "metrics", "opposites", *plug],
        "remedies": ["list", "remedies", "mirrored", *plug],
        "run": [*one, "--format", "csv"],
        "again": ["run", "-m", "toy:three", *measure, *plug, *runs],
        "remedy": ["run", "-m", "toy:one+mirrored_2", *measure, *plug, "-o", "repaired"],
        "missed": [*one, "--fail-below", "opposites_low=0.999"],
        "passed": [*one, "--fail-below", "adversarial_mirrored@1=0"],
        "csv": ["leaderboard", "runs", "--format", "csv", *plug],
        "markdown": ["leaderboard", "runs", "--format", "markdown", *plug],
        "latex": ["leaderboard", "runs", "--format", "latex", *plug],
        "html": ["leaderboard", "runs", "--format", "html", *plug],
        "card": ["leaderboard", "runs", "--format", "model-card", *plug],
        "names": ["leaderboard", "runs", "-o", "table.names", *plug],
        "plot": ["plot", "runs", "-o", "curves.svg", *plug],
        "compare": ["compare", "toy:one", "toy:three", "-r", "runs", *plug],
        "images": ["leaderboard", "runs", "-o", "images.csv", "--per-image", *plug],
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands)],
        cwd=folder,
        env={**os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    ended: dict[str, list[str]] = json.loads(done.stdout)
    ended["folder"] = [str(folder)]
    return ended


@pytest.mark.parametrize(
    "kind", ["models", "datasets", "attacks", "turns", "metrics", "remedies", "names", "plot"]
)
def test_plugin_entry_is_listed_and_used(outputs: dict[str, list[str]], kind: str) -> None:
    code, _, err = outputs[kind]
    assert code == 0, err


def test_plugin_run_stores_its_scores(outputs: dict[str, list[str]]) -> None:
    code, out, err = outputs["run"]
    assert code == 0, err
    lines = [line.split(",")[:4] for line in out.splitlines()]
    assert ["toy:one", "noise", "opposites", ""] in lines
    assert ["toy:one", "noise", "adversarial_mirrored", "1"] in lines
    folder = Path(outputs["folder"][0], "runs", "toy_one--noise")
    record = json.loads((folder / "record.json").read_text())
    assert record["scores"]["adversarial"]["mirrored"]["1"]["n"] == 20
    assert record["scores"]["opposites"]["n"] == 20


def test_plugin_attack_of_one_axis_has_a_line_of_offsets(outputs: dict[str, list[str]]) -> None:
    assert "15 °" in outputs["turns"][1]
    code, _, err = outputs["images"]
    assert code == 0, err
    images = pd.read_csv(Path(outputs["folder"][0], "images.csv"))
    failed = images[images["turned_failure_radius"] == 1]
    assert len(failed)
    assert set(failed["turned_dy"]) <= {-15.0, 15.0}
    assert set(failed["turned_dx"]) == {0.0}


def test_plugin_remedy_is_a_suffix_of_a_model(outputs: dict[str, list[str]]) -> None:
    code, _, err = outputs["remedy"]
    assert code == 0, err
    folder = Path(outputs["folder"][0])
    files = [*folder.glob("repaired/*/record.json"), folder / "runs/toy_one--noise/record.json"]
    repaired, original = (json.loads(file.read_text())["model"] for file in files)
    assert repaired["name"] == "toy:one+mirrored_2"
    assert repaired["digest"] != original["digest"]


@pytest.mark.parametrize(
    "form", ["csv", "markdown", "latex", "html", "card", "compare", "again", "names"]
)
def test_plugin_scores_appear_in_every_output(outputs: dict[str, list[str]], form: str) -> None:
    code, out, err = outputs[form]
    assert code == 0, err
    if form == "names":
        out = Path(outputs["folder"][0], "table.names").read_text()
    assert "mirrored" in out
    assert "opposites" in out


def test_plugin_attack_is_plotted_with_its_summary(outputs: dict[str, list[str]]) -> None:
    text = Path(outputs["folder"][0], "curves.svg").read_text()
    assert "crops of the mirror image" in text


def test_plugin_scores_can_have_thresholds(outputs: dict[str, list[str]]) -> None:
    assert outputs["missed"][0] == 3
    assert "opposites (low end) is" in outputs["missed"][2]
    assert outputs["passed"][0] == 0
