"""The public API: every name is importable from `shiftbench`, in any order."""

from __future__ import annotations

import pytest

import shiftbench
import shiftbench.auditing.causes

FUNCTIONS = ("audit", "compare", "evaluate", "load_record", "repair", "run", "train", "verify")


@pytest.mark.parametrize("name", shiftbench.__all__)
def test_public_name_is_importable(name: str) -> None:
    assert name in dir(shiftbench)
    assert getattr(shiftbench, name) is not None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_function_is_no_module(name: str) -> None:
    assert callable(getattr(shiftbench, name))


def test_public_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        _ = shiftbench.rum
