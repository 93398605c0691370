"""How far a run is: live lines on a terminal, plain lines now and then when piped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from shiftbench.running.progress import Estimate, Progress, ProgressCallback
from shiftbench_cli import render

PLAIN_SECONDS = 10.0  # between two plain lines of the same task
ROOM_FOR_BARS = 100  # columns: on narrower terminals the counts alone say how far it is


class RunProgress:
    """What a run shows on stderr while it works."""

    def __init__(self, console: Console, *, remarks: bool = True, progress: bool = True) -> None:
        """Shows remarks, or nothing at all; and progress, or only remarks."""
        self._console, self._remarks, self._progress = console, remarks, remarks and progress
        self._bars: Bars | None = None

    def model(self, name: str) -> ProgressCallback | None:
        """Begins the lines of a model."""
        if not self._progress:
            return None
        return self._live(name) if render.is_live(self._console) else self._plain(name)

    def remark(self, text: str) -> None:
        """A sentence besides the lines; above those that are live."""
        if self._remarks:
            self._console.print(Text(text), soft_wrap=self._bars is None)

    def close(self) -> None:
        """Leaves live lines as they are."""
        if self._bars is not None:
            self._bars.stop()

    def _live(self, name: str) -> ProgressCallback:
        """One live line per task, below the name of the model and the lines of the last one."""
        self.close()
        self._console.print(Text(name, style="bold"))
        bar = [BarColumn(bar_width=12)] if self._console.width >= ROOM_FOR_BARS else []
        bars = self._bars = Bars(
            TextColumn("{task.description}"),
            *bar,
            TextColumn("{task.completed:.0f}/{task.total:.0f}", justify="right"),
            TextColumn("{task.fields[state]}"),
            console=self._console,
        )
        bars.start()
        ids: dict[str, TaskID] = {}

        def show(event: Estimate | Progress) -> None:
            if isinstance(event, Estimate):
                self.remark(forecast(event))
                return
            if event.metric not in ids:
                ids[event.metric] = bars.add_task(_words(event.metric), state="")
            far = round(event.done + event.under_way, 1)
            bars.update(ids[event.metric], completed=far, total=event.total, state=_state(event))

        return show

    def _plain(self, name: str) -> ProgressCallback:
        """A line per task every few seconds, and one when it is done."""
        last: dict[str, float] = {}
        finished: set[str] = set()

        def show(event: Estimate | Progress) -> None:
            if isinstance(event, Estimate):
                self.remark(f"{name}: {forecast(event)}")
                return
            now, metric = time.monotonic(), event.metric
            due = now - last.setdefault(metric, now) >= PLAIN_SECONDS
            if metric in finished or not (due or event.done == event.total):
                return
            last[metric] = now
            finished.update({metric} if event.done == event.total else ())
            far = event.done + event.under_way
            line = f"{name}: {_words(metric)} {far:.0f}/{event.total} {_state(event)}"
            self.remark(line.rstrip())

        return show


def _words(task: str) -> str:
    return task.replace("_", " ")


def forecast(estimate: Estimate) -> str:
    """What the work may take, before it begins."""
    words = f"at most {_short(estimate.passes)} forward passes, about {_duration(estimate.seconds)}"
    return f"{words}; images that break early need fewer"


def _duration(seconds: float) -> str:
    """A time in one unit: 40 s, 12 min, 5 h, 3 days."""
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def _state(tally: Progress) -> str:
    """Speed, forward passes, time left and the score so far."""
    words = []
    if tally.measured and tally.seconds > 0:
        speed = tally.measured / tally.seconds
        left = round(max(0.0, tally.total - tally.done - tally.under_way) / speed)
        words += [f"{speed:.1f} img/s", f"{_short(tally.passes)} passes", f"{_clock(left)} left"]
    if tally.score is not None:
        words.append(f"{tally.score.text()}{'%' if tally.score.is_fraction else ''}")
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
    progress = RunProgress(render.stderr(), remarks=speak, progress=not quiet)
    logger, handler = logging.getLogger("shiftbench"), _LogLines(progress.remark)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield progress
    finally:
        progress.close()
        logger.removeHandler(handler)
        logger.propagate = True
