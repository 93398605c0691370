"""Progress on stderr: one live line per run on a terminal, plain lines in a file."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text
from typing_extensions import override

from shiftbench.running import Progress, ProgressCallback
from shiftbench_cli import render

PLAIN_SECONDS = 10.0  # between two plain lines of a run
PIPE_SECONDS = 0.2  # between two lines to the parent process
ROOM_FOR_BARS = 90  # columns; narrower terminals show the numbers alone


class RunProgress:
    """Display of one run after another."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        """Print to a console; `quiet`: notes alone."""
        self._console, self._quiet = console, quiet
        self._bars: Bars | None = None
        self.predicted = False  # becomes True with the first forward pass

    def run(self, title: str) -> ProgressCallback:
        """Start the display of a run."""
        show = self._display(title)

        def update(progress: Progress) -> None:
            self.predicted |= progress.passes > 0
            if show is not None:
                show(progress)

        return update

    def _display(self, title: str) -> ProgressCallback | None:
        if self._quiet:
            return None
        return self._live(title) if render.is_live(self._console) else self._plain(title)

    def note(self, text: str) -> None:
        """Print a line, above a live one."""
        self._console.print(Text(text), soft_wrap=self._bars is None)

    def close(self) -> None:
        """Leave the last state of the live line on the terminal."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _live(self, title: str) -> ProgressCallback:
        bar = [BarColumn(bar_width=16)] if self._console.width >= ROOM_FOR_BARS else []
        if self._bars is None:
            self._bars = Bars(
                TextColumn("{task.description}", markup=False),
                *bar,
                TextColumn("{task.fields[state]}", markup=False),
                console=self._console,
            )
            self._bars.start()
        bars, began = self._bars, time.monotonic()
        task = bars.add_task(title, total=1.0, state="loading images")

        def show(progress: Progress) -> None:
            state = describe(progress, time.monotonic() - began)
            bars.update(task, completed=fraction(progress), state=state)

        return show

    def _plain(self, title: str) -> ProgressCallback:
        began = last = time.monotonic()
        ended = False

        def show(progress: Progress) -> None:
            nonlocal last, ended
            now = time.monotonic()
            if ended or (now - last < PLAIN_SECONDS and progress.images < progress.total):
                return
            last, ended = now, progress.images >= progress.total
            self.note(f"{title}: {describe(progress, now - began)}")

        return show


class PipedProgress(RunProgress):
    """Progress of a process of `--nproc`, as JSON lines on stdout for the parent process."""

    @override
    def _display(self, title: str) -> ProgressCallback:
        last = 0.0

        def report(progress: Progress) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last > PIPE_SECONDS or progress.images >= progress.total:
                last = now
                render.print_text(json.dumps({"run": title, **asdict(progress)}) + "\n")

        return report


def fraction(progress: Progress) -> float:
    """Return the fraction of the work that is done, at least."""
    done = [
        progress.images / max(progress.total, 1),
        progress.passes / max(progress.most_passes, 1),
    ]
    return min(1.0, max(done))


def describe(progress: Progress, seconds: float) -> str:
    """Return images, forward passes, speed and the longest time left.

    >>> describe(Progress(images=30, total=120, passes=900, most_passes=9000), 3.0)
    '30/120 images, 900 passes, 300/s, at most 0:09 left'
    """
    words = [f"{progress.images}/{progress.total} images", f"{short(progress.passes)} passes"]
    done = fraction(progress)
    if seconds > 0 and progress.passes:
        words.append(f"{short(round(progress.passes / seconds))}/s")
        if done < 1:
            words.append(f"at most {clock(round(seconds * (1 - done) / max(done, 1e-9)))} left")
    return ", ".join(words)


def forecast(passes: int, seconds: float) -> str:
    """Return the upper limit of a run's cost.

    >>> forecast(27_000, 95.0)
    'at most 27.0k forward passes, 1:35'
    """
    return f"at most {short(passes)} forward passes, {clock(round(seconds))}"


def short(count: int) -> str:
    """Return a count with at most four digits: 950, 27.0k, 98.3M."""
    if count < 1000:
        return str(count)
    return f"{count / 1e3:.1f}k" if count < 999_950 else f"{count / 1e6:.1f}M"


def clock(seconds: int) -> str:
    """Return a time as minutes and seconds, or with hours."""
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class _Warnings(logging.Handler):
    """Warnings of the library, as notes."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def run_progress(*, quiet: bool = False, piped: bool = False) -> Iterator[RunProgress]:
    """Show progress and warnings; `piped`: report progress to the parent process."""
    progress = (PipedProgress if piped else RunProgress)(render.stderr(), quiet=quiet)
    logger, handler = logging.getLogger("shiftbench"), _Warnings(progress.note)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield progress
    finally:
        progress.close()
        logger.removeHandler(handler)
        logger.propagate = True
