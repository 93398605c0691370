"""Portability: no dependence on POSIX or on UTF-8 consoles."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [
    path
    for package in ("shiftbench", "aft_models", "cli/shiftbench_cli")
    for path in sorted((ROOT / package).rglob("*.py"))
]
POSIX_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "syslog")
POSIX_CALLS = {
    "chown",
    "fork",
    "geteuid",
    "getloadavg",
    "getpgid",
    "getuid",
    "killpg",
    "mkfifo",
    "nice",
    "setsid",
    "statvfs",
    "sysconf",
    "uname",
}
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in ("fcntl", "resource"):
    sys.modules[name] = None  # `import fcntl` now fails, as it does on Windows
count = 0
for package in ("aft_models", "shiftbench", "shiftbench_cli"):
    home = importlib.import_module(package)
    for module in pkgutil.walk_packages(home.__path__, f"{package}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            count += 1
print(count)
"""


def python(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_modules_import_without_posix_modules() -> None:
    ran = python("-c", IMPORT_ALL)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) >= len(SOURCES) - 5  # packages' own files and __main__ are not counted


def calls(path: Path) -> Iterator[ast.Call]:
    tree = ast.parse(path.read_text("utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sources_use_no_platform_specific_code(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not {alias.name for alias in node.names} & set(POSIX_MODULES)
        elif isinstance(node, ast.ImportFrom):
            assert node.module not in POSIX_MODULES
    for call in calls(path):
        function = call.func
        if not isinstance(function, ast.Attribute):
            continue
        if isinstance(function.value, ast.Name) and function.value.id == "os":
            assert function.attr not in POSIX_CALLS, f"os.{function.attr} is not on Windows"
        if function.attr in ("read_text", "write_text"):
            needed = 1 if function.attr == "read_text" else 2
            named = any(keyword.arg == "encoding" for keyword in call.keywords)
            assert named or len(call.args) >= needed, (
                f"line {call.lineno}: without an encoding, Windows takes its code page"
            )


def test_table_prints_on_console_without_unicode() -> None:
    """Tables have lines and ≤, which many code pages lack."""
    words = ("-m", "shiftbench_cli", "leaderboard", str(ROOT / "results" / "records"))
    ran = python(*words, PYTHONIOENCODING="ascii:strict")
    assert ran.returncode == 0, ran.stderr
    assert "xcit_pico" in ran.stdout
