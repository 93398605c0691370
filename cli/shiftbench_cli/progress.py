"""How far a run is: live lines on a terminal, plain lines now and then when piped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from shiftbench.work import Tally, Watcher
from shiftbench_cli import render

PLAIN_SECONDS = 10.0  # between two plain lines of the same task


class RunProgress:
    """What a run says while it works; the base class says nothing."""

    def model(self, name: str) -> Watcher | None:
        """Begins the lines of a model."""
        return None

    def remark(self, text: str) -> None:
        """A sentence besides the lines."""


class LiveProgress(RunProgress):
    """One live line per model and task."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.bars = Progress(
            TextColumn("{task.description}", table_column=None),
            BarColumn(bar_width=10),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[rest]}"),
            console=console,
            transient=False,
        )

    def model(self, name: str) -> Watcher:
        """Lines of a new model below those of the last."""
        self._console.print(Text(name, style="bold"))
        lines: dict[str, TaskID] = {}

        def watch(tally: Tally) -> None:
            if tally.task not in lines:
                lines[tally.task] = self.bars.add_task(_words(tally.task), rest="")
            self.bars.update(
                lines[tally.task], completed=tally.done, total=tally.total, rest=_state(tally)
            )

        return watch

    def remark(self, text: str) -> None:
        """Prints above the live lines."""
        self._console.print(Text(text))


class PlainProgress(RunProgress):
    """A line per task every few seconds, and one when it is done."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def model(self, name: str) -> Watcher:
        """Lines that begin with the model's name."""
        last: dict[str, float] = {}
        closed: set[str] = set()

        def watch(tally: Tally) -> None:
            now = time.monotonic()
            finished = tally.done == tally.total
            due = now - last.setdefault(tally.task, now) >= PLAIN_SECONDS
            if tally.task in closed or not (finished or due):
                return
            last[tally.task] = now
            closed.update({tally.task} if finished else ())
            self.remark(f"{name}: {_words(tally.task)} {tally.done}/{tally.total} {_state(tally)}")

        return watch

    def remark(self, text: str) -> None:
        """Prints a line."""
        self._console.print(Text(text), soft_wrap=True)


def _words(task: str) -> str:
    return task.replace("_", " ")


def _state(tally: Tally) -> str:
    """Speed, forward passes, time left and the score so far."""
    words = []
    if tally.measured and tally.seconds > 0:
        speed = tally.measured / tally.seconds
        left = timedelta(seconds=round((tally.total - tally.done) / speed))
        words += [f"{speed:.1f} img/s", f"{tally.passes:,} passes", f"{left} left"]
    if tally.score is not None:
        words.append(f"{100 * tally.score.value:.1f}%")
    return "  ".join(words)


class _LogLines(logging.Handler):
    """Warnings of the library, as remarks."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def run_progress(*, quiet: bool, speak: bool = True) -> Iterator[RunProgress]:
    """Progress on stderr; `quiet` leaves the remarks and warnings, `speak=False` nothing."""
    console = render.stderr()
    progress: RunProgress
    if not speak:
        progress = RunProgress()
    elif console.is_terminal and not quiet:
        progress = LiveProgress(console)
    else:
        progress = PlainProgress(console)
    if quiet:
        progress.model = lambda name: None  # type: ignore[method-assign]
    logger, handler = logging.getLogger("shiftbench"), _LogLines(progress.remark)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        if isinstance(progress, LiveProgress):
            with progress.bars:
                yield progress
        else:
            yield progress
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
