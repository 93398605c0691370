"""Where numbers can be sent besides files of our own, one sink per file; each registers itself.

Nothing is written or sent unless a log is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Protocol

from shiftbench.errors import UsageError
from shiftbench.registry import Registry

if TYPE_CHECKING:
    from shiftbench.records.result import Result


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


LOGS: Registry[Sink] = Registry("log")


def require_logs(names: Sequence[str]) -> None:
    """Refuses logs that are unknown or not installed, before any work is done for them."""
    for package in [LOGS.get(name).package for name in names]:
        try:
            import_module(package)
        except ImportError as error:
            raise UsageError(
                f"--log {package} needs the package {package}: pip install 'shiftbench[{package}]'"
            ) from error


@contextmanager
def open_logs(
    names: Sequence[str], folder: Path, name: str, about: Mapping[str, Any]
) -> Iterator[Write]:
    """Opens the named logs of one run, gives what writes to all of them, and closes them.

    They may leave files in `folder`; `name` is the run's, for people, and `about` its settings.
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


def log_record(record: Result, names: Sequence[str], folder: Path) -> None:
    """Write every score to logs: the points of a curve by max shift, all others at step 0."""
    steps: dict[int, dict[str, float]] = {}
    for name, score in record.scores.items():
        steps.setdefault(name.radius or 0, {})[name.stem] = score.value
    about = {
        "model": asdict(record.model),
        "data": asdict(replace(record.data, classes=())),
        "settings": dict(record.settings),
    }
    with open_logs(names, folder, record.model.name, about) as write:
        for step in sorted(steps):
            write(step, steps[step])


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
