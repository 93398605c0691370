"""`FILE.pt`: a TorchScript archive, which contains its code and its weights."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

import torch

from shiftbench.errors import UsageError
from shiftbench.models.exported import read_options, warn_assumed
from shiftbench.models.names import ModelName
from shiftbench.models.sources import Built, Request
from shiftbench.models.transforms import FIELDS, read_preprocessing


def build(name: ModelName, request: Request) -> Built:
    """Load the archive; the options are its preprocessing: `,input_size=96,mean=0.5,std=0.5`."""
    request.require_own_weights(name.text)
    path = Path(name.name)
    if not path.is_file():
        raise UsageError(f"no TorchScript file {name.name!r} for the model {name.text!r}")
    options = read_options(request.options, FIELDS, "a TorchScript model")
    warn_assumed(path.name, options, None if "input_size" in options else 224)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the format, which the user did not choose
        network = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Built(network, read_preprocessing(options, name.text), weights=digest)
