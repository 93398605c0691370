"""The command group: imports a command when it is called, turns errors into exit codes."""

from __future__ import annotations

import ctypes
import difflib
import importlib
import io
import os
import sys
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

# Name -> (module, summary). The modules import torch, which takes seconds: `-h` and a mistyped
# command must not wait for it.
COMMANDS = {
    "run": ("run", "Evaluate models under image shifts: the main command."),
    "leaderboard": ("leaderboard", "Turn records into CSV, Markdown, LaTeX, HTML or a model card."),
    "plot": ("plot", "Plot adversarial accuracy against max shift, or heat maps."),
    "compare": ("compare", "Test models against a baseline on their common images."),
    "show": ("show", "Draw an image under each shift type."),
    "audit": ("audit", "Find the layers of a model that break shift equivariance."),
    "repair": ("repair", "Compare remedies on a model (does not modify it)."),
    "export": ("export", "Write a model, remedies included, to ONNX or .pt2, checked."),
    "train": ("train", "Train or fine-tune a model with a named recipe."),
    "verify": ("verify", "Recompute a record's scores; optionally re-predict some images."),
    "reproduce": ("reproduce", "Compare your records with published numbers."),
    "list": ("listing", "List models, datasets, attacks, metrics, remedies, recipes."),
    "doctor": ("doctor", "Print versions, devices, extras and paths for a bug report."),
}
INTERRUPTED = 130  # exit code that shells use for a process ended by Ctrl-C
MISSED = 3  # exit code if a score misses a threshold
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt(3)
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List every command, in the order of a user's work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the module of a command."""
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"shiftbench_cli.{COMMANDS[name][0]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help from the table, without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands from the table, without importing any command."""
        commands = [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; an unknown name is an error with close matches."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            close = difflib.get_close_matches(name, COMMANDS)
            hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            ctx.fail(f"unknown command {name!r}.{hint} Known: {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings=SETTINGS, invoke_without_command=True)
@click.version_option(package_name="shiftbench", prog_name="shiftbench")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Measure, explain and repair the shift sensitivity of image models."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command line and exit: 0 done, 1 failed, 2 wrong usage, 3 a threshold was missed."""
    keep_freed_memory()
    # Warnings of torch's network code contain a stack trace; errors of this program are one line.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a code page may lack ≤
    try:
        code = cli.main(arguments, prog_name="shiftbench", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f". See `{context.command_path} -h`" if context is not None else ""
        click.echo(f"error: {error.format_message().rstrip('.')}{hint}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted. Predictions are saved: repeat the command to resume", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of the output ended (`| head`): Python must not flush stdout again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        message, code = explain(error)
        click.echo(f"error: {message}", err=True)
        sys.exit(code)


def explain(error: Exception) -> tuple[str, int]:
    """Return a message and an exit code for errors that the user can fix; raise the others."""
    from aft_models.errors import AftModelsError
    from shiftbench.errors import ShiftbenchError

    if isinstance(error, ShiftbenchError):
        return str(error), error.exit_code
    if isinstance(error, AftModelsError):
        return str(error), 2
    if isinstance(error, OSError) and (error.strerror or error.filename):
        where = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or " ".join(map(str, error.args))
        return f"{where}{reason}", 1
    raise error


def keep_freed_memory() -> bool:
    """Keep freed memory for the next tensor instead of returning it to the system.

    By default glibc returns large blocks at once, and the kernel clears every page of the next
    block: for EfficientNet-Lite0 more than a third of a forward pass. The process never shrinks,
    so this is for programs, not for libraries.

    Returns:
        True if the allocator was configured; False without glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # not Linux, or another C library
        return False
    return bool(mallopt(MMAP_THRESHOLD, 2**30)) and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1))
