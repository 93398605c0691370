"""Data sources: a name such as `imagenet:PATH` becomes an `ImageSet`.

A new source is one new file that registers a `Source` in `SOURCES` and is imported by `sources`.
"""

from shiftbench.datasets.base import SOURCES, Camera, ImageSet, Request, Source
from shiftbench.datasets.scenes import Scenes
from shiftbench.datasets.sources import list_datasets, load_dataset
from shiftbench.datasets.subset import balanced, subset

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
    "subset",
]
