"""`shiftbench ...` in this process, as tests call it."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from shiftbench_cli.main import main


class Ran(NamedTuple):
    """How a command ended."""

    code: object
    out: str
    err: str


def shiftbench(*words: object) -> Ran:
    """Runs a command line."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return Ran(ended.value.code, out.getvalue(), err.getvalue())
