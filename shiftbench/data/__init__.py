"""Data sources: a name such as `imagenet:PATH` becomes an `ImageSet`.

A new source is one new file here that registers a `DataSource` in `DATA_SOURCES`: every file of
this folder is imported.
"""

from importlib import import_module
from pkgutil import iter_modules

from shiftbench.data.base import DATA_SOURCES, DataRequest, DataSource, ImageSet, RenderedSet
from shiftbench.data.canvases import CanvasBatch, Canvases, canvas_batches
from shiftbench.data.images import EncodedSet
from shiftbench.data.labels import relabeled
from shiftbench.data.scenes import Scenes
from shiftbench.data.sources import load_dataset
from shiftbench.data.subset import balanced, subset

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
