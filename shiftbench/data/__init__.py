"""Data sources: a name such as `imagenet:PATH` becomes an `ImageSet`.

A new source is one new file here that registers a `DataSource` in `DATA_SOURCES`: every file of
this folder is imported.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from shiftbench.data.base import (
    DATA_SOURCES,
    DataRequest,
    DataSource,
    ImageSet,
    RenderedSet,
    balanced,
    subset,
)
from shiftbench.data.canvases import CanvasBatch, Canvases, canvas_batches
from shiftbench.data.images import EncodedSet
from shiftbench.data.labels import mapped, relabeled
from shiftbench.data.scenes import Scenes
from shiftbench.errors import DataError

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "DATA_SOURCES",
    "CanvasBatch",
    "Canvases",
    "DataRequest",
    "DataSource",
    "EncodedSet",
    "ImageSet",
    "RenderedSet",
    "Scenes",
    "balanced",
    "canvas_batches",
    "load_dataset",
    "relabeled",
    "subset",
]

ENDINGS = {".csv": "csv", ".tar": "wds"}  # files with a known ending


def load_dataset(
    spec: str,
    *,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    download: bool = False,
    class_map: Path | str | None = None,
) -> ImageSet:
    """Open a data set by name.

    >>> data = load_dataset("scenes", limit=24)
    >>> data.name, data.split, len(data)
    ('scenes', 'test', 24)

    Args:
        spec: `NAME` or `NAME:PATH`, such as `scenes`, `imagenet:PATH`, `cifar10`; or the path of a
            folder of class folders, of a table that ends in .csv, of shards that end in .tar.
        split: Split; by default the usual evaluation split.
        limit: Size of a fixed, class-balanced subset.
        seed: Seed of the subset.
        download: Allow a download; otherwise the network is never used.
        class_map: A JSON or CSV file from class names to the class indices of the model.

    Raises:
        UsageError: The name is unknown or an option does not fit it.
        DataError: The files are missing or not as expected.
    """
    source, path = _source_and_path(spec)
    place = Path(path).expanduser() if path else None
    dataset = source.load(DataRequest(place, split, download, by_name=class_map is not None))
    if class_map is not None:
        dataset = mapped(dataset, Path(class_map))
    if limit is None:
        return dataset
    chosen = balanced(dataset.keys, dataset.labels, limit, seed)
    return dataset if len(chosen) == len(dataset) else subset(dataset, chosen)


def _source_and_path(spec: str) -> tuple[DataSource, str]:
    name, _, path = spec.partition(":")
    if name in DATA_SOURCES:
        return DATA_SOURCES.get(name), path
    place = Path(spec).expanduser()
    if place.is_dir():
        return DATA_SOURCES.get("folder"), spec
    if place.suffix in ENDINGS:
        return DATA_SOURCES.get(ENDINGS[place.suffix]), spec
    if place.is_absolute() or len(place.parts) > 1 or spec.startswith("."):
        raise DataError(f"there is no folder {spec}: check the path, or write NAME:PATH")
    return DATA_SOURCES.get(name), path  # an error with close matches
