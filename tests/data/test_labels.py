"""Class indices: equal images get equal labels in every storage format."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from stored_images import (
    NAMED,
    SET_ORDER,
    SHOWN,
    WRITERS,
    Kept,
    as_folder,
    save,
    shard,
    shown,
    stored,
)

from shiftbench.data import ImageSet, load_dataset, relabeled
from shiftbench.data.torchvision_sets import torchvision_set
from shiftbench.errors import DataError, UsageError
from shiftbench.training.data import load_data

MODEL_ORDER = ("dog", "emu", "ant", "cat")


@pytest.fixture(params=NAMED)
def named(request: pytest.FixtureRequest, tmp_path: Path) -> ImageSet:
    """Return the four images in every source that has names of classes."""
    return stored(request.param, tmp_path / "pets")


def test_relabeled_matches_names_of_every_source(named: ImageSet) -> None:
    data = relabeled(named, len(MODEL_ORDER), MODEL_ORDER)
    assert shown(data, MODEL_ORDER) == dict(enumerate(SHOWN))
    assert tuple(data.class_names) == MODEL_ORDER
    assert relabeled(data, len(MODEL_ORDER), MODEL_ORDER) is data


@pytest.mark.parametrize("place", ["targets", "labels", "_labels"])
def test_torchvision_labels_are_read_from_every_attribute(place: str) -> None:
    assert shown(torchvision_set("kept", "test", Kept(place)), SET_ORDER) == dict(enumerate(SHOWN))


def test_relabeled_model_without_names_uses_order_of_the_set(named: ImageSet) -> None:
    assert relabeled(named, 3) is named
    assert shown(named, tuple(named.class_names)) == dict(enumerate(SHOWN))
    with pytest.raises(UsageError, match=r"1000 classes and .* has 3 \(.*\).*--class-map"):
        relabeled(named, 1000)


@pytest.mark.parametrize("names", [("cat", "hound", "emu"), ("cat", "cat", "dog", "emu")])
def test_relabeled_unmatched_names_raise(names: tuple[str, ...], named: ImageSet) -> None:
    with pytest.raises(UsageError, match=r"is not one class.*--class-map.*imagenet:PATH"):
        relabeled(named, len(names), names)


def test_relabeled_accepts_two_spellings_of_one_order(named: ImageSet) -> None:
    spelled = [f"{name.upper()}, a kind of {name}" for name in named.class_names]
    assert relabeled(named, 3, spelled) is named


def test_relabeled_subset_equals_subset_of_relabeled(tmp_path: Path) -> None:
    data = load_dataset(as_folder(tmp_path), limit=3)
    part = relabeled(data, 4, MODEL_ORDER)
    assert (list(part.labels), tuple(part.class_names)) == ([3, 0, 1], MODEL_ORDER)
    assert part.keys == data.keys


def test_relabeled_split_without_a_class_matches_names(tmp_path: Path) -> None:
    for place in ("train/cat", "train/dog", "train/emu", "val/cat", "val/emu"):
        save(tmp_path / place / "x.png")
    options: Any = {"limit": None, "seed": 0, "download": False, "unlabeled": False}
    train, val = load_data(f"folder:{tmp_path}", "train", "val", **options)
    assert dict(zip(val.keys, val.labels, strict=True)) == {"cat/x.png": 0, "emu/x.png": 2}
    assert list(val.class_names) == list(train.class_names)


def test_relabeled_indices_do_not_change(tmp_path: Path) -> None:
    for name in ("1", "3"):
        save(tmp_path / "numbered" / name / "x.png")
    save(tmp_path / "wnids" / "n01440764" / "x.png")
    shard(tmp_path / "x.tar", {"a.png": b"", "a.cls": b"1"})
    places = ("folder:numbered", "imagenet:wnids", "wds:x.tar")
    for spec in [place.replace(":", f":{tmp_path}/") for place in places]:
        data = load_dataset(spec)
        assert relabeled(data, 7, ("a", "b")) is data
    scenes = load_dataset("scenes", limit=3)
    assert relabeled(scenes, 7, ("a", "b")) is scenes


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("map.json", json.dumps({"cat": 3, "dog": 1, "emu": 0, "unused": 7})),
        ("map.json", json.dumps(["emu", "dog", "bee", "cat"])),
        ("map.csv", "name,index\ncat,3\ndog,1\nemu,0\n"),
        ("map.csv", "cat,3\ndog,1\nemu,0\n"),
    ],
)
@pytest.mark.parametrize("write", WRITERS.values())
def test_class_map_applies_to_every_source(
    write: Any, file: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(content)
    data = load_dataset(write(tmp_path / "pets"), class_map=tmp_path / file)
    assert shown(data, ("emu", "dog", "", "cat")) == dict(enumerate(SHOWN))
    assert list(data.class_names) == ["emu", "dog", "2", "cat"]
    assert relabeled(data, 1000) is data


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot read the class map"),
        ("3", "cannot read the class map"),
        ('{"cat": "three"}', "must pair class names with indices"),
        ("[]", "got nothing"),
        ('{"cat": 1}', "no entry for 2 of 3 classes, such as 'dog'"),
    ],
)
def test_class_map_invalid_file_raises(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(content)
    with pytest.raises(DataError, match=words):
        load_dataset(as_folder(tmp_path / "pets"), class_map=tmp_path / "map.json")
    with pytest.raises(UsageError, match="scenes have fixed indices: remove --class-map"):
        load_dataset("scenes", class_map=tmp_path / "map.json")


def table(home: Path, *labels: str) -> str:
    rows = [f"{save(home / f'{i}.png').name},{label}" for i, label in enumerate(labels)]
    (home / "images.csv").write_text("\n".join(["path,label", *rows]))
    return f"csv:{home / 'images.csv'}"


@pytest.mark.parametrize(
    "labels", [("4", "2", "10"), ("4.0", "2.0", "10.0"), ("+4", "2", "10."), ("04", "2.00", "10")]
)
def test_csv_integer_labels_are_indices(labels: tuple[str, ...], tmp_path: Path) -> None:
    data = load_dataset(table(tmp_path, *labels))
    assert list(data.labels) == [4, 2, 10]
    assert list(data.class_names) == [str(index) for index in range(11)]
    assert relabeled(data, 1000) is data


@pytest.mark.parametrize("stranger", ["-1", "unknown", "1.5", ".5"])
def test_csv_mixed_labels_raise(stranger: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{stranger}.*--class-map"):
        load_dataset(table(tmp_path, "0", stranger, "1"))
    (tmp_path / "map.json").write_text(json.dumps({"0": 0, "1": 1, stranger: 2}))
    data = load_dataset(table(tmp_path, "0", stranger, "1"), class_map=tmp_path / "map.json")
    assert list(data.labels) == [0, 2, 1]


def test_folder_mixed_names_raise(tmp_path: Path) -> None:
    for name in ("0", "10", "cat"):
        save(tmp_path / "pets" / name / "x.png")
    with pytest.raises(UsageError, match=r"folder 'cat' is not a class index, and others are"):
        load_dataset(f"folder:{tmp_path / 'pets'}")
    (tmp_path / "map.json").write_text('{"0": 1, "10": 2, "cat": 0}')
    data = load_dataset(f"folder:{tmp_path / 'pets'}", class_map=tmp_path / "map.json")
    assert dict(zip(data.keys, data.labels, strict=True)) == {
        "0/x.png": 1,
        "10/x.png": 2,
        "cat/x.png": 0,
    }


def test_folder_alphabetical_order_of_numbers_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"class{index}" for index in range(12)]
    for name in names:
        save(tmp_path / name / "x.png")
    data = load_dataset(f"folder:{tmp_path}")
    with caplog.at_level(logging.WARNING):
        relabeled(data, 12, names)
        assert not caplog.text
        relabeled(data, 12)
    words = r"alphabetical order (class0, class1, class10), not in numeric order"
    assert words in caplog.text
    caplog.clear()
    for index in range(10, 12):
        (tmp_path / f"class{index}" / "x.png").unlink()
        (tmp_path / f"class{index}").rmdir()
    relabeled(load_dataset(f"folder:{tmp_path}"), 10)
    assert not caplog.text


def numbered_folders(home: Path, count: int = 11) -> str:
    for index in range(count):
        save(home / str(index) / "x.png", index)
    return f"folder:{home}"


def test_numbered_folders_named_by_model_match_names(tmp_path: Path) -> None:
    data = load_dataset(numbered_folders(tmp_path))
    names = sorted(map(str, range(11)))  # 0, 1, 10, 2, ...: the order of torchvision's ImageFolder
    labels = dict(zip(data.keys, relabeled(data, 11, names).labels, strict=True))
    assert labels == {f"{index}/x.png": names.index(str(index)) for index in range(11)}
    assert labels["10/x.png"] == 2
    assert relabeled(data, 11, [str(index) for index in range(11)]) is data


def test_numbered_folders_without_model_names_raise_with_both_orders(tmp_path: Path) -> None:
    data = load_dataset(numbered_folders(tmp_path))
    with pytest.raises(UsageError) as caught:
        relabeled(data, 11)
    for part in ("0, 1, 2, 3", "0, 1, 10, 2", "--class-map FILE"):
        assert part in str(caught.value)
    with pytest.raises(UsageError, match="class order"):
        relabeled(load_dataset(f"folder:{tmp_path}", limit=5), 11)
    (tmp_path / "map.json").write_text(json.dumps([str(index) for index in range(11)]))
    mapped = load_dataset(f"folder:{tmp_path}", class_map=tmp_path / "map.json")
    assert relabeled(mapped, 11) is mapped


@pytest.mark.parametrize(
    ("folders", "classes", "names"),
    [
        (10, 10, ()),  # both orders agree
        (11, 1000, ()),  # the folders are not all classes of the model
        (11, 11, tuple("abcdefghijk")),  # the model has other names
    ],
)
def test_numbered_folders_with_one_order_are_indices(
    folders: int, classes: int, names: tuple[str, ...], tmp_path: Path
) -> None:
    data = load_dataset(numbered_folders(tmp_path, folders))
    assert relabeled(data, classes, names) is data
    assert sorted(data.labels) == list(range(folders))
