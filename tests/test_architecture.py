"""Architecture: imports point one way, and no package uses private names of another."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BASE_MODULES = {path.stem for path in (ROOT / "shiftbench").glob("*.py")} - {
    "__init__",
    "evaluation",
    "exporting",
}
# Packages that a package of shiftbench may import, besides itself and the base modules.
ALLOWED = {
    "shifts": set(),
    "scenes": set(),
    "data": {"scenes", "shifts"},
    "tasks": {"data", "metrics"},
    "models": {"data", "tasks"},
    "metrics": {"shifts", "running"},  # running: only for type checking
    "records": {"metrics", "shifts", "models"},
    "running": {"metrics", "models", "data", "records", "shifts", "scenes", "tasks"},
    "auditing": {"models", "shifts", "data", "metrics", "running"},
    "training": {"models", "data", "metrics", "running"},
    "report": {"records", "metrics", "shifts", "data", "tasks"},
    "pictures": {"records", "report", "metrics", "shifts", "data", "models", "running", "tasks"},
}
PACKAGES = {"shiftbench": {"aft_models"}, "aft_models": set(), "cli": {"shiftbench", "aft_models"}}


def imports(file: Path, *, run_time: bool = False) -> list[tuple[str, str]]:
    """List every import of a file: the module, and the name that is imported from it."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if run_time and id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
    return found


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_top_level_packages_import_one_way(package: str) -> None:
    ours = {"shiftbench", "aft_models", "shiftbench_cli"}
    own = {"cli": "shiftbench_cli"}.get(package, package)
    for file in files(package):
        for module, _ in imports(file):
            top = module.split(".")[0]
            assert top not in ours - {own} - PACKAGES[package], f"{file} imports {module}"
            if package != "cli":
                assert top not in ("click", "rich"), f"{file} imports {module}"


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_one_way(package: str) -> None:
    for file in files(f"shiftbench/{package}"):
        for module, name in imports(file):
            if module.split(".")[0] != "shiftbench":
                continue
            other = [*module.split("."), name][1]
            known = {package, *BASE_MODULES, *ALLOWED[package]}
            assert other in known, f"{file.relative_to(ROOT)} imports {module}.{name}"


def test_metrics_import_running_for_type_checking_only() -> None:
    for file in files("shiftbench/metrics"):
        assert not any(m.startswith("shiftbench.running") for m, _ in imports(file, run_time=True))


def test_every_package_has_a_rule() -> None:
    packages = {path.parent.name for path in (ROOT / "shiftbench").glob("*/__init__.py")}
    assert packages == set(ALLOWED)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_uses_private_names_of_another(package: str) -> None:
    for file in files(package):
        own = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for module, name in imports(file):
            private = name.startswith("_") and not name.startswith("__")
            if private and module.split(".")[0] in ("shiftbench", "aft_models", "shiftbench_cli"):
                same = own.rpartition(".")[0].endswith(module.rpartition(".")[0])
                assert same, f"{file.relative_to(ROOT)} imports {module}.{name}"
