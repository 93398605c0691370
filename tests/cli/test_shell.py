"""What the terminal gets: tables that fit it, escape codes only if it wants them, and Tab."""

from __future__ import annotations

import ctypes
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from command_line import shiftbench

from shiftbench.records.record import Record, read_records
from shiftbench_cli import render, scoreboard
from shiftbench_cli.main import COMMANDS, cli, keep_freed_memory

RECORDS = Path(__file__).parents[2] / "results" / "records"


class Terminal(io.StringIO):
    """Stands for the terminal of a user."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def scenes() -> list[Record]:
    return [r for r in read_records([RECORDS]) if r.data.name == "scenes"]


def shown(
    records: list[Record], monkeypatch: pytest.MonkeyPatch, columns: int, **variables: str
) -> str:
    """What a terminal of so many columns shows for records."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **variables, "COLUMNS": str(columns)}.items():
        monkeypatch.setenv(name, value)
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    scoreboard.print_run(records, "table")
    return screen.getvalue()


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_80_columns_hold_every_score_in_one_row_per_model(
    scenes: list[Record], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = plain(shown(scenes, monkeypatch, 80, **variables))
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    for record in scenes:
        [row] = [line for line in lines if line.startswith(f"{record.model.name} ")]
        values = [cell.rstrip("*") for cell in row.split()[1:]]
        scores = {n: s for n, s in record.scores.items() if n.family != "change"}
        largest = [s for n, s in scores.items() if n.radius in (None, max_radius(record))]
        assert sorted(values) == sorted(score.text() for score in largest)
    shares = [s for record in scenes for n, s in record.scores.items() if n.family != "change"]
    reach = max(max(s.high - s.value, s.value - s.low) for s in shares)
    note = f"n=120; 95% intervals reach at most {100 * reach:.1f} points from a score."
    assert note in " ".join(text.split())


def plain(text: str) -> str:
    """Without bold and dim."""
    for code in ("\x1b[1m", "\x1b[2m", "\x1b[0m"):
        text = text.replace(code, "")
    return text


def max_radius(record: Record) -> int:
    return max(name.radius for name in record.scores if name.radius is not None)


@pytest.mark.parametrize("columns", [30, 50, 80, 120, 180, 250])
def test_no_width_cuts_a_score_or_overflows(
    scenes: list[Record], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = plain(shown(scenes, monkeypatch, columns))
    _, *table = text.splitlines()
    assert max(len(line.rstrip()) for line in table) <= columns
    for record in scenes:
        for name, score in record.scores.items():
            if name.family != "change" and name.radius in (None, max_radius(record)):
                assert score.text() in text
                assert columns < 200 or score.interval() in text


def test_no_color_and_dumb_terminals_get_plain_text(
    scenes: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[" in shown(scenes, monkeypatch, 250)  # a terminal that wants it gets bold
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        text = shown(scenes, monkeypatch, 250, **variables)
        assert "\x1b" not in text
        assert "NO_COLOR" not in variables or "*: best" in text


def test_lines_are_redrawn_only_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert render.is_live(render.stderr())
    monkeypatch.setenv("TERM", "dumb")
    assert not render.is_live(render.stderr())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setenv("TERM", "xterm")
    assert not render.is_live(render.stderr())


def completions(*words: str) -> list[str]:
    complete = BashComplete(cli, {}, "shiftbench", "_SHIFTBENCH_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


def test_tab_offers_commands_options_and_names() -> None:
    assert completions("") == list(COMMANDS)
    assert completions("re") == ["repair", "reproduce"]
    assert "--max-shift" in completions("run", "--m")
    assert "xcit_pico_6_p8_af.scenes" in completions("run", "-m", "xcit_pico")
    assert "timm:resnet50" in completions("run", "-m", "timm:resnet5")
    assert completions("run", "-d", "cifar") == ["cifar10", "cifar100"]
    assert completions("run", "-a", "c") == ["crop", "camera"]
    assert "cpu-scenes" in completions("train", "--recipe", "cpu")
    assert "flip" in completions("run", "--metric", "f")


LIST = """
import sys
from shiftbench_cli.main import main
try:
    main(["list", *sys.argv[1:]])
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


def test_names_are_listed_without_torch(tmp_path: Path) -> None:
    """Models need it once per installation: timm, which knows their names, imports it."""

    def listed(*words: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-c", LIST, *words, "--format", "json"],
            env={**os.environ, "SHIFTBENCH_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout, done.stderr.strip()

    for kind in ("attacks", "logs"):
        assert listed(kind)[1] == "False"
    slow, fast = listed("models", "xcit*af*"), listed("models", "xcit*af*")
    assert (slow[1], fast[1]) == ("True", "False")
    assert slow[0] == fast[0]
    assert "xcit_nano_12_p16_af" in fast[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_a_help_text(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.help
    for option in (p for p in command.params if isinstance(p, click.Option)):
        assert option.help, option.opts
        assert option.help.endswith("."), option.opts


def test_the_doctor_says_what_a_bug_report_needs() -> None:
    code, text, _ = shiftbench("doctor")
    assert code == 0
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    listed = json.loads(shiftbench("doctor", "--format", "json").out)
    facts = {fact["name"]: fact["value"] for fact in listed}
    assert all(value in text for value in facts.values())
    assert {"shiftbench", "torch", "timm", "device", "threads", "hf"} <= facts.keys()
    assert facts["cache"].startswith(os.environ["SHIFTBENCH_CACHE"])


def test_the_allocator_of_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()

    def refuse(name: None) -> None:
        raise TypeError("no such thing on Windows")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert not keep_freed_memory()
