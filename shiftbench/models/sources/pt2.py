"""`FILE.pt2`: a network exported by `torch.export`, by `shiftbench export` or by the user.

The preprocessing is in an extra file of the archive, or in the options as for TorchScript.
"""

from __future__ import annotations

import hashlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from aft_models.preprocessing import Preprocessing
from shiftbench.errors import ModelError, UsageError, first_line
from shiftbench.models.exported import (
    EXTRA_FILE,
    ExportInfo,
    read_options,
    to_bytes,
    to_pixels,
    warn_assumed,
)
from shiftbench.models.names import ModelName
from shiftbench.models.sources import Built, Request
from shiftbench.models.transforms import FIELDS, read_preprocessing


class Pt2Network(nn.Module):
    """Normalized images (B, 3, S, S) in, outputs of an exported program out."""

    def __init__(self, program: Any, info: ExportInfo | None) -> None:
        super().__init__()
        self.graph = program.module()
        self.info = info

    @override
    def train(self, mode: bool = True) -> Pt2Network:  # a program has no modes
        return self

    def forward(self, images: Tensor) -> Any:
        """Return the outputs of the program."""
        if self.info is not None and self.info.include:
            facts: Preprocessing = self.info.preprocessing
            images = to_pixels(images, facts.mean, facts.std)
            if self.info.include == "uint8":
                images = to_bytes(images).to(torch.uint8).permute(0, 2, 3, 1)
        return self.graph(images)


def build(name: ModelName, request: Request) -> Built:
    """Load the archive."""
    request.require_own_weights(name.text)
    path = Path(name.name)
    if not path.is_file():
        raise UsageError(f"no file {name.name!r} for the model {name.text!r}")
    options = read_options(request.options, FIELDS, "a .pt2 model")
    extra = {EXTRA_FILE: ""}
    content = path.read_bytes()
    try:
        with _quiet():
            program = torch.export.load(io.BytesIO(content), extra_files=extra)
    except Exception as error:  # of many types: not a zip file, another version, ...
        raise ModelError(
            f"cannot load {path.name} with torch.export: {first_line(error)}. Export it again"
        ) from error
    info = ExportInfo.from_json(extra[EXTRA_FILE], path) if extra[EXTRA_FILE] else None
    if info is None:
        warn_assumed(path.name, options, None if "input_size" in options else 224)
    else:
        info.reject_statistics(options, name.text)
    return Built(
        Pt2Network(program, info),
        read_preprocessing(options, name.text, info.preprocessing if info else None),
        info.class_names if info else (),
        weights=hashlib.sha256(content).hexdigest(),
        parameters=info.parameters if info else None,
        exported=info,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the messages of torch about the format, which the user did not choose."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
