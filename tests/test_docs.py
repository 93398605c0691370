"""The site builds without a warning, and the tutorials run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
LARGEST = 200_000  # bytes of a notebook: pictures are small, tables are short


def run(*words: str | Path) -> None:
    """Run a Python command from the root."""
    ran = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_outputs_are_small_and_without_local_paths(path: Path) -> None:
    text = path.read_text("utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert len(text) < LARGEST
    assert any(cell["outputs"] for cell in cells), "run `make notebooks`"
    counts = [cell["execution_count"] for cell in cells]
    assert counts == list(range(1, len(cells) + 1)), "run `make notebooks`"
    for cell in cells:
        for output in cell["outputs"]:
            assert output["output_type"] != "error"
            assert output.get("name") != "stderr"
    assert not re.search(r"/(home|root|tmp|Users)/|[A-Z]:\\\\|site-packages", text)


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs(path: Path) -> None:
    pytest.importorskip("nbclient", reason="needs the extra `docs`")
    run(path.parent / "execute.py", "--check", path)


@pytest.mark.slow
def test_screenshots_of_the_page_are_written(tmp_path: Path) -> None:
    pytest.importorskip("playwright", reason="playwright is not installed")
    if shutil.which("chromium") is None:
        pytest.skip("no Chromium on this machine")
    run(ROOT / "docs" / "make_screenshots.py", "-o", tmp_path)
    assert (tmp_path / "leaderboard.png").stat().st_size > 50_000


@pytest.mark.slow
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra `docs`")
    run("-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path)
    for page in ("index.html", "compare-peers/index.html", "reference/shiftbench/index.html"):
        assert (tmp_path / page).is_file()
    assert "language-pycon" in (tmp_path / "reference/shiftbench/index.html").read_text("utf-8")
