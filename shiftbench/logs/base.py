"""The seam every sink of numbers implements. Nothing is written or sent unless one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from shiftbench.errors import UsageError
from shiftbench.registry import Registry


class Log(Protocol):
    """Takes numbers by name, step by step."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Notes some numbers of one step; steps never go back."""

    def close(self) -> None:
        """Writes what is left."""


Write = Callable[[int, Mapping[str, float]], None]


@dataclass(frozen=True)
class Sink:
    """A kind of log."""

    package: str  # what it needs: the module, and our extra of the same name
    open: Callable[[Path, str, Mapping[str, Any]], Log]  # folder, name of the run, what it is

    def require(self) -> None:
        """Refuses a package that is not installed, before any work is done for it."""
        try:
            import_module(self.package)
        except ImportError as error:
            raise UsageError(
                f"--log {self.package} needs the package {self.package}: "
                f"pip install 'shiftbench[{self.package}]'"
            ) from error


LOGS: Registry[Sink] = Registry("log")


def require_logs(names: Sequence[str]) -> None:
    """Refuses logs that are unknown or not installed."""
    for sink in map(LOGS.get, names):
        sink.require()


@contextmanager
def open_logs(
    names: Sequence[str], folder: Path, name: str, about: Mapping[str, Any]
) -> Iterator[Write]:
    """Opens the named logs of one run, gives what writes to all of them, and closes them.

    Args:
        names: Of `LOGS`; none: nothing is written.
        folder: Where they may leave files.
        name: Of the run, for people.
        about: What is run: its settings.
    """
    with ExitStack() as stack:
        logs: list[Log] = []
        for sink in map(LOGS.get, dict.fromkeys(names)):
            folder.mkdir(parents=True, exist_ok=True)
            logs.append(sink.open(folder, name, about))
            stack.callback(logs[-1].close)

        def write(step: int, values: Mapping[str, float]) -> None:
            for log in logs:
                log.write(step, values)

        yield write
