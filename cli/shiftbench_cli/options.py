"""What several commands have: options, completion, processes that share the work."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from shiftbench.errors import ShiftbenchError
from shiftbench_cli.main import INTERRUPTED

if TYPE_CHECKING:
    from shiftbench.running.distributed import Group

_SOURCE_TREE = Path(__file__).resolve().parents[2]
_PATH = click.Path(path_type=Path)
Decorator = Callable[[Any], Any]


# --- what the shell offers after Tab

FIRST = 200  # offers at most: a longer list helps nobody, and timm alone has over a thousand
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names_of(kind: str, *more: str) -> Complete:
    """Offers the names that begin with what was typed; imports wait until Tab is pressed."""

    def complete(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
        from shiftbench_cli.listing import KINDS

        names = [*(str(entry["name"]) for entry in KINDS[kind]()), *more]
        return [CompletionItem(name) for name in names if name.startswith(typed)][:FIRST]

    return complete


def complete_suites(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offers suites that come with the package, and files."""
    from shiftbench.running.suite import suite_names

    names = [CompletionItem(name) for name in suite_names() if name.startswith(typed)]
    return [*names, CompletionItem(typed, type="file")]


# --- the options


def models(*, required: bool = False, named: bool = False) -> Decorator:
    """Which models to load, as `models`."""
    more = " NAME=MODEL names it in records and tables." if named else ""
    default = "" if required else " Default: the bundled ones."
    return click.option(
        "-m",
        "--model",
        "models",
        multiple=True,
        required=required,
        help="Model, as `shiftbench list models` names it; repeatable." + more + default,
        metavar="[NAME=]MODEL" if named else "MODEL",
        shell_complete=names_of("models"),
    )


model = click.option(
    "-m",
    "--model",
    required=True,
    help="Model, named as for `shiftbench run`: timm:resnet50+af, ...",
    shell_complete=names_of("models"),
)
checkpoint = click.option(
    "--checkpoint", type=_PATH, help="Weights for one model and its remedies: a file or folder."
)
strip_prefix = click.option(
    "--strip-prefix", help="Part of the checkpoint's keys to remove, such as 'model.'."
)
device = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, cuda[:i] or mps."
)
nproc = click.option(
    "--nproc", type=click.IntRange(min=1), default=1, show_default=True, help="Number of processes."
)
quiet = click.option("-q", "--quiet", is_flag=True, help="Hide progress.")


def data(text: str, **how: Any) -> Decorator:
    """Which images, as `data`."""
    complete = names_of("datasets")
    return click.option(
        "-d", "--data", metavar="NAME[:PATH]", help=text, shell_complete=complete, **how
    )


suite_data = data(
    "Images to measure on; of a suite, where one of its data sets is, repeatable. Default: scenes.",
    multiple=True,
)
root = click.option(
    "--root",
    type=_PATH,
    help="Where relative paths of the suite begin. Default: the folder of its file; of paper and "
    "board, the current folder.",
)


def images(default: int) -> Decorator:
    """How many images, as `images`."""
    return click.option(
        "--images",
        default=default,
        show_default=True,
        type=click.IntRange(min=1),
        help="How many images to measure on.",
    )


records = click.option(  # as `folders`
    "-r",
    "--records",
    "folders",
    multiple=True,
    type=_PATH,
    help="Where to look for records; repeatable. Default: results/runs.",
)
only_models = click.option(  # as `models`
    "-m",
    "--model",
    "models",
    multiple=True,
    help="Only this model, or a pattern such as 'xcit*'; repeatable.",
)
only_data = click.option("-d", "--data", help="Only records of this data set.")


def printed(*kinds: str) -> Decorator:
    """The output format on stdout, as `kind`: a table, or what these name."""
    return click.option(
        "--format",
        "kind",
        type=click.Choice(["table", *kinds]),
        default="table",
        show_default=True,
        help="Output format on stdout.",
    )


board = click.option(
    "--board",
    is_flag=True,
    help="Show them among public networks on ImageNet photographs: ranked together where the "
    "photographs are the same, otherwise in a table of their own that says what differs.",
)
paper = click.option(  # `paper_folder` knows the default
    "--paper",
    type=_PATH,
    help="Folder of the published figures. Default: results/paper, here or in the source tree.",
)


def paper_folder(given: Path | None) -> Path:
    """Where the published figures are."""
    here = Path("results/paper")
    return given or (here if here.is_dir() else _SOURCE_TREE / here)


def picture(default: str) -> Decorator:
    """The picture to write, as `output`."""
    return click.option(
        "-o",
        "--output",
        type=_PATH,
        default=Path(default),
        show_default=True,
        help="Picture to write: .png, .pdf or .svg.",
    )


def _check_logs(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> Any:
    """Refuses logs that are not installed before any work is done."""
    if names:
        from shiftbench.logs import require_logs

        require_logs(names)
    return names


def _load_plugins(ctx: click.Context, param: click.Parameter, files: tuple[Path, ...]) -> None:
    from shiftbench.plugins import load_plugins

    load_plugins(files)


def _parse_shard(ctx: click.Context, param: click.Parameter, text: str | None) -> Any:
    """The share of the images that this job measures; None: all of them."""
    from shiftbench.running.distributed import Shard, shard_of_environment

    if text is not None:
        given = Shard.parse(text)
        return given if given.count > 1 else None
    implied = shard_of_environment()
    if implied is not None:
        click.echo(f"shard {implied[0]}, from {implied[1]}: --shard 1/1 measures all", err=True)
    return None if implied is None else implied[0]


logs = click.option(  # as `logs`
    "--log",
    "logs",
    multiple=True,
    metavar="tensorboard|wandb",
    callback=_check_logs,
    help="Send the numbers there too; repeatable.",
)
plugins = click.option(  # installed plug-ins are imported too
    "--plugin",
    multiple=True,
    is_eager=True,
    expose_value=False,
    callback=_load_plugins,
    type=_PATH,
    metavar="FILE.py",
    help="Python file with your own shifts, metrics, sources, ...; repeatable.",
)
shard = click.option(
    "--shard",
    metavar="i/N",
    callback=_parse_shard,
    help="Measure this share of the images only, beside the other jobs of an array. Default: "
    "from SLURM_ARRAY_TASK_ID, PBS_ARRAY_INDEX or LSB_JOBINDEX, else all images.",
)


# --- commands that several processes can share: `--nproc N`, or an outer torchrun


class SharedCommand(click.Command):
    """Remembers the arguments of the command line for the processes that `--nproc` starts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments after remembering them."""
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)


@contextmanager
def _saving_on_signals() -> Iterator[None]:
    """Ends as Ctrl-C does when a scheduler is about to end the process: finished parts are kept."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    names = ("SIGTERM", "SIGUSR1")  # what schedulers send; not all of them on Windows
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    in_main = threading.current_thread() is threading.main_thread()
    numbers = [n for n in numbers if in_main and signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def share(ctx: click.Context, work: Callable[[Group], int], *, nproc: int, device: str) -> int:
    """Does `work` as one of the processes that share it, or starts them; returns an exit code."""
    from aft_models.errors import AftModelsError
    from shiftbench.run import distributed

    if nproc > 1 and not distributed.in_torchrun():
        name = ctx.command.name or ""
        return distributed.launch(nproc, ["shiftbench_cli", name, *ctx.meta["words"]])
    with _saving_on_signals(), distributed.joined(device) as group:
        try:
            return work(group)
        except (ShiftbenchError, AftModelsError) as error:
            if group.is_main or isinstance(error, distributed.LostProcessError):
                raise
            # The main process has the same error, and says it.
            return error.exit_code if isinstance(error, ShiftbenchError) else 2
        except KeyboardInterrupt:
            if group.is_main and not distributed.is_launched():
                raise
            sys.exit(INTERRUPTED)  # whoever started us says it
