"""The families of timm and torchvision that docs/reference/remedies.md lists are exact."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = (ROOT / "docs" / "reference" / "remedies.md").read_text(encoding="utf-8")


def _load() -> ModuleType:
    place = ROOT / "benchmarks" / "repair_sweep.py"
    spec = importlib.util.spec_from_file_location("repair_sweep", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["repair_sweep"] = module  # dataclasses import their module by name
    spec.loader.exec_module(module)
    return module


SWEEP = _load()
MEMBERS = [
    (family, name)
    for family, names in {**SWEEP.MEMBERS, "torchvision": SWEEP.TORCHVISION}.items()
    for name in names
]


def exceptions() -> set[tuple[str, str]]:
    """List the models that the docs call not exact: rows of module, `model`, reason."""
    rows = [[cell.strip() for cell in line.split("|")] for line in DOCS.splitlines()]
    named = {(row[1], row[2].strip("`")) for row in rows if len(row) == 5}
    return named & set(MEMBERS)


@pytest.mark.parametrize("source", ["timm", "torchvision"])
def test_docs_state_number_of_exact_models(source: str) -> None:
    theirs = [(f, n) for f, n in MEMBERS if (f == "torchvision") == (source == "torchvision")]
    exact = [member for member in theirs if member not in exceptions()]
    assert f"{source}: {len(exact)} of {len(theirs)} models" in DOCS
    assert len(exact) < len(theirs)  # the table was found


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), MEMBERS)
def test_circular_aps_convolutional_family_is_exact(family: str, name: str) -> None:
    assert SWEEP.examine(family, name).exact == ((family, name) not in exceptions())
