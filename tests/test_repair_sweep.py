"""The table of families in docs/repair.md holds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("s", ROOT / "benchmarks" / "repair_sweep.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["s"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


SWEEP = _load()
MEMBERS = [
    (family, name)
    for family, names in {**SWEEP.MEMBERS, "torchvision": SWEEP.TORCHVISION}.items()
    for name in names
]


def told() -> dict[tuple[str, str], bool]:
    """Whether the docs call each model exact."""
    lines = (ROOT / "docs" / "repair.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(c[0], c[1].strip("`")): not c[5] for c in cells if len(c) == 6 and c[1][:1] == "`"}


def test_the_docs_list_every_model_and_count_them_right() -> None:
    table = told()
    assert list(table) == MEMBERS
    text = (ROOT / "docs" / "repair.md").read_text(encoding="utf-8")
    for source in ("timm", "torchvision"):
        theirs = source == "torchvision"
        exact = [e for (family, _), e in table.items() if (family == "torchvision") == theirs]
        assert f"{source}: {sum(exact)} of {len(exact)} models are exact" in text


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), MEMBERS)
def test_every_convolutional_family(family: str, name: str) -> None:
    assert SWEEP.examine(family, name).exact == told()[family, name]
