"""`shiftbench ...` commands in this process, for tests."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from shiftbench_cli.main import main


class Ran(NamedTuple):
    """Exit code and output of a command."""

    code: object
    out: str
    err: str


def shiftbench(*words: object, code: int | None = None) -> Ran:
    """Run a command line, and check its exit code if one is given."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert code is None or ended.value.code == code, err.getvalue()
    return Ran(ended.value.code, out.getvalue(), err.getvalue())
