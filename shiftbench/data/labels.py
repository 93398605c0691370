"""Class indices: from the text of labels, from a class map, and as a model numbers its classes."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shiftbench.data.base import ImageSet, RenderedSet, Subset, numbered, subset
from shiftbench.errors import DataError, UsageError, reason

log = logging.getLogger(__name__)

NUMBER = re.compile(r"\d+")
MAP_HINT = 'pass --class-map FILE (JSON such as {"cat": 0, "dog": 1}, or CSV)'


def class_indices(
    labels: Iterable[str], *, what: str, by_name: bool = False
) -> tuple[dict[str, int], bool]:
    """Assign an index to every label: integers are indices, unless `by_name`.

    Names are numbered in alphabetical order, like torchvision's ImageFolder and therefore most
    training scripts. `what` names a label in errors.

    Returns:
        The index of every label, in the order of the indices, and True if the labels were names.

    >>> class_indices(["10", "2"], what="label")
    ({'2': 2, '10': 10}, False)
    >>> class_indices(["emu", "cat", "emu"], what="label")
    ({'cat': 0, 'emu': 1}, True)
    """
    names = sorted(set(labels))
    words = [name for name in names if not name.isdecimal()]
    if by_name or len(words) == len(names):
        return {name: index for index, name in enumerate(names)}, True
    if words:
        raise UsageError(
            f"{what} {words[0]!r} is not a class index, and others are: use integers for all of "
            f"them, or {MAP_HINT}"
        )
    return {name: int(name) for name in sorted(names, key=int)}, False


def names_by_index(indices: Mapping[str, int]) -> list[str]:
    """Return the name of every class; an index without a name is its own name."""
    names = numbered(max(indices.values()) + 1)
    for name, index in indices.items():
        names[index] = name
    return names


def read_class_map(path: Path) -> dict[str, int]:
    """Read class name -> class index: a JSON object, a JSON list of names, or CSV rows.

    Returns:
        The index of each class name.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.reader(text.splitlines())) if path.suffix == ".csv" else _json_rows(text)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the class map {path}: {reason(error)}") from error
    if rows and not str(rows[0][-1]).strip().isdecimal():
        rows = rows[1:]  # a CSV may begin with a row of titles
    bad = next((r for r in rows if len(r) != 2 or not str(r[1]).strip().isdecimal()), None)
    if bad is not None or not rows:
        got = "nothing" if bad is None else repr(bad)
        raise DataError(f"the class map {path} must pair class names with indices, got {got}")
    return {str(name).strip(): int(index) for name, index in rows}


def _json_rows(text: str) -> list[list[Any]]:
    content = json.loads(text)
    if isinstance(content, list):
        return [[name, index] for index, name in enumerate(content)]
    if isinstance(content, dict):
        return [list(pair) for pair in content.items()]
    raise ValueError(f"expected a JSON object or list, got {type(content).__name__}")


def mapped(dataset: ImageSet, class_map: Path) -> ImageSet:
    """Return the data set with the class indices of a class map."""
    if isinstance(dataset, RenderedSet):
        raise UsageError(f"the classes of {dataset.name} have fixed indices: remove --class-map")
    indices = read_class_map(class_map)
    names = {dataset.class_names[label] for label in dataset.used_classes()}
    missing = sorted(names - set(indices))
    if missing:
        raise DataError(
            f"the class map {class_map} has no entry for {len(missing)} of {len(names)} classes, "
            f"such as {missing[0]!r}: add them"
        )
    return dataset.renumbered(indices, names_by_index({name: indices[name] for name in names}))


def relabeled(dataset: ImageSet, num_classes: int, class_names: Sequence[str] = ()) -> ImageSet:
    """Return the data set with the class indices of a model of `num_classes` logits.

    Sets whose classes are indices do not change. Exception: folders named by integers are matched
    by name if every folder is a class name of the model. If the model has `class_names`, classes
    are matched by name. Otherwise the order of the set applies if the number of classes is equal.

    Raises:
        UsageError: The classes of the set cannot be assigned to those of the model.
    """
    if isinstance(dataset, Subset):
        whole = relabeled(dataset.whole, num_classes, class_names)
        return dataset if whole is dataset.whole else subset(whole, dataset.indices)
    if dataset.by_number:
        return _numbered_folders(dataset, num_classes, class_names)
    if not dataset.by_order:
        return dataset
    names = dataset.named_classes()
    if class_names:
        counts = Counter(class_names)
        strangers = [name for name in names if counts[name] != 1]
        if not strangers:
            indices = {name: index for index, name in enumerate(class_names)}
            return dataset.renumbered(indices, class_names)
        if not _agree(names, class_names):
            raise UsageError(
                f"{strangers[0]!r} of {dataset.name} is not one class of the model, whose "
                f"classes are {_some(class_names)}: {MAP_HINT}, or use imagenet:PATH for wnid "
                "folders"
            )
    elif num_classes != len(names):
        raise UsageError(
            f"the model predicts {num_classes} classes and {dataset.name} has {len(names)} "
            f"({_some(names)}): {MAP_HINT} to assign each of them to a class of the model, or use "
            "imagenet:PATH for wnid folders"
        )
    else:
        _warn_about_order(dataset.name, names)
    return dataset


def _numbered_folders(dataset: ImageSet, num_classes: int, class_names: Sequence[str]) -> ImageSet:
    """Assign folders named by integers: by the model's class names, else as indices.

    Raises:
        UsageError: Numeric and alphabetical order differ, and the model has no class names.
    """
    names = [str(dataset.class_names[label]) for label in sorted(set(dataset.labels))]
    counts = Counter(class_names)
    if all(counts[name] == 1 for name in names):
        indices = {name: index for index, name in enumerate(class_names)}
        if all(indices[name] == int(name) for name in names):
            return dataset
        return dataset.renumbered(indices, class_names)
    by_name = sorted(names)
    if not class_names and len(names) == num_classes and by_name != names:
        raise UsageError(
            f"cannot decide the class order of {dataset.name}: its {num_classes} folders are "
            f"{_some(names, 12)} by number and {_some(by_name, 12)} in alphabetical order "
            f"(torchvision's ImageFolder), and the model has no class names. Pass --class-map "
            f"FILE, a JSON list of the folders in the order of the model: "
            f"{json.dumps(names[:3])[:-1]}, ...]"
        )
    return dataset


def _agree(names: Sequence[str], others: Sequence[str]) -> bool:
    """Return True if two lists of names have the same order in two spellings, as for ImageNet."""
    same = sum(_first(a) == _first(b) for a, b in zip(names, others, strict=False))
    return len(names) == len(others) and same >= 0.98 * len(names)


def _first(name: str) -> str:
    return name.split(",")[0].casefold().replace("_", " ")


def _warn_about_order(dataset: str, names: Sequence[str]) -> None:
    """Warn if classes such as class0 ... class11 are not in the order of their numbers."""
    same_text = len({NUMBER.sub("", name) for name in names}) == 1
    by_number = sorted(names, key=lambda name: [int(digits) for digits in NUMBER.findall(name)])
    if same_text and sorted(names) == list(names) != by_number:
        log.warning(
            "the classes of %s are in alphabetical order (%s), not in numeric order (%s): if the "
            "model has another order, pass --class-map FILE",
            *(dataset, ", ".join(names[:3]), ", ".join(by_number[:3])),
        )


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
