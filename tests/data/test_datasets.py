"""Data sources: labels from names, stable keys, every image mode, helpful errors."""

import hashlib
import json
import os
import pickle
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import CIFAR10, ImageFolder

from shiftbench.data import (
    RenderedSet,
    balanced,
    list_datasets,
    load_dataset,
    relabeled,
    subset,
)
from shiftbench.data.fingerprint import content_digest
from shiftbench.data.images import read_image
from shiftbench.data.torchvision_sets import ENTRIES, TorchvisionSet
from shiftbench.errors import DataError, UsageError
from shiftbench.grid import ORIGIN

RED = (200, 30, 40)


def save(path: Path, color: tuple[int, int, int] = RED, size: tuple[int, int] = (24, 16)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)


def near(image: Image.Image, color: tuple[int, int, int], tolerance: int = 6) -> bool:
    difference = np.asarray(image).astype(int) - np.asarray(color)
    return image.mode == "RGB" and bool((np.abs(difference) <= tolerance).all())


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """Three wnids, on purpose not the first three, and with a nested and a hidden file."""
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


def test_imagenet_index_comes_from_the_wnid(imagenet: Path) -> None:
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
    assert near(image, RED)
    assert label == 207


def test_imagenet_path_may_be_the_folder_of_wnids(imagenet: Path) -> None:
    whole, inner = load_dataset(f"imagenet:{imagenet}"), load_dataset(f"imagenet:{imagenet}/val")
    assert whole.keys == inner.keys
    assert whole.fingerprint() == inner.fingerprint()


def test_imagenet_refuses_other_folders(imagenet: Path) -> None:
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


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("map.json", json.dumps({"cat": 3, "dog": 1, "unused": 0})),
        ("map.json", json.dumps(["ant", "dog", "bee", "cat"])),
        ("map.csv", "folder,index\ncat,3\ndog,1\n"),
        ("map.csv", "cat,3\ndog,1\n"),
    ],
)
def test_folder_class_map(tmp_path: Path, file: str, content: str) -> None:
    for name in ("cat", "dog"):
        save(tmp_path / "data" / name / "x.png")
    (tmp_path / file).write_text(content)
    data = load_dataset(f"folder:{tmp_path / 'data'}", class_map=tmp_path / file)
    assert dict(zip(data.keys, data.labels, strict=True)) == {"cat/x.png": 3, "dog/x.png": 1}
    assert data.class_names[3] == "cat"


def test_folder_names_count_in_alphabetical_order(tmp_path: Path) -> None:
    for name in ("dog", "Emu", "cat"):
        save(tmp_path / name / "x.png")
    data = load_dataset(f"folder:{tmp_path}")
    theirs = ImageFolder(tmp_path)
    assert list(data.labels) == theirs.targets
    assert list(data.class_names) == theirs.classes
    assert list(data.keys) == [Path(p).relative_to(tmp_path).as_posix() for p, _ in theirs.samples]


def test_folder_names_that_say_nothing_safe(tmp_path: Path) -> None:
    for name in ("0", "10", "cat"):
        save(tmp_path / name / "x.png")
    with pytest.raises(
        UsageError, match=r"'cat' is not a class index, and others are.*--class-map"
    ):
        load_dataset(f"folder:{tmp_path}")
    (tmp_path / "map.json").write_text('{"0": 1, "10": 2}')
    with pytest.raises(DataError, match="no entry for 1 of 3 folders, such as 'cat'"):
        load_dataset(f"folder:{tmp_path}", class_map=tmp_path / "map.json")


def test_folders_of_names_are_labeled_as_the_model_counts(tmp_path: Path) -> None:
    for name in ("cat", "dog", "emu"):
        for file in ("x.png", "y.png"):
            save(tmp_path / name / file)
    data = load_dataset(f"folder:{tmp_path}")

    def labels(*found: object) -> dict[str, int]:
        labeled = relabeled(data, *found)  # type: ignore[arg-type]
        return {key.split("/")[0]: y for key, y in zip(labeled.keys, labeled.labels, strict=True)}

    assert labels(3) == {"cat": 0, "dog": 1, "emu": 2}
    names = ("emu", "ant", "dog", "cat")
    assert labels(4, names) == {"cat": 3, "dog": 2, "emu": 0}
    part = relabeled(load_dataset(f"folder:{tmp_path}", limit=3), 4, names)
    assert (list(part.labels), list(part.class_names)) == ([3, 2, 0], list(names))
    assert [part[index][1] for index in range(3)] == [3, 2, 0]
    with pytest.raises(
        UsageError, match=r"1000 classes.* 3 folders \(cat, dog, emu\).*--class-map"
    ):
        relabeled(data, 1000)
    with pytest.raises(
        UsageError, match=r"'dog' of .* is not one class.*--class-map.*imagenet:PATH"
    ):
        relabeled(data, 3, ("cat", "Dog", "emu"))
    with pytest.raises(UsageError, match="'cat' of"):
        relabeled(data, 4, ("cat", "cat", "dog", "emu"))  # which of the two?


def test_labels_that_a_user_chose_stay(tmp_path: Path, imagenet: Path) -> None:
    for name in ("1", "3"):
        save(tmp_path / "numbered" / name / "x.png")
    for data in (
        load_dataset(f"folder:{tmp_path / 'numbered'}"),
        load_dataset(f"imagenet:{imagenet}"),
        load_dataset("scenes", limit=3),
    ):
        assert relabeled(data, 7, ("a", "b")) is data


@pytest.mark.parametrize("content", ["{", "3", '{"cat": "three"}', "[]"])
def test_broken_class_map(tmp_path: Path, content: str) -> None:
    save(tmp_path / "cat" / "x.png")
    (tmp_path / "map.json").write_text(content)
    with pytest.raises(DataError, match="class map"):
        load_dataset(f"folder:{tmp_path}", class_map=tmp_path / "map.json")


def test_split_is_found_or_asked_for(tmp_path: Path) -> None:
    for split in ("train", "val"):
        save(tmp_path / split / "0" / f"{split}.png")
    assert list(load_dataset(f"folder:{tmp_path}").keys) == ["0/val.png"]
    train = load_dataset(f"folder:{tmp_path}", split="train")
    assert (train.split, list(train.keys)) == ("train", ["0/train.png"])
    with pytest.raises(DataError, match="no folder 'test'"):
        load_dataset(f"folder:{tmp_path}", split="test")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("imagnet:x", "Did you mean 'imagenet'"),
        ("folder", "needs a folder"),
        ("scenes:x", "scenes has no files"),
    ],
)
def test_wrong_names_are_usage_errors(spec: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_dataset(spec)


def test_absent_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        load_dataset(f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(DataError, match="one folder per class"):
        load_dataset(f"folder:{tmp_path}")
    (tmp_path / "3").mkdir()
    with pytest.raises(DataError, match="there are no images"):
        load_dataset(f"folder:{tmp_path}")
    with pytest.raises(UsageError, match="class map is for folder"):
        load_dataset("scenes", class_map="map.json")


def test_image_modes_become_upright_rgb(tmp_path: Path) -> None:
    size = (8, 6)
    path = tmp_path / "x.png"
    Image.new("L", size, 90).save(path)
    assert near(read_image(path), (90, 90, 90), 0)
    Image.fromarray(np.full((6, 8), 90 * 257, dtype=np.uint16)).save(path)
    assert near(read_image(path), (90, 90, 90), 0)
    Image.new("RGBA", size, (*RED, 255)).save(path)
    assert near(read_image(path), RED, 0)
    Image.new("RGBA", size, (*RED, 0)).save(path)
    assert near(read_image(path), (255, 255, 255), 0)
    Image.new("LA", size, (90, 0)).save(path)
    assert near(read_image(path), (255, 255, 255), 0)
    palette = Image.new("P", size, 1)
    palette.putpalette([0, 0, 0, *RED])
    palette.save(tmp_path / "p.gif")
    assert near(read_image(tmp_path / "p.gif"), RED, 0)
    palette.save(path, transparency=bytes([0, 255]))
    assert near(read_image(path), RED, 0)
    Image.new("1", size, 1).save(path)
    assert near(read_image(path), (255, 255, 255), 0)
    Image.new("CMYK", size, (0, 255, 255, 0)).save(tmp_path / "c.jpg", quality=95)
    assert near(read_image(tmp_path / "c.jpg"), (255, 0, 0), 8)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_undone(tmp_path: Path, orientation: int) -> None:
    upright = Image.new("RGB", (16, 8), (0, 0, 0))
    upright.paste(RED, (0, 0, 4, 4))  # marks the upper left corner
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(turns[orientation]) if orientation in turns else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "x.png", exif=exif)
    image = read_image(tmp_path / "x.png")
    assert np.array_equal(np.asarray(image), np.asarray(upright))


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for name, keep in (("cut.jpg", 0.5), ("cut.png", 0.5), ("empty.jpg", 0)):
        path = tmp_path / "0" / name
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(noise).save(path)
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * keep)])
    (tmp_path / "0" / "text.jpg").write_text("hello")
    data = load_dataset(f"folder:{tmp_path}")
    assert len(data) == 4
    for index, key in enumerate(data.keys):
        with pytest.raises(DataError, match=key) as caught:
            data[index]
        assert "\n" not in str(caught.value)


def settle(folder: Path) -> None:
    """Ages files, so that what they hold may be remembered."""
    for path in folder.rglob("*.*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    time.sleep(0.02)  # longer than a tick of the file system's clock


@pytest.fixture
def remembering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own that takes new files too."""
    monkeypatch.setenv("SHIFTBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("shiftbench.data.fingerprint.SETTLED", -1.0)
    return tmp_path / "cache" / "fingerprints"


def test_fingerprint_follows_names_labels_and_content(tmp_path: Path, remembering: Path) -> None:
    folder = tmp_path / "data"
    for name in ("a", "b"):
        save(folder / "0" / f"{name}.bmp")

    def found() -> str:
        settle(folder)
        return load_dataset(f"folder:{folder}").fingerprint()

    seen = [found()]
    assert found() == seen[0]
    save(folder / "0" / "b.bmp", (1, 2, 3))  # the same size, and made to look as old
    seen.append(found())
    (folder / "0" / "b.bmp").rename(folder / "0" / "c.bmp")
    seen.append(found())
    (folder / "0").rename(folder / "1")
    seen.append(found())
    (folder / "1" / "c.bmp").unlink()
    seen.append(found())
    assert len(set(seen)) == 5


def test_files_are_read_once_and_again_when_asked(
    tmp_path: Path, remembering: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    for name in ("a", "b"):
        save(folder / "0" / f"{name}.bmp")
    first = load_dataset(f"folder:{folder}").fingerprint()
    assert len(list(remembering.iterdir())) == 1
    reads: list[Path] = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path) or read(path))
    assert load_dataset(f"folder:{folder}", limit=1).fingerprint() != first
    assert load_dataset(f"folder:{folder}").fingerprint() == first
    assert reads == []
    assert load_dataset(f"folder:{folder}", verify=True).fingerprint() == first
    assert len(reads) == 2
    next(remembering.iterdir()).write_text("wrong")  # what the user suspects
    assert load_dataset(f"folder:{folder}").fingerprint() != first
    assert load_dataset(f"folder:{folder}", verify=True).fingerprint() == first


def test_files_that_may_change_within_a_tick_are_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "0" / "a.bmp"
    for color in (RED, (1, 2, 3)):
        save(path, color)
        os.utime(path, (time.time(), 1_700_000_000))
    before = content_digest([path])
    assert content_digest([path]) == before
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    stamp = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert content_digest([path]) != before


def test_a_cache_that_cannot_be_written_costs_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "0" / "a.bmp")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SHIFTBENCH_CACHE", str(tmp_path / "file"))
    first = load_dataset(f"folder:{tmp_path}").fingerprint()
    assert load_dataset(f"folder:{tmp_path}").fingerprint() == first


def test_folders_are_named_by_themselves_and_fingerprints_by_their_images(tmp_path: Path) -> None:
    for place in ("here", "there"):
        save(tmp_path / place / "0" / "a.png")
    here, there = (load_dataset(f"folder:{tmp_path / place}") for place in ("here", "there"))
    assert (here.name, there.name) == ("here", "there")
    assert (here.keys, here.fingerprint()) == (there.keys, there.fingerprint())
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
def test_name_and_split_of_a_folder(
    path: str, split: str | None, expected: tuple[str, str], tmp_path: Path
) -> None:
    for place in ("birds/val", "birds/train", "birds/extra", "cifar10"):
        save(tmp_path / place / "0" / "x.png")
    data = load_dataset(f"folder:{tmp_path / path}", split=split)
    assert (data.name, data.split) == expected


def test_a_set_has_a_size_when_every_image_has_it(tmp_path: Path) -> None:
    for name, size in (("a", (32, 32)), ("b", (32, 33)), ("c", (30, 30))):
        save(tmp_path / name / "0" / "1.png", size=(32, 32))
        save(tmp_path / name / "0" / "2.png", size=size)
        (tmp_path / name / "0" / "0.png").write_text("no image has no say")
    sets = [load_dataset(f"folder:{tmp_path / name}") for name in "abc"]
    assert [data.has_size(32) for data in sets] == [True, False, False]
    assert not sets[0].has_size(33)
    assert not subset(sets[2], [1]).has_size(32)  # no limit changes how images are cut
    assert not load_dataset("scenes").has_size(64)


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
    assert part.fingerprint() != whole.fingerprint()
    assert part.fingerprint() == load_dataset("scenes", limit=24).fingerprint()
    assert subset(part, [3]).keys == [part.keys[3]]


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10's own file format with 4 images a batch, and torchvision's checksums to match."""
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


def test_torchvision_set(cifar10: Path) -> None:
    data = load_dataset(f"cifar10:{cifar10}")
    assert (data.name, data.split, list(data.labels)) == ("cifar10", "test", [3, 1, 4, 1])
    assert data.keys[2] == "test/00002"
    assert data.class_names[3] == "class 3"
    assert data[0][0].size == (32, 32)
    assert len(load_dataset(f"cifar10:{cifar10}", split="train")) == 20
    assert data.fingerprint() == load_dataset(f"cifar10:{cifar10}").fingerprint()
    assert data.has_size(32)
    assert not data.has_size(28)
    assert pickle.loads(pickle.dumps(data)).keys == data.keys
    with pytest.raises(UsageError, match="split of cifar10 'val'"):
        load_dataset(f"cifar10:{cifar10}", split="val")


def test_torchvision_root_from_the_environment(
    cifar10: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHIFTBENCH_DATA", str(cifar10))
    assert len(load_dataset("cifar10")) == 4


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_absent_torchvision_sets_say_what_to_do(tmp_path: Path, entry: object) -> None:
    name = entry.name  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="--download"):
        load_dataset(f"{name}:{tmp_path}")
    assert not list(tmp_path.iterdir())  # nothing was fetched


def test_absent_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(DataError, match=r"stanford_cars needs a package.*scipy"):
        load_dataset(f"stanford_cars:{tmp_path}")


@pytest.mark.parametrize("place", ["targets", "labels", "_labels"])
def test_labels_are_found_without_decoding(place: str) -> None:
    class Kept:
        def __len__(self) -> int:
            return 3

    kept = Kept()
    setattr(kept, place, np.array([2, 0, 1]))
    data = TorchvisionSet("kept", "test", kept)
    assert list(data.labels) == [2, 0, 1]
    assert list(data.class_names) == ["0", "1", "2"]


def test_torchvision_sets_that_nobody_checks_are_read(
    tmp_path: Path, remembering: Path, cifar10: Path
) -> None:
    class Held:
        targets = (0, 1)

        def __init__(self, value: int) -> None:
            self.data = np.full((2, 8, 8, 3), value, dtype=np.uint8)

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> tuple[Image.Image, int]:
            return Image.fromarray(self.data[index]), index

    class Filed(Held):
        def __init__(self, value: int) -> None:
            self._samples = [(tmp_path / f"{i}.bmp", i) for i in range(2)]
            for path, _ in self._samples:
                save(path, (value, value, value), size=(8, 8))

    for kind in (Held, Filed):
        prints = []
        for value in (3, 3, 4):
            data = TorchvisionSet("held", "test", kind(value))
            prints.append(data.fingerprint())
            assert data.has_size(8)
            assert not data.has_size(9)
        assert prints[0] == prints[1] != prints[2]
    identity = hashlib.sha256(b"cifar10/test/4" + repr([3, 1, 4, 1]).encode())
    assert load_dataset(f"cifar10:{cifar10}").fingerprint() == identity.hexdigest()


def test_every_source_is_listed_with_a_summary() -> None:
    sources = {source.name: source.summary for source in list_datasets()}
    assert {"scenes", "imagenet", "folder", "cifar10", "cifar100", "stanford_cars"} <= set(sources)
    assert all(sources.values())


@pytest.mark.shared_data
def test_imagenet_sample(shared_data: Path) -> None:
    data = load_dataset(f"imagenet:{shared_data / 'imagenet_sample'}")
    assert len(data) == 63
    assert len(set(data.labels)) == 63
    assert {label % 16 for label in data.labels} == {data.labels[0] % 16}  # every sixteenth class
    assert data[0][0].mode == "RGB"
