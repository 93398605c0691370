"""Writes the pages of the API reference: one per package, from the modules that are there.

A hook of mkdocs. Signatures and docstrings are read by mkdocstrings.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PACKAGES = ("shiftbench", "aft_models", "cli/shiftbench_cli")


def _pages() -> dict[str, list[str]]:
    """Package -> its modules that have something public."""
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
    """What mkdocstrings is told; a package that only gathers names from its modules lists none."""
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
    """Adds the pages to the navigation."""
    entries = [{package: f"reference/{package}.md"} for package in sorted(_pages())]
    config.nav.append({"Reference": entries})


def on_files(files: Files, config: Any) -> None:
    """Adds the pages to the site."""
    for package, modules in _pages().items():
        text = [f"# {package}\n", *map(_directive, modules)]
        path = f"reference/{package}.md"
        files.append(File.generated(config, path, content="\n".join(text)))
