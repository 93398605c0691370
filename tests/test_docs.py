"""Pages are short, links resolve, README commands print what is written, the site builds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import shiftbench

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted(DOCS.rglob("*.md"))
TUTORIALS = sorted((DOCS / "tutorials").glob("*.ipynb"))
LINKED = [README, ROOT / "CONTRIBUTING.md", ROOT / "results" / "README.md", *PAGES, *TUTORIALS]
GENERATED = (DOCS / "reference" / "cli.md", DOCS / "reference" / "api")  # by mkdocs
MOST_LINES = 200  # of a page
README_LINES = 150
FIRST_LINES = 60  # of the README, with `make demo` and `make test`
FIRST_COMMAND = 10  # lines of a page until a command begins
LARGEST = 200_000  # bytes of a notebook: pictures are small, tables are short


def run(*words: str | Path) -> None:
    """Run a Python command from the root."""
    ran = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_page_is_short_and_begins_with_a_command(page: Path) -> None:
    lines = page.read_text("utf-8").splitlines()
    assert len(lines) <= MOST_LINES
    fences = [number for number, line in enumerate(lines) if line.startswith("```")]
    assert fences, "expected a command"
    assert fences[0] < FIRST_COMMAND
    assert lines[0].startswith("# ")


@pytest.mark.parametrize("page", [README, *PAGES], ids=page_id)
def test_page_section_has_at_most_one_table(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for section in re.split(r"^#+ ", text, flags=re.MULTILINE):
        assert len(re.findall(r"^\| ?-", section, re.MULTILINE)) <= 1, section.splitlines()[0]


def test_readme_is_short_and_begins_with_what_a_newcomer_runs() -> None:
    lines = README.read_text("utf-8").splitlines()
    assert len(lines) <= README_LINES
    first = "\n".join(lines[:FIRST_LINES])
    assert "make demo" in first
    assert "make test" in first


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in titles)
    return {re.sub(r"[\s]+", "-", title) for title in plain}


def links(page: Path) -> Iterator[str]:
    """Yield the targets of all links of a page that are not addresses."""
    text = page.read_text("utf-8")
    if page.suffix == ".ipynb":
        cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "markdown"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            yield target


@pytest.mark.parametrize("page", LINKED, ids=page_id)
def test_page_internal_links_resolve(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if any(target.is_relative_to(generated) for generated in GENERATED):
            continue
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link
        inside = page.is_relative_to(DOCS) and page.suffix == ".md"
        assert not inside or target.is_relative_to(DOCS), f"{link} is not part of the site"


def console_blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of the console blocks of a page with its output."""
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *output = part.splitlines()
            yield command, output


@pytest.mark.parametrize("page", [README, DOCS / "quickstart.md"], ids=page_id)
def test_offline_command_of_page_prints_its_output(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    executed = 0
    for command, output in console_blocks(page.read_text("utf-8")):
        if "/data" in command:  # needs images that are not part of the package
            continue
        words = command.split()
        assert words[0] == "shiftbench"
        printed = [
            " ".join(line.split()) for line in shiftbench(*words[1:], code=0).out.splitlines()
        ]
        for line in output:
            assert " ".join(line.split()) in printed, line
        executed += 1
    assert executed


def test_readme_opening_has_a_row_per_model() -> None:
    command, output = next(console_blocks(README.read_text("utf-8")))
    words = [line.split()[0] for line in output if line.split()]
    assert all(model in words for model in re.findall(r"-m (\S+)", command))


def test_extend_page_examples_work_as_a_plugin(tmp_path: Path) -> None:
    text = (DOCS / "guides" / "extend.md").read_text("utf-8")
    plugin = tmp_path / "plugin.py"
    plugin.write_text("".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)))
    words = ["-m", "shiftbench_cli", "run", "--plugin", plugin, "--metric", "opposites", "-q"]
    words += ["-m", "xcit_pico_6_p8.scenes+symmetric", "-a", "none", "--no-consistency"]
    run(*words, "--limit", "4", "-o", tmp_path)  # a process of its own: plug-ins stay registered
    (record,) = tmp_path.glob("*/record.json")
    assert "opposites" in json.loads(record.read_text("utf-8"))["scores"]


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
    assert (tmp_path / "page.png").stat().st_size > 50_000


@pytest.mark.slow
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra `docs`")
    run("-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path)
    api = tmp_path / "reference" / "api" / "shiftbench" / "index.html"
    for page in (tmp_path / "index.html", tmp_path / "reference" / "cli" / "index.html", api):
        assert page.is_file()
    assert "language-pycon" in api.read_text("utf-8")
    commands = (tmp_path / "reference" / "cli" / "index.html").read_text("utf-8")
    assert "--consistency-samples" in commands
