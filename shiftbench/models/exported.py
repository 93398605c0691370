"""Facts that a file written by `shiftbench export` carries: everything to evaluate and check it."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aft_models.preprocessing import Preprocessing
from aft_models.remedies import RemedySpec, in_order, join_remedies, parse_remedies
from shiftbench.errors import ModelError, UsageError, first_line
from shiftbench.identity import Identity
from shiftbench.registry import unknown_name

log = logging.getLogger(__name__)

METADATA = "shiftbench"  # key in the metadata of an ONNX file
EXTRA_FILE = "shiftbench.json"  # name inside a .pt2 archive
INCLUDES = ("normalize", "uint8")  # parts of the preprocessing that a graph can contain
_STORED = [f.name for f in fields(Preprocessing) if f.name not in ("bgr", "origin")]


@dataclass(frozen=True)
class ExportInfo:
    """Metadata of an exported file."""

    name: str  # name of the exported model, remedies included
    preprocessing: Preprocessing  # with the margin and the scale of input remedies
    remedies: str = ""  # those inside the graph: "circular+aps"
    include: str = ""  # one of INCLUDES; empty: the graph takes normalized images
    class_names: tuple[str, ...] = ()  # by index; empty if unknown
    parameters: int | None = None
    weights: str = ""  # digest of the weights of the original model
    code: Mapping[str, str] = field(default_factory=dict)  # as in `Identity`
    digests: tuple[str, ...] = ()  # of the models that give the same predictions
    resize: int | None = None  # shorter side before the center crop, in image pixels
    version: str = ""  # of shiftbench

    def to_json(self) -> str:
        """Return the text of the metadata."""
        stored = {key: getattr(self.preprocessing, key) for key in _STORED}
        content = {
            **asdict(self),
            "preprocessing": stored,
            "input_size": self.preprocessing.input_size,
        }
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str, path: Path) -> ExportInfo:
        """Read the text of the metadata.

        Raises:
            ModelError: The text is no metadata.
        """
        try:
            content = json.loads(text)
            stored = {key: content["preprocessing"][key] for key in _STORED}
            stored |= {key: tuple(map(float, stored[key])) for key in ("mean", "std")}
            read = {f.name: content[f.name] for f in fields(cls)}
            read |= {key: tuple(map(str, read[key])) for key in ("class_names", "digests")}
            preprocessing = Preprocessing(**stored, origin="exported file")
            preprocessing.input_size + sum(preprocessing.mean + preprocessing.std)  # numbers
            return cls(**{**read, "preprocessing": preprocessing})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ModelError(
                f"cannot read the metadata {METADATA!r} of {path.name}: {first_line(error)}. "
                "Export the model again"
            ) from error

    def reject_statistics(self, options: Collection[str], name: str) -> None:
        """Raise UsageError if options change a normalization that the graph contains."""
        given = [key for key in ("mean", "std") if key in options]
        if self.include and given:
            raise UsageError(f"{name} normalizes images itself. Leave {' and '.join(given)} out")

    def joined(self, outer: Sequence[RemedySpec], name: str) -> str:
        """Return the remedies of the file and those around it, in the order of application.

        Raises:
            UsageError: A remedy contradicts one of the file, or belongs inside of it.
        """
        if not all(spec.remedy.input for spec in outer):
            raise UsageError(
                f"cannot add {join_remedies(outer)} to {name}: an exported file has no layers to "
                "change. Use input remedies, or export the original model with these remedies"
            )
        inner = parse_remedies(self.remedies)
        every = in_order([*inner, *outer])
        if every != (*inner, *outer):
            raise UsageError(
                f"cannot add {join_remedies(outer)} to {name}, which contains {self.remedies}: "
                f"{every[0]} applies first. Export the original model with {join_remedies(every)}"
            )
        return join_remedies(every)

    def original_digests(self, outer: Sequence[RemedySpec], name: str) -> tuple[str, ...]:
        """Return the digests of models with the predictions of this file with remedies around."""
        if not outer:
            return self.digests
        return (Identity(self.weights, self.joined(outer, name), self.code).digest,)


def stated_view(path: Path) -> tuple[int, int]:
    """Return margin (network pixels) and scale in the metadata of a file; (0, 1) if it has none."""
    text = ""
    try:
        if path.suffix == ".onnx":
            import onnx

            content = onnx.load(path, load_external_data=False)
            text = {entry.key: entry.value for entry in content.metadata_props}.get(METADATA, "")
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = [n for n in archive.namelist() if Path(n).name == EXTRA_FILE]
                text = archive.read(names[0]).decode() if names else ""
    except Exception:  # of any library: loading the model reports the error
        return 0, 1
    if not text:
        return 0, 1
    preprocessing = ExportInfo.from_json(text, path).preprocessing
    return preprocessing.margin, preprocessing.scale


def read_options(options: Mapping[str, Any], known: Sequence[str], what: str) -> Mapping[str, Any]:
    """Return the options of a model file; raise UsageError for one that is unknown."""
    unknown = next((key for key in options if key not in known), None)
    if unknown is not None:
        raise unknown_name(f"option of {what}", unknown, known)
    return options


def warn_assumed(name: str, given: Collection[str], size: int | None = None) -> None:
    """Print the assumptions about a file that has no metadata, in one line.

    Args:
        name: Name of the file.
        given: Fields of the preprocessing that a card or the options contain.
        size: Input size that is assumed, if the file has none.
    """
    assumed = [] if size is None else [("input size", f"{size} px", f"input_size={size}")]
    if "interpolation" not in given:
        assumed.append(("interpolation", "bicubic", "interpolation=bilinear"))
    if "crop_pct" not in given:
        assumed.append(("resize", "256/224 of the input size", "crop_pct=0.95"))
    if assumed:
        log.warning(
            "%s states no %s: assuming %s. State them after the name, as in ,%s",
            name,
            " and no ".join(what for what, _, _ in assumed),
            " and ".join(value for _, value, _ in assumed),
            ",".join(option for _, _, option in assumed),
        )


def to_pixels(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Convert normalized images (B, 3, H, W) back to RGB in 0..1."""
    center, scale = (torch.tensor(x, device=images.device).view(3, 1, 1) for x in (mean, std))
    return images * scale.to(images.dtype) + center.to(images.dtype)


def to_bytes(pixels: Tensor) -> Tensor:
    """Convert pixels in 0..1 to whole numbers of 0 to 255; a fraction of a level is rounded."""
    return pixels.mul(255).round().clamp(0, 255)
