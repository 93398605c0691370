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


def shiftbench(*words: object, code: int | None = None) -> Ran:
    """Runs a command line, which is expected to end with a code."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert code is None or ended.value.code == code, err.getvalue()
    return Ran(ended.value.code, out.getvalue(), err.getvalue())
