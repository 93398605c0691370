"""Decoding as in timm, errors that name the file, and digests of files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from stored_images import digests, png, save, shard
from torchvision.datasets.folder import IMG_EXTENSIONS, pil_loader

from shiftbench.data import load_dataset
from shiftbench.data.images import ENDINGS, read_image
from shiftbench.errors import DataError


def test_image_file_endings_equal_torchvision() -> None:
    assert set(ENDINGS) == set(IMG_EXTENSIONS)


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("mode", ["L", "RGBA", "LA", "P", "1", "CMYK", "exif", "transparent"])
def test_read_image_equals_torchvision_and_timm(mode: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 4), dtype=np.uint8)
    image, options = Image.fromarray(noise, "RGBA"), {}
    if mode == "exif":
        exif = Image.Exif()
        exif[0x0112] = 6  # rotated by EXIF orientation
        image, options = image.convert("RGB"), {"exif": exif}
    elif mode == "transparent":
        image, options = image.convert("P"), {"transparency": bytes(range(256))}
    elif mode != "RGBA":
        image = image.convert(mode)
    path = tmp_path / ("x.jpg" if mode == "CMYK" else "x.png")
    image.save(path, **options)  # type: ignore[arg-type]
    theirs = pil_loader(str(path))  # as in timm
    assert read_image(path).mode == "RGB"
    assert np.array_equal(np.asarray(read_image(path)), np.asarray(theirs))


@pytest.mark.parametrize(
    ("kind", "values"), [(np.uint16, 257), (np.int32, 1), (np.int32, 257), (np.uint8, 1)]
)
def test_read_image_grays_of_any_depth_keep_their_values(
    kind: type, values: int, tmp_path: Path
) -> None:
    gray = np.arange(0, 240, 5).reshape(6, 8)
    Image.fromarray((gray * values).astype(kind)).save(tmp_path / "x.tif")
    assert np.array_equal(np.asarray(read_image(tmp_path / "x.tif"))[..., 0], gray)


def test_read_image_unreadable_file_raises_with_name(tmp_path: Path) -> None:
    for name, keep in (("cut.jpg", 0.5), ("cut.png", 0.5), ("empty.jpg", 0)):
        path = save(tmp_path / "0" / name, size=(64, 64))
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * keep)])
    (tmp_path / "0" / "text.jpg").write_text("hello")
    Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(tmp_path / "0" / "float.tif")
    data = load_dataset(f"folder:{tmp_path}")
    assert len(data) == 5
    for index, key in enumerate(data.keys):
        with pytest.raises(DataError, match=key) as caught:
            data[index]
        assert "\n" not in str(caught.value)
        assert ("floating-point image" in str(caught.value)) == key.endswith(".tif")


def test_images_of_other_formats_are_left_out_with_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path / "0" / "a.gif")
    with pytest.raises(DataError, match="there are no images"):
        load_dataset(f"folder:{tmp_path}")
    caplog.clear()
    save(tmp_path / "0" / "b.png")
    assert list(load_dataset(f"folder:{tmp_path}").keys) == ["0/b.png"]
    assert "are left out: 1, such as 0/a.gif" in caplog.text
    members = {"a.gif": b"", "a.cls": b"0", "b.png": png(1), "b.cls": b"0", "b.npy": b""}
    shard(tmp_path / "x.tar", members)
    assert list(load_dataset(f"wds:{tmp_path / 'x.tar'}").keys) == ["x/b"]
    assert "x.tar are left out: 1, such as a.gif" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text elsewhere")
def test_file_names_need_not_be_utf_8(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    save(folder / os.fsdecode(b"\xff.png"))
    save(folder / "b.png")
    data = load_dataset(f"folder:{tmp_path}")
    assert list(data.keys) == [r"caf\xe9/b.png", r"caf\xe9/\xff.png"]
    assert list(data.class_names) == [r"caf\xe9"]
    assert data[1][0].size == (8, 8)
    assert "".join([*data.keys, *data.class_names]).encode()
    path = folder / os.fsdecode(b"\xff.png")
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"caf\\xe9/\\xff\.png"):
        data[1]


# Digests


def test_digest_follows_the_bytes_and_not_the_name(tmp_path: Path) -> None:
    for name, value in (("a", 0), ("b", 1), ("c", 0)):
        save(tmp_path / "0" / f"{name}.bmp", value)
    a, b, c = digests(load_dataset(f"folder:{tmp_path}"))
    assert a == c != b
    (tmp_path / "0").rename(tmp_path / "1")
    assert digests(load_dataset(f"folder:{tmp_path}")) == [a, b, c]


def test_file_is_read_once_per_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "0" / "a.bmp")
    data = load_dataset(f"folder:{tmp_path}")
    reads: list[Path] = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path) or read(path))
    data.load(0)
    assert reads == [path]


def test_missing_file_raises_with_its_path(tmp_path: Path) -> None:
    path = save(tmp_path / "0" / "a.bmp")
    data = load_dataset(f"folder:{tmp_path}")
    path.unlink()
    with pytest.raises(DataError, match=r"no image .*a\.bmp"):
        data.load(0)
