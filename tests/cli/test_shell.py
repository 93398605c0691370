"""Terminal output: grouped help, tables of any width, completion, plain text."""

from __future__ import annotations

import ctypes
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from command_line import shiftbench

from shiftbench.records.compare import compare
from shiftbench.records.folder import load_records, select
from shiftbench.records.result import Result
from shiftbench.report.scores import leaderboard, score_cells
from shiftbench.running import Progress
from shiftbench_cli import render
from shiftbench_cli.main import COMMANDS, cli, keep_freed_memory
from shiftbench_cli.progress import RunProgress

RECORDS = Path(__file__).parents[2] / "results" / "records"
RUN_HELP = """
Model: --model --checkpoint
Data: --data --split --limit --class-map --crop-pct --pad --scale
Evaluation: --attack --max-shift --metric --no-consistency --full-grid
Execution: --device --batch-size --workers --nproc
Output: --output --fresh --leaderboard --format --quiet
CI checks (exit code 3): --fail-below --fail-above --fail-if-worse
Help: --help-all --help
"""


class Terminal(io.StringIO):
    """Terminal of a user."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def scenes() -> list[Result]:
    return select(load_records([RECORDS]), data="scenes")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Terminal()
    monkeypatch.setattr(render, "_reserved", [screen])  # pytest replaces sys.stdout
    return screen


def plain(text: str) -> str:
    return re.sub(r"\x1b\[\d+m", "", text)


# --- help


def groups(text: str) -> dict[str, list[str]]:
    """Return the options under each heading of a help text."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z].*:", line):
            found[line[:-1]] = []
        elif found and (option := re.match(r"  (?:-\w, )?(--[\w-]+)", line)):
            list(found.values())[-1].append(option[1])
    return found


def test_run_help_lists_the_common_options_in_groups() -> None:
    expected = {
        title: options.split()
        for title, options in (line.split(": ") for line in RUN_HELP.strip().splitlines())
    }
    text = shiftbench("run", "-h", code=0).out
    assert groups(text) == expected
    example = "  shiftbench run -m timm:resnet50 -d imagenet:/data -a crop --max-shift 3"
    assert example in text.splitlines()


def test_run_help_all_adds_the_rare_options() -> None:
    usual, everything = (
        groups(shiftbench("run", word, code=0).out) for word in ("-h", "--help-all")
    )
    assert usual.keys() == everything.keys()
    added = {o for title, names in everything.items() for o in names if o not in usual[title]}
    assert added == {
        *("--strip-prefix", "--name", "--suite-root", "--step", "--consistency-samples", "--seed"),
        *("--attack-limit", "--download", "--skip-bad", "--precision", "--shard", "--submit"),
        *("--jobs", "--slurm", "--wait", "--dry-run", "--plugin", "--logger"),
        *("--ap", "--score-threshold"),
    }


def test_program_without_a_command_prints_help() -> None:
    assert shiftbench(code=0).out == shiftbench("-h", code=0).out
    assert "unknown command 'lst'. Did you mean 'list'" in shiftbench("lst", code=2).err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name: str) -> None:
    assert shiftbench(name, "-h", code=0).out.startswith(f"Usage: shiftbench {name}")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for option in (p for p in command.params if isinstance(p, click.Option)):
        assert option.help, option.opts
        assert re.search(r"\.(  \[default.*\])?$", option.help), option.opts


# --- tables


@pytest.mark.parametrize("columns", [60, 80, 120, 250])
def test_leaderboard_fits_any_terminal_and_cuts_no_number(
    columns: int, scenes: list[Result], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    (table,) = leaderboard(score_cells(scenes))
    render.print_leaderboard([table])
    text = plain(terminal.getvalue())
    assert max(len(line.rstrip()) for line in text.splitlines()) <= columns
    for cell in table.cells.values():
        assert re.search(rf"(?<![\d.]){re.escape(cell.value.text())}(?![\d.])", text)
        assert (cell.value.interval() in text) == (columns >= 250)
    assert ("95% intervals within" in " ".join(text.split())) == (columns < 250)
    rows = [line for line in text.splitlines() if line.startswith(scenes[0].model.name[:18])]
    assert columns < 120 or len(rows) == 1, "one table"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_leaderboard_folds_a_long_name(
    columns: int, scenes: list[Result], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    monkeypatch.setenv("COLUMNS", str(columns))
    name = "a_rather_long_name_of_a_network_" * 3
    long = replace(scenes[0], model=replace(scenes[0].model, name=name))
    (table,) = leaderboard(score_cells([long, *scenes[1:]]))
    render.print_leaderboard([table])
    lines = plain(terminal.getvalue()).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= columns
    assert name in "".join(line.split(" ")[0] for line in lines)


def test_comparison_fits_80_columns(
    scenes: list[Result], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    differences, _ = compare(scenes[0], scenes[1:])
    render.print_comparison(scenes[0], differences)
    text = plain(terminal.getvalue())
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    for one in differences:
        assert f"{100 * one.test.difference:+.1f}" in text
    assert "n=120 common images" in " ".join(text.split())


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_terminal_without_color_gets_plain_text_and_stars(
    variables: dict[str, str],
    scenes: list[Result],
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    tables = leaderboard(score_cells(scenes))
    render.print_leaderboard(tables)
    assert "\x1b[1m" in terminal.getvalue()
    terminal.truncate(0)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    render.print_leaderboard(tables)
    assert "\x1b" not in terminal.getvalue()
    assert "*: best" in " ".join(terminal.getvalue().split())


def test_progress_redraws_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stream, is_live in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        console = render.stderr()
        assert render.is_live(console) is is_live
        progress = RunProgress(console)
        show = progress.run("net")
        show(Progress(0, 4, 0, 40))
        show(Progress(4, 4, 30, 40))
        progress.close()
        assert "4/4 images, 30 passes" in stream.getvalue()
        assert is_live or stream.getvalue().count("\n") == 1


# --- completion


def completions(*words: str) -> list[str]:
    complete = BashComplete(cli, {}, "shiftbench", "_SHIFTBENCH_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


def test_completion_offers_commands_options_names_and_remedies() -> None:
    assert completions("") == list(COMMANDS)
    assert completions("re") == ["repair", "reproduce"]
    assert "--max-shift" in completions("run", "--m")
    assert "xcit_pico_6_p8_af.scenes" in completions("run", "-m", "xcit_pico")
    assert "timm:resnet50" in completions("run", "-m", "timm:resnet5")
    assert "timm:resnet50+circular+aps" in completions("run", "-m", "timm:resnet50+circular+a")
    assert completions("run", "-d", "cifar") == ["cifar10", "cifar100"]
    assert completions("run", "-a", "c") == ["crop", "camera"]
    assert "cpu-scenes" in completions("train", "--recipe", "cpu")
    assert "flip" in completions("run", "--metric", "f")
    assert "paper" in completions("run", "pa")


LIST = """
import sys
from shiftbench_cli.main import main
try:
    main(["list", *sys.argv[1:]])
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


def test_list_does_not_import_torch(tmp_path: Path) -> None:
    """Models need torch once per installation, because timm imports it."""

    def listed(*words: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-c", LIST, *words, "--format", "json"],
            env={**os.environ, "SHIFTBENCH_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout, done.stderr.strip()

    assert listed("attacks")[1] == "False"
    slow, fast = listed("models", "xcit*af*"), listed("models", "xcit*af*")
    assert (slow[1], fast[1]) == ("True", "False")
    assert slow[0] == fast[0]


def test_doctor_prints_facts_for_a_bug_report() -> None:
    code, text, _ = shiftbench("doctor")
    assert code == 0
    facts = {
        f["name"]: f["value"] for f in json.loads(shiftbench("doctor", "--format", "json").out)
    }
    assert all(value in text for value in facts.values())
    assert {"shiftbench", "torch", "timm", "device", "threads", "hf"} <= facts.keys()
    assert facts["cache"].startswith(os.environ["SHIFTBENCH_CACHE"])


def test_doctor_suite_reports_the_cost_and_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "defaults: {limit: 12, attacks: [crop], max_shift: 1, consistency: []}\n"
        "runs: [{model: xcit_pico_6_p8.scenes}, {model: nowhere.py:make}]\n"
    )
    ran = shiftbench("doctor", "--suite", tmp_path / "mine.yaml", "--device", "cpu", code=1)
    assert "12 images, at most 108 forward passes" in ran.out
    assert "1 of 2 runs are ready" in ran.out


def test_keep_freed_memory_without_glibc_returns_false(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()
