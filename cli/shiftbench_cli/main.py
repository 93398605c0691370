"""The command group: finds a command's module only when it is called, and words its errors."""

from __future__ import annotations

import ctypes
import difflib
import errno
import importlib
import io
import os
import sys
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

# Name -> (module, one line of help). The modules import torch, which takes seconds: `-h` and a
# mistyped command must not wait for it.
COMMANDS = {
    "run": ("run", "Evaluate models under attacks: the main job."),
    "leaderboard": ("leaderboard", "Turn records into a CSV, Markdown, LaTeX or HTML table."),
    "plot": ("plot", "Draw adversarial accuracy against max shift, or heat maps."),
    "compare": ("compare", "Compare two models on the same images."),
    "train": ("train", "Train or fine-tune any model with a named recipe."),
    "verify": ("verify", "Check records against their samples, and against the model."),
    "list": ("listing", "List models, datasets, attacks, metrics, remedies, recipes, ..."),
    "show": ("show", "Draw an image under each kind of shift."),
    "audit": ("audit", "Find the layers of a model that break shift-equivariance."),
    "repair": ("repair", "Show which remedies apply to a model, what each changes and costs."),
    "doctor": ("doctor", "Show versions, device, extras and paths, for a bug report."),
    "reproduce": ("reproduce", "Put the published figures next to ours."),
}
INTERRUPTED = 130  # what a shell reports for a process that Ctrl-C ended
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt(3)


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in the order of a user's work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Imports the module of a command."""
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"shiftbench_cli.{COMMANDS[name][0]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the help from the table, without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offers commands and their help from the table, without importing any command."""
        commands = {
            name: text for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)
        }
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=text) for name, text in commands.items()), *options]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolves a command; an unknown one is an error with close matches."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            close = difflib.get_close_matches(name, COMMANDS)
            hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            ctx.fail(f"unknown command {name!r}.{hint} Known: {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="shiftbench", prog_name="shiftbench")
def cli() -> None:
    """How much does an image classifier's answer depend on where the camera stood?"""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and exits: 0 done, 1 failed, 2 wrong usage, 3 a gate failed."""
    keep_freed_memory()
    # torch shows warnings of its network code with a stack trace; errors here are one sentence.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a code page without ≤ must not end a run
    try:
        code = cli.main(arguments, prog_name="shiftbench", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo(
            "interrupted: finished parts are kept; run the same command to continue", err=True
        )
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output left (`| head`): not an error, but Python must not try to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        message, code = explain(error)
        click.echo(f"error: {message}", err=True)
        sys.exit(code)


def explain(error: Exception) -> tuple[str, int]:
    """One sentence and an exit code for errors the user can fix; re-raises the rest."""
    from aft_models.errors import AftModelsError
    from shiftbench.errors import ShiftbenchError

    if isinstance(error, ShiftbenchError):
        return str(error), error.exit_code
    if isinstance(error, AftModelsError):
        return str(error), 2
    if isinstance(error, OSError) and (error.strerror or error.filename):
        place = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or " ".join(map(str, error.args))
        if error.errno in DISK_FULL or "No space left" in reason:
            reason = (
                "the disk is full; finished parts are kept: free some space and run the same "
                "command to continue"
            )
        return f"{place}{reason}", 1
    raise error


def keep_freed_memory() -> bool:
    """Keeps freed memory for the next tensor instead of returning it to the system.

    By default glibc returns large blocks at once, and the kernel clears every page of the next one
    anew: for EfficientNet-Lite0 more than a third of a forward pass. The process stays as large as
    it ever was, so this is for programs to call, not for libraries.

    Returns:
        Whether the allocator could be told: not where there is no glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # not Linux, or another C library
        return False
    return bool(mallopt(MMAP_THRESHOLD, 2**30)) and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1))
