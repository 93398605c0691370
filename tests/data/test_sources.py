"""Data sources: stable keys, names and splits, errors, and properties of every source."""

from __future__ import annotations

import hashlib
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stored_images import (
    NAMED,
    SHOWN,
    Kept,
    as_hub,
    digests,
    picture,
    png,
    save,
    shard,
    shown,
    stored,
)
from torchvision.datasets import CIFAR10, ImageFolder

from shiftbench.data import ImageSet, RenderedSet, balanced, canvas_batches, load_dataset, subset
from shiftbench.data.torchvision_sets import ENTRIES, Entry, torchvision_set
from shiftbench.errors import DataError, UsageError
from shiftbench.geometry import Geometry
from shiftbench.grid import ORIGIN

GEOMETRY = Geometry(view=8, resize=8, margin=0, interpolation="bilinear")


def check(data: ImageSet) -> None:
    """Check the properties of an image set with images of 8 x 8 pixels."""
    assert len(data) == len(data.keys) == len(data.labels) == len(set(data.keys))
    assert all(label < len(data.class_names) for label in data.labels)
    assert data.has_size(8)
    assert not data.has_size(9)
    again = pickle.loads(pickle.dumps(data))
    assert digests(again) == digests(data)
    assert all(0 <= digest < 2**63 for digest in digests(data))
    batch = next(canvas_batches(data, GEOMETRY, workers=0))
    assert batch.digests == tuple(digests(data))
    assert batch.keys == tuple(data.keys)


@pytest.mark.parametrize("source", NAMED)
def test_every_source_has_the_properties_of_image_sets(source: str, tmp_path: Path) -> None:
    data = stored(source, tmp_path / "pets")
    check(data)
    assert shown(data, tuple(data.class_names)) == dict(enumerate(SHOWN))
    before = digests(data)
    assert digests(stored(source, tmp_path / "pets")) == before
    if "files" in source or source in ("folder", "csv"):
        save(next((tmp_path / "pets").rglob("2.png")), 9)
        assert digests(data) != before


# Names and paths


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("imagnet:x", "Did you mean 'imagenet'"),
        ("folder", "needs a folder"),
        ("scenes:x", "scenes has no files"),
        ("csv", "write it as csv:"),
        ("wds", "write it as wds:"),
        ("hfds", "write it as hfds:"),
    ],
)
def test_load_dataset_invalid_name_raises(spec: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_dataset(spec)
    with pytest.raises(UsageError, match="a table has no splits"):
        load_dataset("csv:x.csv", split="val")


def test_load_dataset_path_without_source_is_recognized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(Path("photos/0/x.png"))
    Path("t.csv").write_text("path,label\nphotos/0/x.png,0\n")
    shard(Path("x.tar"), sample(1, 0))
    for spec in ("photos", "./photos", str(tmp_path / "photos"), "./t.csv", "t.csv", "x.tar"):
        assert len(load_dataset(spec)) == 1
    assert digests(load_dataset("./photos")) == digests(load_dataset("folder:photos"))
    for spec in ("./phots", "some/where", str(tmp_path / "nowhere")):
        with pytest.raises(DataError, match=r"there is no folder .*check the path"):
            load_dataset(spec)
    with pytest.raises(DataError, match=r"cannot read the table other\.csv"):
        load_dataset("other.csv")


# Folders


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """Write three wnids, not the first three, with a nested and a hidden file."""
    for wnid, names in {
        "n02099601": ["b.JPEG", "a.JPEG"],  # golden retriever, 207
        "n01440764": ["deep/c.png"],  # tench, 0
        "n15075141": ["d.jpg"],  # toilet tissue, 999
    }.items():
        for name in names:
            save(tmp_path / "val" / wnid / name)
    (tmp_path / "val" / "n01440764" / "._c.png").write_bytes(b"not an image")
    (tmp_path / "val" / "n01440764" / "notes.txt").write_text("not an image")
    return tmp_path


def test_imagenet_index_follows_from_wnid(imagenet: Path) -> None:
    data = load_dataset(f"imagenet:{imagenet}")
    assert (data.name, data.split, len(data)) == ("imagenet", "val", 4)
    assert list(data.labels) == [0, 207, 207, 999]
    assert list(data.keys) == [
        "n01440764/deep/c.png",
        "n02099601/a.JPEG",
        "n02099601/b.JPEG",
        "n15075141/d.jpg",
    ]
    assert len(data.class_names) == 1000
    assert "retriever" in data.class_names[207]
    image, label = data[1]
    assert image.mode == "RGB"
    assert label == 207


def test_imagenet_path_of_wnid_folders_only(imagenet: Path) -> None:
    whole, inner = load_dataset(f"imagenet:{imagenet}"), load_dataset(f"imagenet:{imagenet}/val")
    assert whole.keys == inner.keys
    assert digests(whole) == digests(inner)
    save(imagenet / "val" / "dogs" / "x.png")
    with pytest.raises(DataError, match=r"'dogs'.*not one of the 1000 ImageNet wnids"):
        load_dataset(f"imagenet:{imagenet}")


def test_folder_integers_are_class_indices(tmp_path: Path) -> None:
    for name in ("10", "2", "007"):
        save(tmp_path / name / "x.png")
    data = load_dataset(f"folder:{tmp_path}")
    assert list(data.labels) == [2, 7, 10]
    assert list(data.keys) == ["2/x.png", "007/x.png", "10/x.png"]
    assert data.split == "all"


def test_folder_names_are_numbered_in_alphabetical_order(tmp_path: Path) -> None:
    for name in ("dog", "Emu", "cat"):
        save(tmp_path / name / "x.png")
    data = load_dataset(f"folder:{tmp_path}")
    theirs = ImageFolder(tmp_path)
    assert list(data.labels) == theirs.targets
    assert list(data.class_names) == theirs.classes
    assert list(data.keys) == [Path(p).relative_to(tmp_path).as_posix() for p, _ in theirs.samples]


def test_folder_absent_or_empty_raises(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        load_dataset(f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(DataError, match="one folder per class"):
        load_dataset(f"folder:{tmp_path}")
    (tmp_path / "3").mkdir()
    with pytest.raises(DataError, match="there are no images"):
        load_dataset(f"folder:{tmp_path}")
    save(tmp_path / "3" / "x.png")
    with pytest.raises(DataError, match="no folder 'test'"):
        load_dataset(f"folder:{tmp_path}", split="test")


def test_folder_name_and_digests_do_not_depend_on_its_path(tmp_path: Path) -> None:
    for place in ("here", "there"):
        save(tmp_path / place / "0" / "a.png")
    here, there = (load_dataset(f"folder:{tmp_path / place}") for place in ("here", "there"))
    assert (here.name, there.name) == ("here", "there")
    assert (here.keys, digests(here)) == (there.keys, digests(there))
    assert str(tmp_path) not in here.name + here.split + "".join(here.keys)


@pytest.mark.parametrize(
    ("path", "split", "expected"),
    [
        ("birds", None, ("birds", "val")),
        ("birds/val", None, ("birds", "val")),
        ("birds/train", None, ("birds", "train")),
        ("birds", "train", ("birds", "train")),
        ("birds", "extra", ("birds", "extra")),
        ("birds/extra", "extra", ("birds", "extra")),
        ("birds/val/../train", None, ("birds", "train")),
        ("birds/extra", None, ("extra", "all")),
        ("birds/extra", "all", ("extra", "all")),
        ("cifar10", None, ("folder-cifar10", "all")),  # is not the data set of that name
    ],
)
def test_folder_name_and_split_follow_from_path(
    path: str, split: str | None, expected: tuple[str, str], tmp_path: Path
) -> None:
    for place in ("birds/val", "birds/train", "birds/extra", "cifar10"):
        save(tmp_path / place / "0" / f"{place[6:]}.png")
    data = load_dataset(f"folder:{tmp_path / path}", split=split)
    assert (data.name, data.split) == expected
    assert data.split == "all" or list(data.keys) == [f"0/{data.split}.png"]


def test_has_size_is_true_if_every_image_has_it(tmp_path: Path) -> None:
    for name, size in (("a", (32, 32)), ("b", (32, 33)), ("c", (30, 30))):
        save(tmp_path / name / "0" / "1.png", size=(32, 32))
        save(tmp_path / name / "0" / "2.png", size=size)
        (tmp_path / name / "0" / "0.png").write_text("not an image")
    sets = [load_dataset(f"folder:{tmp_path / name}") for name in "abc"]
    assert [data.has_size(32) for data in sets] == [True, False, False]
    assert not sets[0].has_size(33)
    assert not subset(sets[2], [1]).has_size(32)  # no limit changes how images are cut
    assert not load_dataset("scenes").has_size(64)


# Subsets


def test_limit_is_balanced_nested_and_independent_of_order() -> None:
    labels = [0] * 50 + [1] * 50 + [2] * 3
    keys = [f"{label}/{index}" for index, label in enumerate(labels)]
    for limit in range(1, 30):
        chosen = balanced(keys, labels, limit, seed=0)
        assert len(set(chosen)) == limit
        assert set(chosen) <= set(balanced(keys, labels, limit + 1, seed=0))
        counts = np.bincount([labels[i] for i in chosen], minlength=3)
        fair = [min(count, 3) if label == 2 else count for label, count in enumerate(counts)]
        assert max(fair[:2]) - min(fair[:2]) <= 1
        assert counts[2] == 3 or counts.max() - counts[2] <= 1
    order = np.random.default_rng(0).permutation(len(keys))
    shuffled = balanced([keys[i] for i in order], [labels[i] for i in order], 20, seed=0)
    assert {keys[order[i]] for i in shuffled} == {keys[i] for i in balanced(keys, labels, 20, 0)}
    assert balanced(keys, labels, 20, seed=1) != balanced(keys, labels, 20, seed=0)
    assert balanced(keys, labels, 1000, seed=0) == list(range(103))
    with pytest.raises(UsageError, match="at least 1"):
        balanced(keys, labels, 0, seed=0)


def test_limited_scenes_keep_their_camera() -> None:
    whole = load_dataset("scenes")
    part = load_dataset("scenes", limit=24)
    assert isinstance(part, RenderedSet)
    assert isinstance(whole, RenderedSet)
    assert sorted(part.labels) == sorted([*range(12), *range(12)])
    place = list(whole.keys).index(part.keys[3])
    assert torch.equal(part.render([3], 16), whole.render([place], 16))
    assert torch.equal(part.views([3], 16)(ORIGIN), whole.render([place], 16))
    assert digests(part)[3] == digests(whole)[place]
    assert subset(part, [3]).keys == [part.keys[3]]


# Tables


def table(folder: Path, text: str, *, name: str = "images.csv") -> str:
    for value in range(3):
        save(folder / "deep" / f"{value}.png", value)
    (folder / name).write_text(text)
    return f"csv:{folder / name}"


def test_csv_keeps_order_and_is_named_by_folder(tmp_path: Path) -> None:
    rows = "label,path\ndog,deep/2.png\ncat,deep/0.png\ndog,deep/1.png\n"
    data = load_dataset(table(tmp_path / "birds", rows))
    assert load_dataset(f"csv:{tmp_path / 'birds' / 'images.csv'}", split="all").keys == data.keys
    assert (data.name, data.split) == ("birds", "all")
    assert (list(data.labels), list(data.class_names)) == ([1, 0, 1], ["cat", "dog"])
    assert list(data.keys) == ["deep/2.png", "deep/0.png", "deep/1.png"]
    other = load_dataset(table(tmp_path / "birds", rows, name="few.csv"))
    assert (other.name, digests(other)) == ("few", digests(data))


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
def test_csv_invalid_table_raises(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        load_dataset(table(tmp_path, text))


# Shards


def sample(value: int, label: int) -> dict[str, bytes]:
    return {f"s{value}.png": png(value), f"s{value}.cls": b"%d\n" % label, f"s{value}.json": b"{}"}


@pytest.mark.parametrize("pattern", ["val-{000..001}.tar", "val-*.tar", "val-00[01].tar", ""])
def test_wds_shards_have_keys_labels_and_images(pattern: str, tmp_path: Path) -> None:
    home = tmp_path / "birds"
    shard(home / "val-001.tar", sample(7, 0))
    # Members may have any order.
    shard(home / "val-000.tar", dict(reversed([*sample(5, 2).items(), *sample(6, 1).items()])))
    data = load_dataset(f"wds:{home / pattern}")
    check(data)
    assert [data.image(i).tobytes() for i in range(3)] == [picture(v).tobytes() for v in (6, 5, 7)]
    assert (data.name, data.split, list(data.labels)) == ("birds", "val", [1, 2, 0])
    assert list(data.keys) == ["val-000/s6", "val-000/s5", "val-001/s7"]
    before = digests(data)
    shard(home / "val-001.tar", sample(8, 0) | {"s7.png": png(7), "s7.cls": b"0"})
    assert digests(load_dataset(f"wds:{home / pattern}")) != before


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
def test_wds_invalid_shard_raises_data_error(
    members: dict[str, bytes], mode: str, words: str, tmp_path: Path
) -> None:
    shard(tmp_path / "x.tar", members, mode)
    with pytest.raises(DataError, match=words):
        load_dataset(f"wds:{tmp_path}/x.tar")


def test_wds_absent_shard_or_corrupt_image_raises(tmp_path: Path) -> None:
    shard(tmp_path / "x-0.tar", {"a.png": png(1)[:40], "a.cls": b"1"})
    with pytest.raises(DataError, match=r"there is no shard .*x-1\.tar"):
        load_dataset(f"wds:{tmp_path}/x-{{0..1}}.tar")
    data = load_dataset(f"wds:{tmp_path}/x-0.tar")
    with pytest.raises(DataError, match="cannot read image x-0/a"):
        data[0]
    with pytest.raises(UsageError, match="split 'all', got 'val'"):
        load_dataset(f"wds:{tmp_path}/x-0.tar", split="val")


# Hugging Face


def test_hfds_splits_have_names_labels_and_images(tmp_path: Path) -> None:
    saved = as_hub(tmp_path / "pets")
    data = load_dataset(saved)
    assert (data.name, data.split, data.keys[1]) == ("saved", "test", "test/00001")
    assert len(load_dataset(saved, split="train")) == 1
    with pytest.raises(UsageError, match="split of saved 'val'"):
        load_dataset(saved, split="val")


def test_hfds_invalid_set_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub: Any = pytest.importorskip("datasets")
    monkeypatch.setattr(hub.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    kinds = hub.Features(picture=hub.Image(), label=hub.ClassLabel(names=["cat"]))
    rows = {"picture": [{"bytes": png(1), "path": None}], "label": [None]}
    hub.Dataset.from_dict(rows, features=kinds).save_to_disk(str(tmp_path / "blind"))
    with pytest.raises(DataError, match="has images without labels"):
        load_dataset(f"hfds:{tmp_path / 'blind'}")
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


# torchvision


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write CIFAR-10's file format with 4 images per batch, and set torchvision's checksums."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    generator = np.random.default_rng(0)

    def write(name: str, content: object) -> str:
        (folder / name).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    def batch() -> dict[str, object]:
        pixels = generator.integers(0, 256, (4, 3072), dtype=np.uint8)
        return {"data": pixels, "labels": [3, 1, 4, 1]}

    train = [[name, write(name, batch())] for name, _ in CIFAR10.train_list]
    test = [[name, write(name, batch())] for name, _ in CIFAR10.test_list]
    names = {"label_names": [f"class {index}" for index in range(10)]}
    meta = {**CIFAR10.meta, "md5": write("batches.meta", names)}
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "test_list", test)
    monkeypatch.setattr(CIFAR10, "meta", meta)
    return tmp_path


def test_torchvision_set_has_names_keys_and_labels(
    cifar10: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_dataset(f"cifar10:{cifar10}")
    monkeypatch.setenv("SHIFTBENCH_DATA", str(cifar10))
    assert load_dataset("cifar10").keys == data.keys
    assert (data.name, data.split, list(data.labels)) == ("cifar10", "test", [3, 1, 4, 1])
    assert data.keys[2] == "test/00002"
    assert data.class_names[3] == "class 3"
    assert data[0][0].size == (32, 32)
    assert len(load_dataset(f"cifar10:{cifar10}", split="train")) == 20
    assert digests(data) == digests(load_dataset(f"cifar10:{cifar10}"))
    assert data.has_size(32)
    assert not data.has_size(28)
    assert pickle.loads(pickle.dumps(data)).keys == data.keys
    with pytest.raises(UsageError, match="split of cifar10 'val'"):
        load_dataset(f"cifar10:{cifar10}", split="val")


def test_torchvision_set_of_another_checksum_raises_data_error(cifar10: Path) -> None:
    (cifar10 / "cifar-10-batches-py" / "test_batch").write_bytes(b"other")
    with pytest.raises(DataError, match=r"checksum differs .*Remove the folder"):
        load_dataset(f"cifar10:{cifar10}")


def test_torchvision_set_in_memory_is_digested_by_pixels() -> None:
    memory = Kept()
    before = digests(torchvision_set("kept", "test", memory))
    memory.images[0] = picture(9)
    after = digests(torchvision_set("kept", "test", memory))
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, True, True]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_torchvision_absent_set_raises_with_fix(
    tmp_path: Path, entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="--download"):
        load_dataset(f"{entry.name}:{tmp_path}")
    assert not list(tmp_path.iterdir())  # nothing was downloaded
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    if entry.name == "stanford_cars":
        with pytest.raises(DataError, match=r"stanford_cars needs a package.*scipy"):
            load_dataset(f"stanford_cars:{tmp_path}")


@pytest.mark.shared_data
def test_imagenet_sample_has_standard_indices(shared_data: Path) -> None:
    data = load_dataset(f"imagenet:{shared_data / 'imagenet_sample'}")
    assert len(data) == 63
    assert len(set(data.labels)) == 63
    assert {label % 16 for label in data.labels} == {data.labels[0] % 16}  # every sixteenth class
    assert data[0][0].mode == "RGB"
