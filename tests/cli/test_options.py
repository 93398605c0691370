"""Options that several commands share."""

from __future__ import annotations

import importlib

import pytest

from shiftbench_cli.main import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_command_with_checkpoint_has_strip_prefix(name: str) -> None:
    command = importlib.import_module(f"shiftbench_cli.{COMMANDS[name][0]}").command
    options = {word for parameter in command.params for word in parameter.opts}
    assert ("--checkpoint" in options) == ("--strip-prefix" in options)
