"""Whose class 3 is it? Labels of folders that are known by name, as a model numbers its classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from shiftbench.data.base import ImageSet
from shiftbench.data.folder import FileSet
from shiftbench.data.subset import Subset
from shiftbench.errors import UsageError


def relabeled(dataset: ImageSet, num_classes: int, class_names: Sequence[str] = ()) -> ImageSet:
    """The data set with the class indices of a model that answers with `num_classes` logits.

    Only folders whose classes are known by name and not by index are concerned. A model that knows
    its `class_names` has them matched by name; for one that does not, the alphabetical order holds
    as long as the number of classes agrees.

    Raises:
        UsageError: Nobody can tell which folder is which class of the model.
    """
    if isinstance(dataset, Subset):
        whole = relabeled(dataset.whole, num_classes, class_names)
        return dataset if whole is dataset.whole else replace(dataset, whole=whole)
    if not isinstance(dataset, FileSet) or not dataset.by_order:
        return dataset
    folders = dataset.class_names
    if class_names:
        counts = Counter(class_names)
        strangers = [folder for folder in folders if counts[folder] != 1]
        if strangers:
            raise UsageError(
                f"folder {strangers[0]!r} of {dataset.name} is not one class of the model, which "
                f"calls its classes {_some(class_names)}: give --class-map FILE, or use "
                "imagenet:PATH for wnid folders"
            )
        index = {name: position for position, name in enumerate(class_names)}
        labels = [index[folders[label]] for label in dataset.labels]
        return replace(dataset, labels=labels, class_names=tuple(class_names))
    if num_classes != len(folders):
        raise UsageError(
            f"the model answers with {num_classes} classes and {dataset.name} has {len(folders)} "
            f"folders ({_some(folders)}): give --class-map FILE to say which class each of them "
            "is, or use imagenet:PATH for wnid folders"
        )
    return dataset


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
