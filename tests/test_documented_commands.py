"""No command in the documentation rots: each is parsed by the command line as it is today."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from shiftbench_cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("**/*.md")),
    *sorted((ROOT / "docs").glob("**/*.ipynb")),
]
ENDS = (";", "|", "&&", ">", "#")  # what ends a command in a shell


def commands(text: str) -> list[str]:
    """Every `shiftbench ...` of a page: lines of code blocks, and what stands in backticks."""
    text = text.replace("\\\n", " ")
    blocks = re.findall(r"^ *```[a-z]*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines += re.findall(r"`(shiftbench [^`]+)`", prose.replace("\n", " "))
    lines_of_page = [line.removeprefix("$ ").removeprefix("uvx ") for line in lines]
    return [line for line in lines_of_page if line.startswith("shiftbench ")]


def of_page(page: Path) -> list[str]:
    text = page.read_text("utf-8")
    if page.suffix != ".ipynb":
        return commands(text)
    lines_of_page = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines_of_page += commands(source)
        else:
            lines_of_page += [
                line[1:] for line in source.splitlines() if line.startswith("!shiftbench ")
            ]
    return lines_of_page


DOCUMENTED = [(page, line) for page in PAGES for line in of_page(page)]


def words_of(line: str) -> list[str]:
    """The words of one command, without what a shell would do with its output."""
    words = []
    for word in shlex.split(line, comments=True):
        if word in ENDS:
            break
        words.append(word)
    return words[1:]


@pytest.mark.parametrize(
    ("page", "line"), DOCUMENTED, ids=[f"{page.name}: {line}" for page, line in DOCUMENTED]
)
def test_it_is_understood(page: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("shiftbench.plugins.load_plugins", lambda files=(): None)
    name, *words = words_of(line)
    if name in ("COMMAND", "--version", "-h"):
        return
    assert name in COMMANDS
    context = click.Context(cli, info_name="shiftbench", **cli.context_settings)
    command = cli.get_command(context, name)
    assert command is not None
    if words in (["..."], []) or "-h" in words:
        return  # its name alone: what it needs is said elsewhere
    try:
        command.make_context(name, words, parent=context)
    except click.MissingParameter:
        assert line not in block_lines(page), line  # prose may leave things out, a block may not


def block_lines(page: Path) -> set[str]:
    blocks = re.findall(r"```[a-z]*\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    return {line.strip() for block in blocks for line in block.splitlines()}


def test_there_are_commands_and_a_wrong_one_is_noticed() -> None:
    assert len(DOCUMENTED) > 40
    assert commands("```\nshiftbench run --color\n```\nand `shiftbench list models`") == [
        "shiftbench run --color",
        "shiftbench list models",
    ]
    assert words_of("shiftbench run -o x > log  # a remark") == ["run", "-o", "x"]
    context = click.Context(cli, info_name="shiftbench", **cli.context_settings)
    run = cli.get_command(context, "run")
    assert run is not None
    with pytest.raises(click.NoSuchOption):
        run.make_context("run", ["--color"], parent=context)
