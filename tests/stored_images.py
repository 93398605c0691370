"""Four images with class names, stored in every format that a data source reads."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shiftbench.data import ImageSet, RenderedSet, load_dataset
from shiftbench.data.torchvision_sets import torchvision_set

SET_ORDER = ("emu", "cat", "dog")  # of the library's sets, which need not be alphabetical
SHOWN = ("cat", "dog", "emu", "dog")  # classes of the four images


def picture(value: int, size: tuple[int, int] = (8, 8)) -> Image.Image:
    """Return an image of noise that depends on the value."""
    shape = (size[1], size[0], 3)
    return Image.fromarray(np.random.default_rng(value).integers(0, 256, shape, dtype=np.uint8))


def png(value: int) -> bytes:
    content = io.BytesIO()
    picture(value).save(content, "png")
    return content.getvalue()


def save(path: Path, value: int = 0, size: tuple[int, int] = (8, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(value, size).save(path)
    return path


def shard(path: Path, members: dict[str, bytes], mode: Any = "w") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def as_folder(home: Path) -> str:
    for index, name in enumerate(SHOWN):
        save(home / name / f"{index}.png", index)
    return f"folder:{home}"


def as_csv(home: Path) -> str:
    rows = [f"{save(home / f'{i}.png', i).name},{name}" for i, name in enumerate(SHOWN)]
    (home / "images.csv").write_text("\n".join(["path,label", *rows]))
    return f"csv:{home / 'images.csv'}"


def as_hub(home: Path) -> str:
    """Save the set with the library, with the images inside."""
    hub: Any = pytest.importorskip("datasets")
    hub.disable_progress_bars()
    kinds = hub.Features(picture=hub.Image(), label=hub.ClassLabel(names=list(SET_ORDER)))
    images = [{"bytes": png(index), "path": None} for index in range(4)]
    labels = [SET_ORDER.index(name) for name in SHOWN]
    part = hub.Dataset.from_dict({"picture": images, "label": labels}, features=kinds)
    hub.DatasetDict({"train": part.select([0]), "test": part}).save_to_disk(str(home / "saved"))
    return f"hfds:{home / 'saved'}"


def as_hub_files(home: Path) -> str:
    """Write folders in the layout of the library, with images in files of their own."""
    hub: Any = pytest.importorskip("datasets")
    hub.disable_progress_bars()
    hub.config.HF_DATASETS_CACHE = home.parent / "cache"
    as_folder(home / "test")
    return f"hfds:{home}"


class Kept:
    """Data set in the form of torchvision: images in memory, or in files."""

    classes = SET_ORDER

    def __init__(self, labels: str = "targets", files: Path | None = None) -> None:
        setattr(self, labels, np.array([SET_ORDER.index(name) for name in SHOWN]))
        self.images = [picture(index) for index in range(4)]
        if files is None:
            self.data = np.stack([np.asarray(image) for image in self.images])
        else:
            self._image_files = [save(files / f"{i}.png", i) for i in range(4)]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return self.images[index], -1


WRITERS = {"folder": as_folder, "csv": as_csv, "hfds": as_hub, "hfds files": as_hub_files}
NAMED = [*WRITERS, "torchvision", "torchvision files"]


def stored(source: str, home: Path) -> ImageSet:
    """Return the four images from one of `NAMED`."""
    if source.startswith("torchvision"):
        return torchvision_set("kept", "test", Kept(files=home if "files" in source else None))
    return load_dataset(WRITERS[source](home))


def what(image: Image.Image) -> int:
    """Return the index of an image among the four."""
    return [picture(index).tobytes() for index in range(4)].index(image.tobytes())


def shown(data: ImageSet, names: tuple[str, ...]) -> dict[int, str]:
    """Return the class name of each image by its label."""
    items = [data[index] for index in range(len(data))]
    assert [label for _, label in items] == list(data.labels)
    return {what(image): names[label] for image, label in items}


def digests(data: ImageSet) -> list[int]:
    """Return the digest of every image."""
    if isinstance(data, RenderedSet):
        return [data.digest(index) for index in range(len(data))]
    return [data.load(index)[1] for index in range(len(data))]
