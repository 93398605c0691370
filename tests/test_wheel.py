"""Installed packages: the wheel contains every file and works outside the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("build", reason="the wheel is built with the package `build`")

ROOT = Path(__file__).parents[1]
PACKAGES = ("shiftbench", "aft_models", "cli/shiftbench_cli")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an sdist and a wheel from it, as for a release; return their folder."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    target = tmp_path_factory.mktemp("dist")
    words = ["build", "--no-isolation", "--outdir", str(target), str(source)]
    ran = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return target


def needed() -> set[str]:
    """List every file of the packages by its path in a wheel, without weights left by tests."""
    return {
        path.relative_to((ROOT / name).parent).as_posix()
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_wheel_and_sdist_contain_every_file_of_the_packages(built: Path) -> None:
    [wheel], [sdist] = built.glob("*.whl"), built.glob("*.tar.gz")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert needed() - names == set()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        Path(name).name for name in PACKAGES
    }
    with tarfile.open(sdist) as archive:
        unpacked = {name.partition("/")[2].removeprefix("cli/") for name in archive.getnames()}
    assert needed() - unpacked == set()


@pytest.mark.slow
def test_wheel_runs_from_an_empty_folder(built: Path, tmp_path: Path) -> None:
    """A separate environment uses the heavy dependencies of this one."""
    home, empty = tmp_path / "environment", tmp_path / "empty"
    empty.mkdir()
    venv.create(home, with_pip=False)
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / ("python.exe" if os.name == "nt" else "python")
    [wheel] = built.glob("*.whl")
    words = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run([sys.executable, *words], check=True)
    asked = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    # Appended to the path as a plain folder: its own .pth files, and so an editable install, are
    # not read.
    site = Path(asked.stdout.strip())
    borrowed = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    (site / "borrowed.pth").write_text("\n".join(borrowed), "utf-8")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def command(*words: str) -> str:
        ran = subprocess.run(
            [scripts / "shiftbench", *words],
            cwd=empty,
            env=clean,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert str(site / "aft_models" / "weights") in command("doctor")
    table = command("run", "--limit", "8")
    assert "scenes test, 8 images" in table
    command("leaderboard", "--leaderboard", "-o", "leaderboard.html")
    assert "(public)" in (empty / "leaderboard.html").read_text("utf-8")
