"""Registries of named entries, with close matches in the error for an unknown name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from aft_models.errors import unknown
from shiftbench.errors import UsageError

T = TypeVar("T")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Build the error for an unknown name: close matches first, then a bounded list."""
    return UsageError(unknown(kind, name, sorted(known)))


class Registry(Generic[T]):
    """Ordered mapping from names to entries of one kind; duplicates are errors."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str, entry: T) -> T:
        """Add an entry and return it."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered already")
        self._entries[name] = entry
        return entry

    def get(self, name: str) -> T:
        """Return an entry; an unknown name is a UsageError with close matches."""
        if name not in self._entries:
            raise unknown_name(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
