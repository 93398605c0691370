"""One plug-in with one of everything shows up in every output, without another edit."""

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
    measure += ["--max-shift", "1", "--metric", "sureness"]
    commands = {
        "models": ["list", "models", "toy*", *plug],
        "datasets": ["list", "datasets", "noise", *plug],
        "attacks": ["list", "attacks", "mirrored", *plug],
        "turns": ["list", "attacks", "turned", *plug],
        "metrics": ["list", "metrics", "sure", *plug],
        "formats": ["list", "formats", "names", *plug],
        "logs": ["list", "logs", "lines", *plug],
        "remedies": ["list", "remedies", "mirrored", *plug],
        "run": ["run", "-m", "toy:one", *measure, "--format", "csv", *plug, *runs],
        "again": ["run", "-m", "toy:three", *measure, "--log", "lines", *plug, *runs],
        "remedy": ["run", "-m", "toy:one+mirrored_2", *measure, *plug, "-o", "repaired"],
        "guard": ["run", "-m", "toy:one", *measure, "--fail-under", "sureness=0.99", *plug, *runs],
        "guarded": [
            *("run", "-m", "toy:one", *measure, *plug, *runs),
            *("--fail-under", "adversarial_mirrored@1=0"),
        ],
        "csv": ["leaderboard", "runs", "--format", "csv", *plug],
        "markdown": ["leaderboard", "runs", "--format", "markdown", *plug],
        "latex": ["leaderboard", "runs", "--format", "latex", *plug],
        "html": ["leaderboard", "runs", "--format", "html", *plug],
        "card": ["leaderboard", "runs", "--format", "model-card", *plug],
        "names": ["leaderboard", "runs", "-o", "table.names", *plug],
        "plot": ["plot", "runs", "-o", "curves.svg", *plug],
        "compare": ["compare", "toy:one", "toy:three", "-r", "runs", *plug],
        "unplugged": ["list", "attacks", "mirrored"],
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


KINDS = ["models", "datasets", "attacks", "metrics", "formats", "logs", "remedies"]


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_listed(outputs: dict[str, list[str]], kind: str) -> None:
    code, _, err = outputs[kind]
    assert code == 0, err


def test_a_run_measures_with_it(outputs: dict[str, list[str]]) -> None:
    code, out, err = outputs["run"]
    assert code == 0, err
    lines = [line.split(",")[:4] for line in out.splitlines()]
    assert ["toy:one", "noise", "sureness", ""] in lines
    assert ["toy:one", "noise", "adversarial_mirrored", "1"] in lines
    folder = Path(outputs["folder"][0], "runs", "toy_one--noise")
    record = json.loads((folder / "record.json").read_text())
    assert record["scores"]["adversarial"]["mirrored"]["1"]["n"] == 20
    assert record["scores"]["sureness"]["n"] == 20
    assert record["metrics"]["sureness"]["kind"] == "sureness"


def test_an_attack_of_one_parameter_searches_a_line(outputs: dict[str, list[str]]) -> None:
    assert "15 °" in outputs["turns"][1]
    folder = Path(outputs["folder"][0], "runs", "toy_one--noise")
    curve = json.loads((folder / "record.json").read_text())["scores"]["adversarial"]["turned"]
    assert curve["0"]["value"] > curve["1"]["value"]
    samples = pd.read_parquet(folder / "samples.parquet")
    broken = samples[samples["turned_broken_radius"] == 1]
    assert set(broken["turned_dy"]) <= {-15.0, 15.0}
    assert set(broken["turned_dx"]) == {0.0}


def test_a_remedy_is_a_suffix_of_a_models_name(outputs: dict[str, list[str]]) -> None:
    code, _, err = outputs["remedy"]
    assert code == 0, err
    folder = Path(outputs["folder"][0])
    files = [*folder.glob("repaired/*/record.json"), folder / "runs/toy_one--noise/record.json"]
    repaired, plain = (json.loads(file.read_text())["model"] for file in files)
    assert repaired["name"] == "toy:one+mirrored_2"
    assert repaired["digest"] != plain["digest"]


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("csv", ["adversarial_mirrored", "sureness"]),
        ("markdown", ["adversarial mirrored", "sureness"]),
        ("latex", ["mirrored", "sureness"]),
        ("html", ["adversarial_mirrored", "sureness"]),
        ("card", ["adversarial_mirrored", "sureness"]),
        ("compare", ["mirrored", "sureness"]),
        ("again", ["mirrored", "sureness"]),
    ],
)
def test_every_output_shows_it(outputs: dict[str, list[str]], form: str, words: list[str]) -> None:
    code, out, err = outputs[form]
    assert code == 0, err
    assert all(word in out for word in words)


def test_a_format_of_its_own_and_the_figure(outputs: dict[str, list[str]]) -> None:
    folder = Path(outputs["folder"][0])
    assert outputs["names"][0] == 0
    assert "adversarial_mirrored" in (folder / "table.names").read_text().split()
    assert outputs["plot"][0] == 0
    assert "crops of the mirror image" in (folder / "curves.svg").read_text()


def test_a_log_of_its_own(outputs: dict[str, list[str]]) -> None:
    file = Path(outputs["folder"][0], "runs", "logs", "toy_three--noise", "lines.txt")
    words = [line.split()[:2] for line in file.read_text().splitlines()]
    assert ["0", "sureness"] in words
    assert ["1", "adversarial_mirrored"] in words


def test_its_scores_can_guard(outputs: dict[str, list[str]]) -> None:
    assert outputs["guard"][0] == 3
    assert "sureness is" in outputs["guard"][2]
    assert outputs["guarded"][0] == 0
