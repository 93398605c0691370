"""The allocator keeps what is freed, where it can be told to."""

from __future__ import annotations

import ctypes

import pytest

from shiftbench_cli.allocator import keep_freed_memory


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()

    def refuse(name: None) -> None:
        raise TypeError("no such thing on Windows")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert not keep_freed_memory()
