"""The house: imports go one way, and a room never looks into another's private names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOOR = {path.stem for path in (ROOT / "shiftbench").glob("*.py")} - {"__init__", "evaluation"}
# What a room may import, besides itself and the floor. A room is a folder or a module.
ALLOWED = {
    "shifts": set(),
    "scenes": set(),
    "data": {"scenes", "shifts"},
    "models": set(),
    "metrics": {"shifts"},
    "records": {"metrics", "shifts", "logs", "models"},
    "logs": set(),
    "audit": {"models", "shifts", "data", "metrics"},
    "run": {"metrics", "models", "data", "records", "shifts", "scenes", "suites"},
    "report": {"records", "metrics", "shifts", "data", "logs", "models"},
}
PACKAGES = {"shiftbench": {"aft_models"}, "aft_models": set(), "cli": {"shiftbench", "aft_models"}}


def imports(file: Path) -> list[tuple[str, str]]:
    """Every import of a file: the module, and the name that is taken from it."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
    return found


def room_of(module: str, name: str = "") -> str:
    parts = [*module.split("."), name]
    return parts[1]


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_one_way(package: str) -> None:
    ours = {"shiftbench", "aft_models", "shiftbench_cli"}
    own = {"cli": "shiftbench_cli"}.get(package, package)
    for file in files(package):
        for module, _ in imports(file):
            top = module.split(".")[0]
            assert top not in ours - {own} - PACKAGES[package], f"{file} imports {module}"
            if package != "cli":
                assert top not in ("click", "rich"), f"{file} imports {module}"


@pytest.mark.parametrize("room", ALLOWED)
def test_rooms_import_one_way(room: str) -> None:
    for file in files(f"shiftbench/{room}"):
        for module, name in imports(file):
            if module.split(".")[0] != "shiftbench":
                continue
            other = room_of(module, name)
            known = {room, *FLOOR, *ALLOWED[room]}
            assert other in known, f"{file.relative_to(ROOT)} imports {module}.{name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_room_takes_private_names_of_another(package: str) -> None:
    for file in files(package):
        own = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for module, name in imports(file):
            private = name.startswith("_") and not name.startswith("__")
            if private and module.split(".")[0] in ("shiftbench", "aft_models", "shiftbench_cli"):
                same = own.rpartition(".")[0].endswith(module.rpartition(".")[0])
                assert same, f"{file.relative_to(ROOT)} imports {module}.{name}"
