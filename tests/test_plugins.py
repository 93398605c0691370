"""Plug-ins: files and packages that register something when they are imported."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from shiftbench import plugins
from shiftbench.errors import UsageError
from shiftbench.plugins import load_plugins


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_load_plugins_imports_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tmp_path / "count"
    file = write(
        tmp_path / "own.py", f"with open({str(count)!r}, 'a') as file:\n    file.write('x')\n"
    )
    monkeypatch.chdir(tmp_path)
    load_plugins([file])
    load_plugins([Path("own.py"), tmp_path / "." / "own.py"])
    assert count.read_text() == "x"


def test_load_plugins_distinguishes_files_of_equal_name(tmp_path: Path) -> None:
    files = [
        write(tmp_path / folder / "own.py", f"class {folder}:\n    pass\n") for folder in ("A", "B")
    ]
    load_plugins(files)
    modules = {m for name, m in sys.modules.items() if name.startswith("shiftbench_plugin_own")}
    classes: list[Any] = [
        getattr(m, name) for m in modules for name in ("A", "B") if hasattr(m, name)
    ]
    homes = {c.__name__: Path(sys.modules[c.__module__].__file__ or "") for c in classes}
    assert homes == {"A": files[0], "B": files[1]}
    for plugged in classes:
        assert type(pickle.loads(pickle.dumps(plugged()))) is plugged


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("missing.py", None, "no plug-in at .*missing.py: --plugin takes a Python file"),
        ("broken.py", "def f(:\n", "cannot be imported: SyntaxError"),
        ("failing.py", "1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero"),
        ("needy.py", "import no_such_package\n", "No module named 'no_such_package'"),
        ("notes.txt", "hello\n", "ends in .py"),
    ],
)
def test_load_plugins_unusable_file_raises_usage_error(
    tmp_path: Path, name: str, text: str | None, words: str
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    before = set(sys.modules)
    with pytest.raises(UsageError, match=words):
        load_plugins([file])
    assert not [m for m in set(sys.modules) - before if "shiftbench_plugin" in m]


def test_load_plugins_imports_a_corrected_file(tmp_path: Path) -> None:
    file = write(tmp_path / "mended.py", "1 / 0\n")
    with pytest.raises(UsageError):
        load_plugins([file])
    file.write_text("value = 1\n")
    load_plugins([file])


class Entry:
    """An installed plug-in, as its package describes it."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name, self.value, self.error, self.loads = name, f"{name}:plug", error, 0

    def load(self) -> None:
        self.loads += 1
        if self.error is not None:
            raise self.error


def test_load_plugins_installed_once_and_named_on_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good, bad = Entry("good"), Entry("bad", ImportError("no module"))
    entries = [good]
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries)
    plugins._load_installed.cache_clear()
    load_plugins()
    load_plugins()
    assert good.loads == 1
    entries.append(bad)
    plugins._load_installed.cache_clear()
    with pytest.raises(UsageError, match=r"the installed plug-in 'bad' \(bad:plug\).*no module"):
        load_plugins()
    monkeypatch.undo()
    plugins._load_installed.cache_clear()
