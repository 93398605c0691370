"""How far a run is: live lines on a terminal, plain lines now and then when piped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from shiftbench.run.worker import Tally, Watcher
from shiftbench_cli import render

PLAIN_SECONDS = 10.0  # between two plain lines of the same task
ROOM_FOR_BARS = 100  # columns: on narrower terminals the counts alone say how far it is


class RunProgress:
    """What a run says while it works; the base class says nothing."""

    def model(self, name: str) -> Watcher | None:
        """Begins the lines of a model."""
        return None

    def remark(self, text: str) -> None:
        """A sentence besides the lines."""

    def close(self) -> None:
        """Ends what is live."""


class LiveProgress(RunProgress):
    """One live line per model and task, below the name of the model."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: Progress | None = None

    def model(self, name: str) -> Watcher:
        """Lines of a new model below those of the last."""
        self.close()
        self._console.print(Text(name, style="bold"))
        bar = [BarColumn(bar_width=12)] if self._console.width >= ROOM_FOR_BARS else []
        lines = self._lines = Progress(
            TextColumn("{task.description}"),
            *bar,
            TextColumn("{task.completed}/{task.total}", justify="right"),
            TextColumn("{task.fields[state]}"),
            console=self._console,
        )
        lines.start()
        ids: dict[str, TaskID] = {}

        def watch(tally: Tally) -> None:
            if tally.task not in ids:
                ids[tally.task] = lines.add_task(_words(tally.task), state="")
            lines.update(
                ids[tally.task], completed=tally.done, total=tally.total, state=_state(tally)
            )

        return watch

    def remark(self, text: str) -> None:
        """Prints above the live lines."""
        self._console.print(Text(text))

    def close(self) -> None:
        """Leaves the lines as they are."""
        if self._lines is not None:
            self._lines.stop()


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
            line = f"{name}: {_words(tally.task)} {tally.done}/{tally.total} {_state(tally)}"
            self.remark(line.rstrip())

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
        left = round((tally.total - tally.done) / speed)
        words += [f"{speed:.1f} img/s", f"{_short(tally.passes)} passes", f"{_clock(left)} left"]
    if tally.score is not None:
        words.append(f"{100 * tally.score.value:.1f}%")
    return " ".join(words)


def _short(count: int) -> str:
    """Four digits at most: 950, 27.0k, 98.3M."""
    if count < 1000:
        return str(count)
    return f"{count / 1e3:.1f}k" if count < 999_950 else f"{count / 1e6:.1f}M"


def _clock(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


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
        yield progress
    finally:
        progress.close()
        logger.removeHandler(handler)
        logger.propagate = True
