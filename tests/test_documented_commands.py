"""Every command in the documentation is parsed by the command line."""

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
    ROOT / "results" / "README.md",
    *sorted((ROOT / "docs").glob("**/*.md")),
    *sorted((ROOT / "docs").glob("**/*.ipynb")),
]
ENDS = (";", "|", "&&", ">", "#")  # end a command in a shell


def commands(text: str) -> list[str]:
    """Return every `shiftbench ...` of a page: lines of code blocks, and text in backticks."""
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
    """Return the words of one command, without redirections and comments."""
    words = []
    for word in shlex.split(line, comments=True):
        if word in ENDS:
            break
        words.append(word)
    return words[1:]


@pytest.mark.parametrize(
    ("page", "line"), DOCUMENTED, ids=[f"{page.name}: {line}" for page, line in DOCUMENTED]
)
def test_documented_command_parses(page: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
        return  # the name alone
    try:
        command.make_context(name, words, parent=context)
    except click.MissingParameter:
        assert line not in block_lines(page), line  # only prose may leave required options out


def block_lines(page: Path) -> set[str]:
    blocks = re.findall(r"```[a-z]*\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    return {line.strip() for block in blocks for line in block.splitlines()}


def test_commands_are_found_and_a_wrong_option_is_an_error() -> None:
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
