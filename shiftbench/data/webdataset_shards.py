"""`wds:PATTERN`: tar shards in the format of WebDataset, read from disk.

A sample is the members of one name: `0001.jpg` with `0001.cls`, the class index in digits. A shard
is indexed once, without unpacking, and then read at any position. Images therefore have keys, an
order and labels, as in other data sets.
"""

from __future__ import annotations

import glob
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from shiftbench.data.base import (
    ALL,
    DATA_SOURCES,
    DataRequest,
    DataSource,
    as_text,
    numbered,
    set_name,
)
from shiftbench.data.folder import SPLITS
from shiftbench.data.images import (
    ENDINGS,
    OTHER_ENDINGS,
    EncodedSet,
    warn_left_out,
)
from shiftbench.errors import DataError, UsageError

RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class Member:
    """Position of the bytes of an image."""

    shard: Path
    start: int
    size: int


@dataclass(frozen=True, eq=False)
class ShardSet(EncodedSet):
    """Samples of some shards in their order; a key is the shard's name and the sample's."""

    members: Sequence[Member]

    def encoded(self, index: int) -> BytesIO:
        """Return the bytes of a member."""
        member = self.members[index]
        with member.shard.open("rb") as file:
            file.seek(member.start)
            return BytesIO(file.read(member.size))


def find_shards(pattern: str) -> list[Path]:
    """List the files of `shard-{000..003}.tar`, of a shell pattern, or of a folder."""
    if Path(pattern).is_dir():
        pattern = f"{glob.escape(pattern)}/*.tar"
    shards: list[Path] = []
    for expanded in _ranges(pattern):
        files = [Path(file) for file in sorted(glob.glob(expanded))]  # noqa: PTH207 (any pattern)
        if not files:
            raise DataError(f"there is no shard {expanded}: check the pattern after 'wds'")
        shards += files
    return shards


def _ranges(pattern: str) -> Iterator[str]:
    """Expand `{000..003}`, with the number of digits of the first number."""
    match = RANGE.search(pattern)
    if match is None:
        yield pattern
        return
    first, last = match.groups()
    for number in range(int(first), int(last) + 1):
        counted = f"{number:0{len(first)}d}"
        yield from _ranges(pattern[: match.start()] + counted + pattern[match.end() :])


def _samples(shard: Path) -> Iterator[tuple[str, Member, int]]:
    """Yield key, image and label of every sample, in the order of the shard's images."""
    images: dict[str, Member] = {}
    labels: dict[str, int] = {}
    others: dict[str, str] = {}
    try:
        with tarfile.open(shard, "r:") as tar:
            for entry in tar:
                folder, slash, file = entry.name.rpartition("/")
                sample, _, ending = file.partition(".")  # up to the first dot, as WebDataset does
                key = as_text(f"{shard.stem}/{folder}{slash}{sample}")
                if not entry.isfile() or not sample:
                    continue
                if ending == "cls":
                    text = (tar.extractfile(entry) or BytesIO()).read().decode("ascii", "replace")
                    if not text.strip().isdecimal():
                        raise DataError(
                            f"expected a class index in {entry.name} of {shard}, got {text[:20]!r}"
                        )
                    labels[key] = int(text)
                elif f".{ending.lower()}" in ENDINGS:
                    if key in images:
                        raise DataError(f"{shard} has two images of the sample {key}: keep one")
                    images[key] = Member(shard, entry.offset_data, entry.size)
                elif f".{ending.lower()}" in OTHER_ENDINGS:
                    others[key] = entry.name
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"{shard} is not a tar file without compression: {error}") from error
    warn_left_out(shard, [name for key, name in others.items() if key not in images])
    for key, member in images.items():
        if key not in labels:
            raise DataError(f"the sample {key} of {shard} has no label: expected a member .cls")
        yield key, member, labels[key]


def load_shards(request: DataRequest) -> ShardSet:
    """Index the shards without unpacking."""
    if request.path is None:
        raise UsageError("data 'wds' needs shards: write it as wds:PATTERN")
    shards = find_shards(str(request.path))
    samples = [sample for shard in shards for sample in _samples(shard)]
    if not samples:
        raise DataError(f"there are no images with labels in the shards {request.path}")
    keys, members, labels = zip(*samples, strict=True)
    if len(set(keys)) < len(keys):
        raise DataError(f"two shards of {request.path} have one name and the same samples")
    folder = shards[0].resolve().parent
    split = folder.name if folder.name in SPLITS else ALL
    for word in SPLITS:  # val-000.tar
        if all(shard.name.startswith(word) for shard in shards):
            split = word
    if request.split not in (None, split):
        raise UsageError(f"the shards are of the split {split!r}, got {request.split!r}")
    home = folder.parent if folder.name in SPLITS else folder
    names = numbered(max(labels) + 1)  # shards contain no class names
    return ShardSet(set_name(home.name), split, keys, labels, names, members)


DATA_SOURCES.register(
    "wds", DataSource("wds:PATTERN, tar shards of WebDataset: images and .cls", load_shards)
)
