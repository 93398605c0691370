"""Vocabulary of docstrings, comments, messages, help texts, test names and documents."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("aft_models", "shiftbench", "cli", "benchmarks", "docs", "tests")
MODULES = sorted(
    {file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")} - {Path(__file__)}
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))

# Replacement -> banned words and phrases, in any case.
BANNED = {
    "prediction, output": "answer answers answered answering",
    "request, evaluate": "ask asks asked asking",
    "report, distinguish": "tell tells told telling",
    "state, contain, print": "say says said saying speak speaks spoken",
    "have, need, guarantee": "know knows knew want wants wanted promise promises promised",
    "be, read, have": "looks sees obeys stands stood lies thinks believes",
    "shift-consistent, repaired": "steady steadier steadiest",
    "the name of the remedy": "cure cures cured mend mends mended surgery",
    "address, attribute to": "treat treats treated treating blame blames blamed",
    "interface, boundary": "seam seams",
    "property, invariant": "law laws",
    "architecture, package, margin": "house houses room rooms",
    "leaderboard": "board boards",
    "image": "photograph photographs photographed",
    "remain correctly classified": "survive survives survived surviving survivors",
    "raise an error, reject": "refuse refuses refused refusing",
    "feature-map grid": "lattice lattices",
    "circular padding": "torus tori",
    "contain, apply": "holds",
    "a statement of the reason": "nobody whoever ours",
    "every n-th, the number of": "so_many",
    "original, unchanged": "as_it_is as_they_are",
    "in a single run, resume": "in_one_go go_on goes_on going_on",
    "integer shifts": "whole_pixel whole_pixels",
    "shift type": "kind_of_shift kinds_of_shift kinds_of_shifts",
    "as text, human-readable": "in_words for_people",
}
WORDS = {word.replace("_", " "): use for use, words in BANNED.items() for word in words.split()}
PATTERN = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)
QUESTIONS = {"What", "How", "Whether", "Which", "Where", "Who", "Why", "When"}
FRAGMENTS = {"Of", "As", "Such", "None", "Never", "So"}
NOT_VERBS = {
    "A",
    "All",
    "An",
    "Both",
    "Each",
    "Every",
    "Its",
    "One",
    "Some",
    "The",
    "These",
    "This",
}
# Names that contain a banned word: the label of the paper, URLs. Readers may know and want.
NAMES = re.compile(r"\(ours\)|https?://\S+|\byou (know|want|say|ask)\b", re.IGNORECASE)


class Prose(NamedTuple):
    """A text for readers in a source file."""

    line: int
    kind: str  # docstring, comment or text
    text: str
    node: ast.AST | None = None  # object with the docstring


def prose_of(source: str) -> Iterator[Prose]:
    """Yield the docstrings, comments and texts of several words in Python code."""
    tree = ast.parse(source)
    parts = set()  # constants that belong to a docstring or an f-string
    for node in ast.walk(tree):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef
        if isinstance(node, documented) and (text := ast.get_docstring(node)) is not None:
            (first, *_) = node.body
            assert isinstance(first, ast.Expr)
            parts.add(id(first.value))
            yield Prose(first.lineno, "docstring", text, node)
        elif isinstance(node, ast.JoinedStr):
            parts |= {id(value) for value in node.values}
            values = [v.value if isinstance(v, ast.Constant) else "{}" for v in node.values]
            yield Prose(node.lineno, "text", "".join(map(str, values)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield Prose(node.lineno, "text", node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Prose(token.start[0], "comment", token.string)


def banned_in(text: str) -> list[str]:
    """List the banned words of a text with their replacements; code in backticks is left out."""
    plain = NAMES.sub("", re.sub(r"(`+).+?\1", "", text, flags=re.DOTALL))
    plain = " ".join(plain.split())
    return [f"{word!r} (use: {WORDS[word.lower()]})" for word in PATTERN.findall(plain)]


def bad_opening(prose: Prose) -> str:
    """Return the first word of a docstring if no docstring may begin with it, otherwise ""."""
    node, word = prose.node, prose.text.split()[0].strip(",.:;")
    acts = isinstance(node, ast.FunctionDef) and not (
        node.name.startswith("test_")
        or any(ast.unparse(name).endswith("property") for name in node.decorator_list)
    )
    bad = word in QUESTIONS | FRAGMENTS or (acts and (word in NOT_VERBS or not word[0].isalpha()))
    return word if bad else ""


def problems_of(source: str) -> Iterator[str]:
    """Yield the violations in Python code, with their lines."""
    for prose in prose_of(source):
        if prose.kind == "docstring" and (word := bad_opening(prose)):
            yield f"line {prose.line}: docstring begins with {word!r}"
        if " " in prose.text:  # other texts are keys and names
            yield from (f"line {prose.line}: {problem}" for problem in banned_in(prose.text))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            problems = banned_in(node.name.replace("_", " "))
            yield from (f"line {node.lineno}: {node.name}: {problem}" for problem in problems)


def prose_of_page(text: str) -> str:
    """Remove code blocks, HTML comments and link targets from Markdown."""
    text = re.sub(r"^ *(```+|~~~+).*?^ *\1", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", text)


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(ROOT)))
def test_vocabulary_module_has_no_violation(file: Path) -> None:
    found = list(problems_of(file.read_text("utf-8")))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_vocabulary_page_has_no_banned_word(file: Path) -> None:
    assert not banned_in(prose_of_page(file.read_text("utf-8")))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: str(file.relative_to(ROOT)))
def test_vocabulary_notebook_has_no_banned_word(file: Path) -> None:
    cells = json.loads(file.read_text("utf-8"))["cells"]
    pages = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    assert not [problem for page in pages for problem in banned_in(prose_of_page(page))]


@pytest.mark.parametrize("word", WORDS)
def test_banned_in_finds_word_outside_code(word: str) -> None:
    assert len(banned_in(f"{word.capitalize()}, and\n{word}.")) == 2
    assert not banned_in(f"Read `{word}` and ``{word}``, the un{word}ed.")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('def f() -> bool:\n    """Whether it fits."""', "line 2: docstring begins with 'Whether'"),
        ('def f() -> int:\n    """The size."""', "line 2: docstring begins with 'The'"),
        ('def f() -> int:\n    """`x` times two."""', "line 2: docstring begins with '`x`'"),
        ('class A:\n    """What it has."""', "line 2: docstring begins with 'What'"),
        ('text = f"expected {text} of a law"', "line 1: 'law' (use: property, invariant)"),
        ("x = 1  # two laws", "line 1: 'laws' (use: property, invariant)"),
        ("def test_law() -> None: ...", "line 1: test_law: 'law' (use: property, invariant)"),
        ('class A:\n    """A table."""', ""),
        ('@property\ndef f() -> int:\n    """The size."""', ""),
        ('def f() -> int:\n    """Return the size."""', ""),
        ('law = {"law": 1}', ""),
    ],
)
def test_problems_of_source_names_line_and_word(source: str, problem: str) -> None:
    assert list(problems_of(source)) == ([problem] if problem else [])
