"""Decoding as timm decodes, errors that name the file, and digests of what files hold."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from stored_images import png, save, shard
from torchvision.datasets.folder import IMG_EXTENSIONS, pil_loader

from shiftbench.data import load_dataset
from shiftbench.data.images import ENDINGS, content_digest, read_image
from shiftbench.errors import DataError


def test_the_same_files_are_images_as_in_torchvision() -> None:
    assert set(ENDINGS) == set(IMG_EXTENSIONS)


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("mode", ["L", "RGBA", "LA", "P", "1", "CMYK", "exif", "transparent"])
def test_pixels_are_those_of_torchvision_and_timm(mode: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 4), dtype=np.uint8)
    image, options = Image.fromarray(noise, "RGBA"), {}
    if mode == "exif":
        exif = Image.Exif()
        exif[0x0112] = 6  # lies on its side
        image, options = image.convert("RGB"), {"exif": exif}
    elif mode == "transparent":
        image, options = image.convert("P"), {"transparency": bytes(range(256))}
    elif mode != "RGBA":
        image = image.convert(mode)
    path = tmp_path / ("x.jpg" if mode == "CMYK" else "x.png")
    image.save(path, **options)  # type: ignore[arg-type]
    theirs = pil_loader(str(path))  # what timm does, too
    assert read_image(path).mode == "RGB"
    assert np.array_equal(np.asarray(read_image(path)), np.asarray(theirs))


@pytest.mark.parametrize(
    ("kind", "values"), [(np.uint16, 257), (np.int32, 1), (np.int32, 257), (np.uint8, 1)]
)
def test_grays_of_any_depth_keep_their_values(kind: type, values: int, tmp_path: Path) -> None:
    gray = np.arange(0, 240, 5).reshape(6, 8)
    Image.fromarray((gray * values).astype(kind)).save(tmp_path / "x.tif")
    assert np.array_equal(np.asarray(read_image(tmp_path / "x.tif"))[..., 0], gray)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
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
        assert ("floating-point pixels" in str(caught.value)) == key.endswith(".tif")


def test_other_kinds_of_images_are_said_to_be_left_out(
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
    data = load_dataset(f"folder:{tmp_path}", verify=True)
    assert list(data.keys) == [r"caf\xe9/b.png", r"caf\xe9/\xff.png"]
    assert list(data.class_names) == [r"caf\xe9"]
    assert data[1][0].size == (8, 8)
    assert "".join([*data.keys, *data.class_names, data.fingerprint()]).encode()
    path = folder / os.fsdecode(b"\xff.png")
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"caf\\xe9/\\xff\.png"):
        data[1]


# Fingerprints


def settle(folder: Path) -> None:
    """Ages files, so that what they hold may be remembered."""
    for path in folder.rglob("*.*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    time.sleep(0.02)  # longer than a tick of the file system's clock


@pytest.fixture
def remembering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own that takes new files too."""
    monkeypatch.setenv("SHIFTBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("shiftbench.data.images.SETTLED", -1.0)
    return tmp_path / "cache" / "fingerprints"


def test_fingerprint_follows_names_labels_and_content(tmp_path: Path, remembering: Path) -> None:
    folder = tmp_path / "data"
    for name in ("a", "b"):
        save(folder / "0" / f"{name}.bmp")

    def fingerprint() -> str:
        settle(folder)
        return load_dataset(f"folder:{folder}").fingerprint()

    seen = [fingerprint()]
    assert fingerprint() == seen[0]
    save(folder / "0" / "b.bmp", 1)  # the same size, and made to look as old
    seen.append(fingerprint())
    (folder / "0" / "b.bmp").rename(folder / "0" / "c.bmp")
    seen.append(fingerprint())
    (folder / "0").rename(folder / "1")
    seen.append(fingerprint())
    (folder / "1" / "c.bmp").unlink()
    seen.append(fingerprint())
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
    path = save(tmp_path / "0" / "a.bmp")
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
