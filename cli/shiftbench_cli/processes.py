"""Commands that several processes can share: `--nproc N`, or an outer torchrun."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from aft_models.errors import AftModelsError
from shiftbench.errors import ShiftbenchError
from shiftbench.run import distributed
from shiftbench.run.distributed import Group, LostProcessError
from shiftbench_cli.main import INTERRUPTED


class SharedCommand(click.Command):
    """Remembers the arguments of the command line for the processes that `--nproc` starts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments after remembering them."""
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)


STOPS = ("SIGTERM", "SIGUSR1")  # what schedulers send before they end a job


@contextmanager
def saving_on_signals() -> Iterator[None]:
    """Ends as Ctrl-C does when a scheduler is about to end the process: finished parts are kept."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in STOPS if hasattr(signal, name)]  # not on Windows
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    numbers = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def share(ctx: click.Context, work: Callable[[Group], int], *, nproc: int, device: str) -> int:
    """Does `work` as one of the processes that share it, or starts them; returns an exit code."""
    if nproc > 1 and not distributed.in_torchrun():
        name = ctx.command.name or ""
        return distributed.launch(nproc, ["shiftbench_cli", name, *ctx.meta["words"]])
    with saving_on_signals(), distributed.joined(device) as group:
        try:
            return work(group)
        except (ShiftbenchError, AftModelsError) as error:
            if group.is_main or isinstance(error, LostProcessError):
                raise
            # The main process has the same error, and says it.
            return error.exit_code if isinstance(error, ShiftbenchError) else 2
        except KeyboardInterrupt:
            if group.is_main and not distributed.is_launched():
                raise
            sys.exit(INTERRUPTED)  # whoever started us says it
