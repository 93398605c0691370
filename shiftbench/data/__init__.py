"""Data sources: a name such as `imagenet:PATH` becomes an `ImageSet`.

A new source is one new file here that registers a `Source` in `SOURCES`: every file of this folder
is imported.
"""

from importlib import import_module
from pkgutil import iter_modules

from shiftbench.data.base import SOURCES, Camera, ImageSet, Request, Source
from shiftbench.data.labels import relabeled
from shiftbench.data.scenes import Scenes
from shiftbench.data.sources import list_datasets, load_dataset
from shiftbench.data.subset import balanced, subset

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "SOURCES",
    "Camera",
    "ImageSet",
    "Request",
    "Scenes",
    "Source",
    "balanced",
    "list_datasets",
    "load_dataset",
    "relabeled",
    "subset",
]
