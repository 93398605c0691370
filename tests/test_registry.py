"""Registries: order, duplicates, and errors for unknown names."""

import pytest

from shiftbench.errors import UsageError
from shiftbench.registry import Registry
from shiftbench.shifts import ATTACKS


def test_registry_lists_entries_in_order_of_registration() -> None:
    registry: Registry[int] = Registry("number")
    assert registry.register("one", 1) == 1
    registry.register("two", 2)
    assert registry.get("two") == 2
    assert list(registry) == ["one", "two"]
    assert "one" in registry
    assert "three" not in registry
    assert len(registry) == 2


def test_registry_second_entry_of_same_name_raises() -> None:
    registry: Registry[int] = Registry("number")
    registry.register("one", 1)
    with pytest.raises(ValueError, match="'one' is registered already"):
        registry.register("one", 2)
    assert registry.get("one") == 1


def test_registry_unknown_name_suggests_close_match() -> None:
    with pytest.raises(
        UsageError, match=r"unknown attack 'crops'\. Did you mean 'crop'\?"
    ) as error:
        ATTACKS.get("crops")
    assert all(name in str(error.value) for name in ATTACKS)


def test_registry_unknown_name_without_close_match_has_no_suggestion() -> None:
    with pytest.raises(UsageError) as error:
        ATTACKS.get("zzz")
    assert "Did you mean" not in str(error.value)


def test_registry_error_shortens_long_list_of_names() -> None:
    registry: Registry[int] = Registry("number")
    for i in range(100):
        registry.register(f"n{i:03}", i)
    with pytest.raises(UsageError, match=r"\(100 in all\)") as error:
        registry.get("x")
    assert len(str(error.value)) < 200
