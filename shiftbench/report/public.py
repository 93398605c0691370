"""Results of public models on 500 images of ImageNet, to rank other models among them.

`python -m shiftbench.report.public DIR` writes the file of the package from records.
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path, PurePosixPath

from shiftbench.data.base import ImageSet, subset
from shiftbench.errors import DataError
from shiftbench.files import write_atomic
from shiftbench.records.folder import RECORD_FILE, load_records, record_folder, select
from shiftbench.records.result import TABLES_FOLDER, Result
from shiftbench.tables import table_files

ARCHIVE = "public.tar.xz"
DATA = "imagenet"
SUFFIX = " (public)"  # of the models' names in a table


def public_results() -> list[Result]:
    """Read the results of the public models, with their tables."""
    return list(_read_archive())


@cache
def _read_archive() -> tuple[Result, ...]:
    content = resources.files("shiftbench.report").joinpath(ARCHIVE).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(folder, filter="data")
        return tuple(_named(result.in_memory()) for result in load_records([Path(folder)]))


def _named(result: Result) -> Result:
    return replace(result, model=replace(result.model, name=f"{result.model.name}{SUFFIX}"))


def narrowed(dataset: ImageSet) -> ImageSet:
    """Return the images of a data set that the public models were measured on, by file name.

    The digests of the images confirm the choice when a table compares the results.

    Raises:
        DataError: Some of the images are missing.
    """
    wanted = {_stem(key) for key in public_results()[0].tables.keys}
    found = [index for index, key in enumerate(dataset.keys) if _stem(key) in wanted]
    missing = wanted - {_stem(dataset.keys[index]) for index in found}
    if missing:
        raise DataError(
            f"cannot rank a model among the public ones: {dataset.name} has {len(found)} of their "
            f"{len(wanted)} ImageNet validation images (missing: {min(missing)}). Give the whole "
            "validation set with -d imagenet:PATH"
        )
    return dataset if len(found) == len(dataset) else subset(dataset, found)


def _stem(key: str) -> str:
    return PurePosixPath(key).stem


def write_public(results: Sequence[Result], path: Path) -> None:
    """Write the records of ImageNet to one archive; equal records give equal bytes."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz", preset=9) as archive:
        for result in sorted(results, key=lambda result: result.model.name):
            folder = result.folder
            assert folder is not None
            name = record_folder(Path(), result.model.name, result.data.name)
            for file in (folder / RECORD_FILE, *table_files(folder / TABLES_FOLDER)):
                info = tarfile.TarInfo((name / file.relative_to(folder)).as_posix())
                info.size = file.stat().st_size
                with file.open("rb") as opened:
                    archive.addfile(info, opened)
    write_atomic(path, content.getvalue())


if __name__ == "__main__":
    _records = load_records([Path(word) for word in sys.argv[1:]])
    write_public(select(_records, data=DATA), Path(__file__).with_name(ARCHIVE))
