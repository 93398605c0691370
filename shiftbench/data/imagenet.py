"""`imagenet:PATH`: wnid folders, mapped to the standard indices of the 1000 classes."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from shiftbench.data.base import DATA_SOURCES, DataRequest, DataSource
from shiftbench.data.folder import FileSet, class_folders, file_set, split_folder
from shiftbench.errors import DataError


@cache
def class_descriptions() -> tuple[str, ...]:
    """Return the names of the 1000 classes by index, each a list of synonyms."""
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    return tuple(info.index_to_description(index) for index in range(len(info.label_names())))


def describe_class(name: str) -> str:
    """Return the description of a wnid, and other class names unchanged.

    >>> describe_class("n01440764"), describe_class("sea lion")
    ('tench, Tinca tinca', 'sea lion')
    """
    if not re.fullmatch(r"n\d{8}", name):
        return name
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    known = name in info.label_names()
    return str(info.label_name_to_description(name)) if known else name


def load_imagenet(request: DataRequest) -> FileSet:
    """Open PATH, which contains `val/` or the wnid folders; any of the wnids may be absent."""
    from timm.data import ImageNetInfo

    place = split_folder(request.path, request.split, source="imagenet")
    info = ImageNetInfo("imagenet-1k")
    index = {wnid: index for index, wnid in enumerate(info.label_names())}
    folders = class_folders(place.root, source="imagenet")
    strangers = [folder for folder in folders if folder not in index]
    if strangers:
        raise DataError(
            f"folder {strangers[0]!r} in {place.root} is not one of the 1000 ImageNet wnids (such "
            "as n01440764): sort the images into wnid folders, or use folder:PATH"
        )
    place = replace(place, name="imagenet")
    return file_set(place, {wnid: index[wnid] for wnid in folders}, class_descriptions())


DATA_SOURCES.register(
    "imagenet",
    DataSource("imagenet:PATH, wnid folders (any of the 1000), PATH or PATH/val", load_imagenet),
)
