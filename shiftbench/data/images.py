"""Image files: decoded to RGB, or an error that names them; and digests of what they hold.

As in timm and torchvision, whose published numbers this makes comparable: Pillow's `convert("RGB")`
and nothing else. The orientation that a camera noted (EXIF) is not applied, and transparent pixels
show the color that is stored under them. Only grays of more than 8 bits, which Pillow would clip to
white, are scaled.
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

from shiftbench.data.base import ImageSet, as_text, content_digest
from shiftbench.errors import DataError, first_line

log = logging.getLogger(__name__)

# As in torchvision's ImageFolder, so that both count the same files.
ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
OTHER_ENDINGS = (".gif", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".svg", ".npy")


class EncodedSet(ImageSet):
    """Images that are encoded as files, wherever their bytes lie."""

    @abstractmethod
    def encoded(self, index: int) -> Path | BytesIO:
        """The file of an image, or its content."""

    def image(self, index: int) -> Image.Image:
        """Decode one image."""
        return read_image(self.encoded(index), self._name(index))

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

    def _name(self, index: int) -> str:
        """Name of an image in errors."""
        source = self.encoded(index)
        if isinstance(source, Path):
            return as_text(str(source))
        return f"{self.keys[index]} of {self.name}"

    def has_size(self, side: int) -> bool:
        """By the headers of the images."""
        return all_sized((self.encoded(index) for index in range(len(self))), side)


def read_image(source: Path | BytesIO, name: str = "") -> Image.Image:
    """Reads an image file as RGB; `name` is what errors call one that is not a file of its own."""
    name = as_text(str(source)) if isinstance(source, Path) else name
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
    cannot be read are passed over; `read_image` will name them.
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
    """Return why the header of an image file cannot be read; an empty text if it can."""
    try:
        with warnings.catch_warnings(), Image.open(path):
            warnings.simplefilter("ignore")
            return ""
    except FileNotFoundError:
        return "there is no such file"
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error...
        return first_line(error)


def warn_left_out(place: Path, names: Sequence[str]) -> None:
    """Says which images are not read because of their format, if any."""
    if names:
        log.warning(
            "images of %s are left out: %d, such as %s; only %s are read, convert the others",
            *(as_text(str(place)), len(names), as_text(names[0]), ", ".join(ENDINGS)),
        )


def unreadable(name: str, error: Exception) -> DataError:
    """The error for an image that does not decode."""
    return DataError(
        f"cannot read image {name} ({first_line(error)}): replace the file, or skip such images "
        "(--skip-bad)"
    )


def to_rgb(image: Image.Image) -> Image.Image:
    """An image of any mode as RGB; 16-bit grays keep their upper 8 bits."""
    if image.mode == "F":
        raise ValueError("floating-point pixels have no range that is known: save it with 8 bits")
    if image.mode.startswith("I"):
        gray = np.asarray(image, dtype=np.int64)
        if image.mode != "I" or gray.max() > 255:  # 32-bit files often hold 8-bit values
            gray = gray // 257
        image = Image.fromarray(np.clip(gray, 0, 255).astype(np.uint8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow advises against what timm does to palettes
        return image.convert("RGB")
