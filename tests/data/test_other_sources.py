"""Tables of files, tar shards and sets of Hugging Face behave like any other data set."""

from __future__ import annotations

import io
import pickle
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shiftbench.data import ImageSet, canvas_batches, load_dataset
from shiftbench.errors import DataError, UsageError
from shiftbench.preprocessing import Geometry

GEOMETRY = Geometry(view=8, resize=8, margin=0, interpolation="bilinear")


def pixels(value: int, side: int = 8) -> Image.Image:
    noise = np.random.default_rng(value).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def png(value: int, side: int = 8) -> bytes:
    content = io.BytesIO()
    pixels(value, side).save(content, "png")
    return content.getvalue()


def check(data: ImageSet, values: list[int]) -> None:
    """The laws of an image set, where image i was made by `pixels(values[i])`."""
    assert len(data) == len(data.keys) == len(data.labels) == len(set(data.keys)) == len(values)
    for index, value in enumerate(values):
        image, label = data[index]
        assert np.array_equal(np.asarray(image), np.asarray(pixels(value)))
        assert label == data.labels[index] < len(data.class_names)
    assert data.has_size(8)
    assert not data.has_size(9)
    again = pickle.loads(pickle.dumps(data))
    assert again.fingerprint() == data.fingerprint() == data.fingerprint(verify=True)
    batch = next(canvas_batches(data, GEOMETRY, workers=0))
    assert batch.keys == tuple(data.keys)


# Tables


def table(folder: Path, text: str, *, name: str = "images.csv", images: int = 3) -> str:
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    for i in range(images):
        (folder / "deep" / f"{i}.png").write_bytes(png(i))
    (folder / name).write_text(text)
    return f"csv:{folder / name}"


def test_table_with_names(tmp_path: Path) -> None:
    rows = "label,path\ndog,deep/2.png\ncat,deep/0.png\ndog,deep/1.png\n"
    data = load_dataset(table(tmp_path / "birds", rows))
    check(data, [2, 0, 1])
    assert load_dataset(f"csv:{tmp_path / 'birds' / 'images.csv'}", split="all").keys == data.keys
    assert (data.name, data.split) == ("birds", "all")
    assert (list(data.labels), list(data.class_names)) == ([1, 0, 1], ["cat", "dog"])
    assert list(data.keys) == ["deep/2.png", "deep/0.png", "deep/1.png"]
    other = load_dataset(table(tmp_path / "birds", rows, name="few.csv"))
    assert (other.name, other.fingerprint()) == ("few", data.fingerprint())


def test_table_with_indices(tmp_path: Path) -> None:
    data = load_dataset(table(tmp_path / "birds", "path,label\ndeep/0.png,4\ndeep/1.png,2\n"))
    check(data, [0, 1])
    assert (list(data.labels), len(data.class_names)) == ([4, 2], 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,class\ndeep/0.png,1\n", "there is no label"),
        ("", "there is no path"),
        ("path,label\n", "names no images"),
        ("path,label\ndeep/0.png,1\ndeep/1.png,\n", "row 3 of .* has no label"),
        ("path,label\ndeep/0.png\n", "row 2 of .* has no label"),
        ("path,label\ndeep/0.png,1\ndeep/9.png,1\n", r"1 of 2 images .* such as deep/9\.png"),
        ("path,label\ndeep/0.png,1\ndeep/0.png,2\n", r"deep/0\.png more than once"),
    ],
)
def test_tables_that_cannot_be(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        load_dataset(table(tmp_path, text))


def test_requests_without_a_place(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the table"):
        load_dataset(f"csv:{tmp_path / 'nowhere.csv'}")
    for source in ("csv", "wds", "hfds"):
        with pytest.raises(UsageError, match=f"write it as {source}:"):
            load_dataset(source)
    with pytest.raises(UsageError, match="a table has no splits"):
        load_dataset(f"csv:{tmp_path}/x.csv", split="val")


# Shards


def shard(path: Path, members: dict[str, bytes], mode: Any = "w") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def sample(value: int, label: int) -> dict[str, bytes]:
    return {f"s{value}.png": png(value), f"s{value}.cls": b"%d\n" % label, f"s{value}.json": b"{}"}


@pytest.mark.parametrize("pattern", ["val-{000..001}.tar", "val-*.tar", "val-00[01].tar", ""])
def test_shards(pattern: str, tmp_path: Path) -> None:
    home = tmp_path / "birds"
    shard(home / "val-001.tar", sample(7, 0))
    # The order of members is up to whoever wrote them.
    shard(home / "val-000.tar", dict(reversed([*sample(5, 2).items(), *sample(6, 1).items()])))
    data = load_dataset(f"wds:{home / pattern}")
    check(data, [6, 5, 7])
    assert (data.name, data.split, list(data.labels)) == ("birds", "val", [1, 2, 0])
    assert list(data.keys) == ["val-000/s6", "val-000/s5", "val-001/s7"]
    before = data.fingerprint()
    shard(home / "val-001.tar", sample(8, 0) | {"s7.png": png(7), "s7.cls": b"0"})
    assert load_dataset(f"wds:{home / pattern}").fingerprint() != before


@pytest.mark.parametrize(
    ("members", "mode", "words"),
    [
        ({"a.png": png(1)}, "w", "a of .* has no label"),
        ({"a.png": png(1), "a.cls": b"cat"}, "w", "expected a class index in a.cls"),
        ({"a.png": png(1), "a.jpg": png(1), "a.cls": b"1"}, "w", "two images of the sample"),
        ({"a.cls": b"1"}, "w", "no images with labels"),
        (sample(1, 1), "w:gz", "without compression"),
    ],
)
def test_shards_that_cannot_be(
    members: dict[str, bytes], mode: str, words: str, tmp_path: Path
) -> None:
    shard(tmp_path / "x.tar", members, mode)
    with pytest.raises(DataError, match=words):
        load_dataset(f"wds:{tmp_path}/x.tar")


def test_absent_shards_and_corrupt_images(tmp_path: Path) -> None:
    shard(tmp_path / "x-0.tar", {"a.png": png(1)[:40], "a.cls": b"1"})
    with pytest.raises(DataError, match=r"there is no shard .*x-1\.tar"):
        load_dataset(f"wds:{tmp_path}/x-{{0..1}}.tar")
    data = load_dataset(f"wds:{tmp_path}/x-0.tar")
    with pytest.raises(DataError, match="cannot read image x-0/a"):
        data[0]
    with pytest.raises(UsageError, match="split 'all', got 'val'"):
        load_dataset(f"wds:{tmp_path}/x-0.tar", split="val")


# Hugging Face


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    return datasets


def saved(hub: Any, folder: Path, values: list[int], labels: list[int | None]) -> str:
    kinds = hub.Features(picture=hub.Image(), label=hub.ClassLabel(names=["cat", "dog"]))
    rows = [{"bytes": png(value), "path": None} for value in values]
    part = hub.Dataset.from_dict({"picture": rows, "label": labels}, features=kinds)
    hub.DatasetDict({"train": part.select([0]), "test": part}).save_to_disk(str(folder))
    return f"hfds:{folder}"


def test_saved_set(hub: Any, tmp_path: Path) -> None:
    data = load_dataset(saved(hub, tmp_path / "pets", [4, 5, 6], [1, 0, 1]))
    check(data, [4, 5, 6])
    assert (data.name, data.split) == ("pets", "test")
    assert (list(data.labels), list(data.class_names)) == ([1, 0, 1], ["cat", "dog"])
    assert len(load_dataset(f"hfds:{tmp_path / 'pets'}", split="train")) == 1
    other = load_dataset(saved(hub, tmp_path / "other", [4, 5, 7], [1, 0, 1]))
    assert other.fingerprint() != data.fingerprint()
    with pytest.raises(UsageError, match="split of pets 'val'"):
        load_dataset(f"hfds:{tmp_path / 'pets'}", split="val")


def test_folder_read_by_the_library(hub: Any, tmp_path: Path) -> None:
    for split, values in (("train", [1, 2]), ("test", [3, 4])):
        for name, value in zip(("cat", "dog"), values, strict=True):
            folder = tmp_path / "pets" / split / name
            folder.mkdir(parents=True)
            (folder / "x.png").write_bytes(png(value))
    data = load_dataset(f"hfds:{tmp_path / 'pets'}")
    check(data, [3, 4])
    before = data.fingerprint()
    (tmp_path / "pets" / "test" / "dog" / "x.png").write_bytes(png(9))
    assert data.fingerprint() != before


def test_sets_of_the_library_that_cannot_be(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="has images without labels"):
        load_dataset(saved(hub, tmp_path / "blind", [1, 2], [None, None]))
    hub.Dataset.from_dict({"text": ["a"]}).save_to_disk(str(tmp_path / "words"))
    with pytest.raises(DataError, match=r"expected a column of images.* got text"):
        load_dataset(f"hfds:{tmp_path / 'words'}")
    with pytest.raises(DataError, match="--download"):
        load_dataset("hfds:nobody/nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="cannot open hfds:"):
        load_dataset(f"hfds:{tmp_path / 'empty'}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'shiftbench\[hfds\]'"):
        load_dataset("hfds:pets")
