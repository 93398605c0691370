"""Processes of this machine that share a run, and the signals that end a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NoReturn

from shiftbench.running import Progress, ProgressCallback
from shiftbench.running.shards import SHARD_VARIABLE, Shard
from shiftbench_cli.main import INTERRUPTED

if TYPE_CHECKING:
    from shiftbench_cli.progress import RunProgress

PARENT = "SHIFTBENCH_PARENT"  # process id of the process that started this one
GRACE = 20.0  # seconds in which a process may save its predictions before it is killed
POLL = 0.5  # seconds


def is_worker() -> bool:
    """Return True if `run_shards` started this process."""
    return PARENT in os.environ


@contextmanager
def interruptible() -> Iterator[None]:
    """Handle SIGTERM and SIGUSR1, which schedulers send, like Ctrl-C: predictions are saved."""
    names = ("SIGTERM", "SIGUSR1", "SIGINT") if is_worker() else ("SIGTERM", "SIGUSR1")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    before = {number: signal.getsignal(number) for number in numbers}

    def stop(number: int, frame: object) -> None:
        for other in numbers:  # a second signal must not interrupt the saving
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_parent() -> None:
    """Interrupt this process when its parent process has ended, even by SIGKILL."""
    parent = int(os.environ.get(PARENT, "0"))
    if not parent or sys.platform == "win32":
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(INTERRUPTED)

    threading.Thread(target=watch, daemon=True).start()


def leave(code: int) -> NoReturn:
    """End a worker at once: threads of native libraries may abort a shutdown."""
    sys.stderr.flush()
    os._exit(code)


def run_shards(
    words: Sequence[str], shards: Sequence[Shard], progress: RunProgress
) -> tuple[list[int], set[str]]:
    """Run `shiftbench run` once per shard, with one progress display, and wait for all of them.

    Args:
        words: Arguments of the command.
        shards: One process each.
        progress: Display of the sum of all processes.

    Returns:
        The exit codes (negative: ended by that signal), and the lines that the processes printed
        to stderr. A line that several processes print is shown once.
    """
    lines: SimpleQueue[tuple[int, bool, str | None]] = SimpleQueue()
    processes: list[subprocess.Popen[str]] = []
    try:
        for shard, gpu in zip(shards, _gpus(len(shards)), strict=True):
            processes.append(_start(words, shard, gpu, len(shards)))
            for is_error, pipe in enumerate((processes[-1].stdout, processes[-1].stderr)):
                reader = _reader(len(processes) - 1, bool(is_error), pipe, lines)
                threading.Thread(target=reader, daemon=True).start()
        total, printed = _Total(progress, len(processes)), dict[str, int]()
        pipes = 2 * len(processes)
        while pipes:
            with suppress(Empty):
                index, is_error, line = lines.get(timeout=POLL)
                if line is None:
                    pipes -= 1
                elif not is_error:
                    total.add(index, line)
                elif printed.setdefault(line, index) == index:
                    progress.note(line)
        total.finish()
        codes = [process.wait() for process in processes]
    except BaseException:
        _end(processes)
        raise
    if INTERRUPTED in codes:
        raise KeyboardInterrupt
    for number, code in enumerate(codes, 1):
        if code < 0:
            name = signal.Signals(-code).name
            progress.note(f"process {number} of {len(codes)} was ended by {name}")
    return codes, set(printed)


def _gpus(count: int) -> list[str | None]:
    """Choose a GPU for each process, as `CUDA_VISIBLE_DEVICES` names it; None without GPUs."""
    import torch

    known = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not known:
        return [None] * count
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(known)))
    names = visible.split(",")
    return [names[i % len(names)] for i in range(count)]


def _start(
    words: Sequence[str], shard: Shard, gpu: str | None, count: int
) -> subprocess.Popen[str]:
    environment = {**os.environ, PARENT: str(os.getpid()), SHARD_VARIABLE: str(shard)}
    # Processes that each use all cores would slow each other down.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    return subprocess.Popen(
        [sys.executable, "-m", "shiftbench_cli", "run", *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _reader(
    index: int, is_error: bool, pipe: object, lines: SimpleQueue[tuple[int, bool, str | None]]
) -> Callable[[], None]:
    """Return a function that copies the lines of a pipe to the queue, and None at its end."""

    def read() -> None:
        for line in pipe:  # type: ignore[attr-defined]
            lines.put((index, is_error, line.rstrip("\n")))
        lines.put((index, is_error, None))

    return read


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Let processes save and end; kill the others after a while, or at a second Ctrl-C."""
    deadline = time.monotonic() + GRACE
    try:
        for process in processes:
            process.terminate()
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for process in processes:
            process.kill()


class _Total:
    """Sum of the progress of several processes, by run."""

    def __init__(self, progress: RunProgress, count: int) -> None:
        self._progress, self._count = progress, count
        self._shown: dict[str, ProgressCallback] = {}
        self._parts: dict[str, dict[int, Progress]] = {}

    def add(self, process: int, line: str) -> None:
        """Show a JSON line of a process."""
        content = json.loads(line)
        title = content.pop("run")
        if title not in self._shown:
            self._shown[title] = self._progress.run(title)
        parts = self._parts.setdefault(title, {})
        parts[process] = Progress(**content)
        total = self._sum(title)
        if total.images < total.total or len(parts) == self._count:  # others have more to do
            self._shown[title](total)

    def finish(self) -> None:
        """Show the last state of every run."""
        for title, show in self._shown.items():
            show(self._sum(title))

    def _sum(self, title: str) -> Progress:
        parts = self._parts[title].values()
        values = [(p.images, p.total, p.passes, p.most_passes) for p in parts]
        return Progress(*map(sum, zip(*values, strict=True)))
