"""Decoding: whatever a file holds becomes an upright RGB image, or an error that names it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from shiftbench.errors import DataError


def read_image(path: Path) -> Image.Image:
    """Reads an image file as upright RGB."""
    return _read(path, str(path))


def decode_image(content: bytes, name: str) -> Image.Image:
    """Reads the bytes of an image file as upright RGB; `name` is what errors call it."""
    return _read(BytesIO(content), name)


def _read(source: Path | BytesIO, name: str) -> Image.Image:
    try:
        with warnings.catch_warnings(), Image.open(source) as file:
            # Metadata that is a little wrong is common and harmless.
            warnings.simplefilter("ignore")
            return to_rgb(file)
    except FileNotFoundError:
        raise DataError(f"there is no image {name}: check the path") from None
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error...
        raise unreadable(name, error) from error


def all_sized(sources: Iterable[Path | BytesIO], side: int) -> bool:
    """Whether all images, files or their bytes, are squares of `side` pixels, by their headers.

    The first one that is not ends the search, which in most folders is the very first. Files that
    cannot be read have no say.
    """
    found = False
    for source in sources:
        try:
            with warnings.catch_warnings(), Image.open(source) as file:
                warnings.simplefilter("ignore")
                if file.size != (side, side):
                    return False
        except Exception:  # as in read_image, which will name the file when its turn comes
            continue
        found = True
    return found


def unreadable(name: str, error: Exception) -> DataError:
    """The error for an image that does not decode."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return DataError(
        f"cannot read image {name}: {reason}. Replace the file, or skip such images (--skip-bad)"
    )


def to_rgb(image: Image.Image) -> Image.Image:
    """Turns an image of any mode upright and into RGB.

    Transparent pixels show white, as in a browser; 16-bit grays keep their upper 8 bits.
    """
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # PIL clips 16-bit grays to 255 instead of scaling them
        gray = np.clip(np.asarray(upright, dtype=np.int64) // 257, 0, 255).astype(np.uint8)
        upright = Image.fromarray(gray)
    if upright.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in upright.info:
        layer = upright.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        upright = Image.alpha_composite(white, layer)
    return upright.convert("RGB")
