"""Image files: decoding to RGB, errors with the file name, and digests of the content.

Images are converted by Pillow's `convert("RGB")` alone, as in timm and torchvision, so that
published numbers are comparable. The EXIF orientation is not applied, and transparent pixels have
their stored color. Only grays of more than 8 bits, which Pillow would clip to white, are scaled.
"""

from __future__ import annotations

import logging
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image
from typing_extensions import override

from shiftbench.data.base import ImageSet, as_text, content_digest
from shiftbench.errors import DataError, first_line

log = logging.getLogger(__name__)

# As in torchvision's ImageFolder, so that both find the same files.
ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
OTHER_ENDINGS = (".gif", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".svg", ".npy")


class EncodedSet(ImageSet):
    """Set of encoded images: files, or bytes in an archive."""

    @abstractmethod
    def encoded(self, index: int) -> Path | BytesIO:
        """Return the file of an image, or its content."""

    @override
    def image(self, index: int) -> Image.Image:
        return read_image(self.encoded(index), self._name(index))

    @override
    def load(self, index: int) -> tuple[Image.Image, int]:
        """Decode one image and digest its encoded bytes, which are read once."""
        source = self.encoded(index)
        try:
            content = source.getvalue() if isinstance(source, BytesIO) else source.read_bytes()
        except FileNotFoundError:
            raise DataError(f"there is no image {as_text(str(source))}. Check the path") from None
        except OSError as error:
            raise unreadable(self._name(index), error) from error
        return read_image(BytesIO(content), self._name(index)), content_digest(content)

    def size(self, index: int) -> tuple[int, int]:
        """Read the width and height from the header of an image."""
        source = self.encoded(index)
        try:
            with warnings.catch_warnings(), Image.open(source) as file:
                warnings.simplefilter("ignore")
                return file.size
        except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, ...
            raise unreadable(self._name(index), error) from error

    def _name(self, index: int) -> str:
        """Return the name of an image for errors."""
        source = self.encoded(index)
        if isinstance(source, Path):
            return as_text(str(source))
        return f"{self.keys[index]} of {self.name}"

    @override
    def has_size(self, side: int) -> bool:
        return all_sized((self.encoded(index) for index in range(len(self))), side)


def read_image(source: Path | BytesIO, name: str = "") -> Image.Image:
    """Read an image file as RGB; `name` names content without a file in errors."""
    name = as_text(str(source)) if isinstance(source, Path) else name
    try:
        with warnings.catch_warnings(), Image.open(source) as file:
            # Slightly invalid metadata is common and harmless.
            warnings.simplefilter("ignore")
            return to_rgb(file)
    except FileNotFoundError:
        raise DataError(f"there is no image {name}. Check the path") from None
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error...
        raise unreadable(name, error) from error


def all_sized(sources: Iterable[Path | BytesIO], side: int) -> bool:
    """Return True if all images are squares of `side` pixels, by their headers.

    The first image of another size ends the search. Unreadable files are left out; `read_image`
    raises an error for them.
    """
    any_read = False
    for source in sources:
        with suppress(Exception), warnings.catch_warnings(), Image.open(source) as file:
            warnings.simplefilter("ignore")
            if file.size != (side, side):
                return False
            any_read = True
    return any_read


def header_problem(path: Path) -> str:
    """Return the reason why the header of an image file cannot be read; empty if it can."""
    try:
        with warnings.catch_warnings(), Image.open(path):
            warnings.simplefilter("ignore")
            return ""
    except FileNotFoundError:
        return "there is no such file"
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error...
        return first_line(error)


def warn_left_out(place: Path, names: Sequence[str]) -> None:
    """Warn about images that are not read because of their format."""
    if names:
        log.warning(
            "images of %s are left out: %d, such as %s; only %s are read, convert the others",
            *(as_text(str(place)), len(names), as_text(names[0]), ", ".join(ENDINGS)),
        )


def unreadable(name: str, error: Exception) -> DataError:
    """Build the error for an image that cannot be decoded."""
    return DataError(
        f"cannot read image {name} ({first_line(error)}). Replace the file, or skip such images "
        "(--skip-bad)"
    )


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to RGB; 16-bit grays keep their upper 8 bits."""
    if image.mode == "F":
        raise ValueError(
            "cannot decode floating-point image: unknown value range. Convert it to 8-bit RGB"
        )
    if image.mode.startswith("I"):
        gray = np.asarray(image, dtype=np.int64)
        if image.mode != "I" or gray.max() > 255:  # 32-bit files often contain 8-bit values
            gray = gray // 257
        image = Image.fromarray(np.clip(gray, 0, 255).astype(np.uint8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about timm's conversion of palettes
        return image.convert("RGB")
