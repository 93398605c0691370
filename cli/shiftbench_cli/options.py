"""Options that several commands share, grouped help, and completion."""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from typing_extensions import override

from shiftbench_cli import render

PATH = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)
Decorator = Callable[[Any], Any]


# --- commands, and help in groups


class Option(click.Option):
    """An option that belongs to a group of the help text."""

    def __init__(
        self, *args: Any, group: str = "Options", advanced: bool = False, **kwargs: Any
    ) -> None:
        """Set the group; an advanced option is listed by `--help-all` alone."""
        super().__init__(*args, **kwargs)
        self.group, self.advanced = group, advanced

    @override
    def get_help_extra(self, ctx: click.Context) -> Any:
        """Leave out the range of numbers."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class Command(click.Command):
    """A command with grouped help, whose stdout contains results alone."""

    def __init__(self, name: str | None, help: str | None = None, **settings: Any) -> None:
        r"""Keep the line breaks of paragraphs that begin with `\b` in a raw docstring."""
        super().__init__(name, help=help and help.replace("\\b\n", "\b\n"), **settings)

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments and keep them, for commands that start other processes."""
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)

    @override
    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; output of libraries goes to stderr."""
        with render.reserved_stdout():
            return super().invoke(ctx)

    @override
    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Add `--help-all` where an option is advanced."""
        params = super().get_params(ctx)
        if any(getattr(param, "advanced", False) for param in params):
            everything = Option(
                ["--help-all"],
                group="Help",
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=self._print_all,
                help="Also show suite, sharding, SLURM, logging and plug-in options.",
            )
            params.insert(-1, everything)  # the last one is --help
        return params

    def _print_all(self, ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta["help_all"] = True
            click.echo(ctx.get_help())
            ctx.exit()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section per group, in the order of the options."""
        params = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        usual = (
            "Help"
            if any(getattr(p, "group", "Options") != "Options" for p in params)
            else "Options"
        )
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in params:
            record = param.get_help_record(ctx)
            if record and (ctx.meta.get("help_all") or not getattr(param, "advanced", False)):
                groups.setdefault(getattr(param, "group", usual), []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


def command(name: str) -> Decorator:
    """Declare a command."""
    return click.command(name, cls=Command)


@dataclass(frozen=True)
class Group:
    """Options under one heading of the help text."""

    title: str = "Options"

    def __call__(
        self, names: str, metavar: str | None, text: str, *, rare: bool = False, **settings: Any
    ) -> Decorator:
        """Declare an option.

        Args:
            names: As on the command line, and the parameter if it has another name.
            metavar: Placeholder of the value.
            text: Help; `[default: ...]` is added unless the text has it.
            rare: List the option in `--help-all` alone.
            settings: As of `click.option`.
        """
        shown = settings.get("default") not in (None, "", ()) and "[default" not in text
        return click.option(
            *names.split(),
            cls=Option,
            group=self.title,
            advanced=rare,
            metavar=metavar,
            help=text,
            show_default=shown,
            **settings,
        )

    def flag(self, names: str, text: str, *, rare: bool = False) -> Decorator:
        """Declare an option without a value."""
        settings: dict[str, Any] = {"is_flag": True, "help": text}
        return click.option(*names.split(), cls=Option, group=self.title, advanced=rare, **settings)


OPTIONS = Group()


def typed(ctx: click.Context, values: dict[str, Any]) -> dict[str, Any]:
    """Keep the options that are on the command line, also those that equal their default."""
    return {k: v for k, v in values.items() if is_typed(ctx, k)}


def is_typed(ctx: click.Context, name: str) -> bool:
    """Return True if an option is on the command line."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


class Choice(click.Choice[str]):
    """A fixed set of names; the error for another name proposes a close one."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in self.choices:
            return str(value)
        close = difflib.get_close_matches(str(value), self.choices, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        return self.fail(f"unknown value {value!r}. {hint}Known: {', '.join(self.choices)}", param)


# --- completion

FIRST = 200  # completions at most: timm alone has over a thousand models
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names_of(kind: str, *more: str) -> Complete:
    """Complete the names of a kind; imports wait until Tab is pressed."""

    def complete(ctx: click.Context, param: click.Parameter, text: str) -> list[CompletionItem]:
        from shiftbench_cli.listing import KINDS

        names = [*(str(entry["name"]) for entry in KINDS[kind]()), *more]
        return [CompletionItem(name) for name in names if name.startswith(text)][:FIRST]

    return complete


def complete_models(ctx: click.Context, param: click.Parameter, text: str) -> list[CompletionItem]:
    """Complete models, and remedies after a `+`."""
    head, plus, _ = text.rpartition("+")
    if not plus:
        return names_of("models")(ctx, param, text)
    remedies = names_of("remedies")(ctx, param, text[len(head) + 1 :])
    return [CompletionItem(f"{head}+{item.value}") for item in remedies]


def complete_suites(ctx: click.Context, param: click.Parameter, text: str) -> list[CompletionItem]:
    """Complete suites of the package, and files."""
    from shiftbench.running.suite import suite_names

    names = [CompletionItem(name) for name in suite_names() if name.startswith(text)]
    return [*names, CompletionItem(text, type="file")]


# --- models and data


def models(text: str, *, required: bool = False, group: Group = OPTIONS) -> Decorator:
    """Declare `models`, a repeatable option."""
    settings: dict[str, Any] = {"multiple": True, "required": required}
    return group(
        "-m --model models", "[NAME=]MODEL", text, shell_complete=complete_models, **settings
    )


def model(text: str, *, required: bool = True) -> Decorator:
    """Declare `model`."""
    return OPTIONS(
        "-m --model", "[NAME=]MODEL", text, required=required, shell_complete=complete_models
    )


def checkpoint(group: Group = OPTIONS) -> Decorator:
    """Declare `checkpoint`."""
    text = "Weights file, or folder written by `shiftbench train`."
    return group("--checkpoint", "PATH", text, type=PATH)


def strip_prefix(group: Group = OPTIONS) -> Decorator:
    """Declare `strip_prefix`."""
    text = "Part of the checkpoint's keys to remove, such as 'model.'."
    return group("--strip-prefix", "TEXT", text, rare=True)


def data(text: str, *, group: Group = OPTIONS, **settings: Any) -> Decorator:
    """Declare `data`."""
    return group("-d --data", "NAME[:PATH]", text, shell_complete=names_of("datasets"), **settings)


def limit(text: str, *, group: Group = OPTIONS, default: int | None = None) -> Decorator:
    """Declare `limit`, a number of images."""
    return group("--limit", "N", text, type=COUNT, default=default)


def suite_root(group: Group = OPTIONS) -> Decorator:
    """Declare `suite_root`."""
    text = "Start of relative paths in SUITE.  [default: its folder]"
    return group("--suite-root", "DIR", text, rare=True, type=PATH)


# --- records

records = OPTIONS(
    "-r --records folders",
    "DIR",
    "Directory of records; repeatable.  [default: results/runs]",
    multiple=True,
    type=PATH,
)
only_models = OPTIONS(
    "-m --model models",
    "NAME",
    "Only this model, or a pattern such as 'xcit*'; repeatable.",
    multiple=True,
)
only_data = OPTIONS("-d --data", "NAME", "Only records of this dataset.")


# --- execution and output


def device(group: Group = OPTIONS) -> Decorator:
    """Declare `device`."""
    return group("--device", "DEVICE", "auto, cpu, cuda[:i] or mps.", default="auto")


def nproc(group: Group = OPTIONS) -> Decorator:
    """Declare `nproc`."""
    text = "Processes (one GPU each) that share the images."
    return group("--nproc", "N", text, type=COUNT, default=1)


def quiet(group: Group = OPTIONS) -> Decorator:
    """Declare `quiet`."""
    return group.flag("-q --quiet", "Hide progress.")


def printed(*kinds: str, group: Group = OPTIONS) -> Decorator:
    """Declare `kind`, the format of stdout: a table, or one of `kinds`."""
    names = ["table", *kinds]
    text = f"{', '.join(names[:-1])} or {names[-1]} on stdout."
    return group("--format kind", "FORMAT", text, type=Choice(names), default="table")


def picture(default: str) -> Decorator:
    """Declare `output`, a picture."""
    text = "Picture to write: .png, .pdf or .svg."
    return OPTIONS("-o --output", "FILE", text, type=PATH, default=Path(default))


def _check_loggers(ctx: click.Context, param: click.Parameter, names: Sequence[str]) -> Any:
    """Raise an error for packages that are not installed, before any work is done."""
    if names:
        from shiftbench.logs import require_loggers

        require_loggers(names)
    return names


def loggers(group: Group = OPTIONS) -> Decorator:
    """Declare `loggers`, a repeatable option."""
    text = "Also log scores to TensorBoard or Weights & Biases; repeatable."
    settings: dict[str, Any] = {"multiple": True, "callback": _check_loggers}
    return group("--logger loggers", "tensorboard|wandb", text, rare=True, **settings)


def _load_plugins(ctx: click.Context, param: click.Parameter, files: Sequence[Path]) -> None:
    from shiftbench.plugins import load_plugins

    with contextlib.redirect_stdout(sys.stderr):
        load_plugins(files)


def plugins(group: Group = OPTIONS) -> Decorator:
    """Load installed plug-ins, and the files of a repeatable option."""
    text = "Python file that registers shifts, metrics, sources, ...; repeatable."
    settings: dict[str, Any] = {"multiple": True, "type": PATH, "callback": _load_plugins}
    return group(
        "--plugin", "FILE.py", text, rare=True, is_eager=True, expose_value=False, **settings
    )
