"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from shiftbench_cli import completion

Command = TypeVar("Command", bound=Callable[..., Any])
_SOURCE_TREE = Path(__file__).resolve().parents[2]


def models(*, required: bool = False, named: bool = False) -> Callable[[Command], Command]:
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
        shell_complete=completion.models,
    )


def checkpoint(command: Command) -> Command:
    """Weights, as `checkpoint`."""
    return click.option(
        "--checkpoint",
        type=click.Path(path_type=Path),
        help="Weights for one model and its remedies.",
    )(command)


def strip_prefix(command: Command) -> Command:
    """Part of a checkpoint's keys, as `strip_prefix`."""
    return click.option(
        "--strip-prefix", help="Part of the checkpoint's keys to remove, such as 'model.'."
    )(command)


def device(command: Command) -> Command:
    """Where to compute, as `device`."""
    return click.option(
        "--device", default="auto", show_default=True, help="auto, cpu, cuda[:i] or mps."
    )(command)


def data(command: Command) -> Command:
    """The images, as `data`."""
    return click.option(
        "-d",
        "--data",
        default="scenes",
        show_default=True,
        metavar="NAME[:PATH]",
        help="Images to measure on.",
        shell_complete=completion.datasets,
    )(command)


def suite_data(command: Command) -> Command:
    """The images of one or more data sets, as `data`."""
    return click.option(
        "-d",
        "--data",
        multiple=True,
        metavar="NAME[:PATH]",
        help="Images to measure on; of a suite, where one of its data sets is, repeatable. "
        "Default: scenes.",
        shell_complete=completion.datasets,
    )(command)


def root(command: Command) -> Command:
    """Where the relative paths of a suite begin, as `root`."""
    return click.option(
        "--root",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Where relative paths of the suite begin. Default: the folder of its file; of paper "
        "and board, the current folder.",
    )(command)


def images(default: int) -> Callable[[Command], Command]:
    """How many images, as `images`."""
    return click.option(
        "--images",
        default=default,
        show_default=True,
        type=click.IntRange(min=1),
        help="How many images to measure on.",
    )


def records(command: Command) -> Command:
    """Folders with records, as `folders`."""
    return click.option(
        "-r",
        "--records",
        "folders",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Where to look for records; repeatable. Default: results/runs.",
    )(command)


def only_models(command: Command) -> Command:
    """Which models of the records, as `models`."""
    return click.option(
        "-m",
        "--model",
        "models",
        multiple=True,
        help="Only this model, or a pattern such as 'xcit*'; repeatable.",
    )(command)


def printed(command: Command) -> Command:
    """The output format on stdout, as `kind`."""
    return click.option(
        "--format",
        "kind",
        type=click.Choice(["table", "json", "csv"]),
        default="table",
        show_default=True,
        help="Output format on stdout.",
    )(command)


def board(command: Command) -> Command:
    """Whether the rows stand among those of the board, as `board`."""
    return click.option(
        "--board",
        is_flag=True,
        help="Show them among public networks on ImageNet photographs: ranked together where the "
        "photographs are the same, otherwise in a table of their own that says what differs.",
    )(command)


def paper(command: Command) -> Command:
    """The folder of published figures, as `paper`; `paper_folder` knows the default."""
    return click.option(
        "--paper",
        type=click.Path(path_type=Path),
        help="Folder of the published figures. Default: results/paper, here or in the source tree.",
    )(command)


def paper_folder(given: Path | None) -> Path:
    """Where the published figures are."""
    here = Path("results/paper")
    return given or (here if here.is_dir() else _SOURCE_TREE / here)


def picture(default: str) -> Callable[[Command], Command]:
    """The picture to write, as `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        default=Path(default),
        show_default=True,
        help="Picture to write: .png, .pdf or .svg.",
    )


def logs(command: Command) -> Command:
    """Where numbers go besides our own files, as `logs`; refused here if not installed."""

    def check(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> Any:
        if names:
            from shiftbench.logs import require_logs

            require_logs(names)
        return names

    return click.option(
        "--log",
        "logs",
        multiple=True,
        metavar="tensorboard|wandb",
        callback=check,
        help="Send the numbers there too; repeatable.",
    )(command)


def plugins(command: Command) -> Command:
    """Files to import before anything else; installed plug-ins are imported too."""

    def load(ctx: click.Context, param: click.Parameter, files: tuple[Path, ...]) -> None:
        from shiftbench.plugins import load_plugins

        load_plugins(files)

    return click.option(
        "--plugin",
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=load,
        type=click.Path(path_type=Path),
        metavar="FILE.py",
        help="Python file with your own shifts, metrics, sources, ...; repeatable.",
    )(command)


def shard(command: Command) -> Command:
    """The share of the images that this job measures, as `shard`; None: all of them."""

    def parse(ctx: click.Context, param: click.Parameter, text: str | None) -> Any:
        from shiftbench.run.shards import Shard, shard_of_environment

        if text is not None:
            given = Shard.parse(text)
            return given if given.count > 1 else None
        implied = shard_of_environment()
        if implied is not None:
            click.echo(f"shard {implied[0]}, from {implied[1]}: --shard 1/1 measures all", err=True)
        return None if implied is None else implied[0]

    return click.option(
        "--shard",
        metavar="i/N",
        callback=parse,
        help="Measure this share of the images only, beside the other jobs of an array. Default: "
        "from SLURM_ARRAY_TASK_ID, PBS_ARRAY_INDEX or LSB_JOBINDEX, else all images.",
    )(command)
