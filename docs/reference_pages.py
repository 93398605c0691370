"""Write the pages of the CLI and API reference: a hook of mkdocs.

The CLI page contains the help of every command. The API has a page per package, whose signatures
and docstrings are read by mkdocstrings.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

from shiftbench_cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[1]
PACKAGES = ("shiftbench", "aft_models", "cli/shiftbench_cli")
CLI_PAGE = "reference/cli.md"
WIDTH = 84  # characters of a help text: as wide as a page


def cli_reference() -> str:
    """Return the page of all commands with all options."""
    lines = [
        "# Command line",
        "",
        "Every command and option, generated from the program itself. `-h` prints the common",
        "options of a command, `--help-all` all of them.",
        "",
        "```bash",
        "shiftbench run --help-all",
        "```",
        "",
    ]
    parent = click.Context(cli, info_name="shiftbench", **cli.context_settings)
    for name in COMMANDS:
        command = cli.get_command(parent, name)
        assert command is not None
        context = click.Context(
            command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH
        )
        context.meta["help_all"] = True
        lines += [f"## {name}", "", "```text", context.get_help(), "```", ""]
    return "\n".join(lines)


def _pages() -> dict[str, list[str]]:
    """Return the modules of each package."""
    pages: dict[str, list[str]] = {}
    for place in PACKAGES:
        home = ROOT / place
        for file in sorted(home.rglob("*.py")):
            if file.stem == "__main__":
                continue
            parts = file.relative_to(home.parent).with_suffix("").parts
            package = ".".join(parts[:-1])
            module = package if file.stem == "__init__" else ".".join(parts)
            modules = pages.setdefault(package, [])
            modules.insert(0 if file.stem == "__init__" else len(modules), module)
    return pages


def _directive(module: str) -> str:
    """Return the directive of a module; a package that only imports names lists no members."""
    home = ROOT / "cli" if module.startswith("shiftbench_cli") else ROOT
    package = home.joinpath(*module.split(".")) / "__init__.py"
    if not package.is_file():
        return f"::: {module}\n"
    body = ast.parse(package.read_text("utf-8")).body
    defined = [n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    if any(not node.name.startswith("_") for node in defined):
        return f"::: {module}\n"
    return f"::: {module}\n    options:\n      members: false\n"


def on_config(config: Any) -> None:
    """Add the pages of the API to the navigation."""
    entries = [{package: f"reference/api/{package}.md"} for package in sorted(_pages())]
    reference = next(entry["Reference"] for entry in config.nav if "Reference" in entry)
    reference.append({"API": entries})


def on_files(files: Files, config: Any) -> None:
    """Add the pages to the site."""
    files.append(File.generated(config, CLI_PAGE, content=cli_reference()))
    for package, modules in _pages().items():
        text = [f"# {package}\n", *map(_directive, modules)]
        path = f"reference/api/{package}.md"
        files.append(File.generated(config, path, content="\n".join(text)))
