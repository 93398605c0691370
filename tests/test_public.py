"""What notebooks call: every name is there, whatever was imported before."""

from __future__ import annotations

import pytest

import shiftbench
import shiftbench.audit.causes
import shiftbench.run.store
from shiftbench_cli.main import COMMANDS

IN_PYTHON = ("run", "train", "verify", "audit", "repair")


@pytest.mark.parametrize("name", IN_PYTHON)
def test_a_command_that_computes_is_a_function(name: str) -> None:
    assert name in COMMANDS
    assert callable(getattr(shiftbench, name))


def test_a_package_is_called_like_the_function_of_its_name() -> None:
    with pytest.raises(shiftbench.ShiftbenchError, match="Did you mean 'scenes'"):
        shiftbench.run("xcit_pico_6_p8.scenes", "scene")
    with pytest.raises(shiftbench.ShiftbenchError, match="cannot be empty"):
        shiftbench.audit("")
