"""From a name such as `imagenet:PATH` to an `ImageSet`."""

from __future__ import annotations

from pathlib import Path

from shiftbench.data.base import DATA_SOURCES, DataRequest, DataSource, ImageSet
from shiftbench.data.subset import balanced, subset
from shiftbench.errors import UsageError


def list_datasets() -> list[DataSource]:
    """Every source of data, with its name and a one-line summary."""
    return [DATA_SOURCES.get(name) for name in DATA_SOURCES]


def load_dataset(
    spec: str,
    *,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    download: bool = False,
    class_map: Path | str | None = None,
    verify: bool = False,
) -> ImageSet:
    """Opens a data set by name.

    >>> data = load_dataset("scenes", limit=24)
    >>> data.name, data.split, len(data)
    ('scenes', 'test', 24)

    Args:
        spec: `NAME` or `NAME:PATH`, such as `scenes`, `imagenet:PATH`, `cifar10`.
        split: Which part; by default the usual evaluation split.
        limit: Take a fixed, class-balanced subset of this many images.
        seed: Of the subset, which nothing else changes.
        download: Allow the data set to be fetched; without it the network is never used.
        class_map: For `folder`: a JSON or CSV file from folder names to class indices.
        verify: Read every file for the fingerprint, also those that seem not to have changed.

    Raises:
        UsageError: The name is unknown or an option does not fit it.
        DataError: The files are not there or not as expected.
    """
    name, _, path = spec.partition(":")
    source = DATA_SOURCES.get(name)
    if class_map is not None and name != "folder":
        raise UsageError(f"a class map is for folder:PATH; {name} knows its classes: leave it out")
    dataset = source.load(
        DataRequest(
            path=Path(path).expanduser() if path else None,
            split=split,
            download=download,
            class_map=None if class_map is None else Path(class_map),
        )
    )
    if verify:
        dataset.fingerprint(verify=True)
    if limit is None:
        return dataset
    chosen = balanced(dataset.keys, dataset.labels, limit, seed)
    return dataset if len(chosen) == len(dataset) else subset(dataset, chosen)
