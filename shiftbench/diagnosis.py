"""What a bug report should say: versions, device, extras, and where weights and data live.

Nothing here is downloaded, and no optional package is imported.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from aft_models.cards import BUNDLED, list_weights
from shiftbench.data.torchvision_sets import default_root
from shiftbench.files import cache_folder
from shiftbench.plugins import GROUP
from shiftbench.run.engine import choose_device
from shiftbench.run.runner import describe_environment

ALSO = ("numpy", "pandas", "pyarrow", "matplotlib", "safetensors")  # besides those of a record
OURS = "shiftbench"


@dataclass(frozen=True)
class Fact:
    """One line of a diagnosis."""

    topic: str  # versions, hardware, extras, places
    name: str
    value: str


def diagnose() -> list[Fact]:
    """Everything worth knowing about this installation.

    >>> {fact.topic for fact in diagnose()} >= {"versions", "hardware", "extras", "places"}
    True
    """
    about = describe_environment(choose_device())
    recorded = ("shiftbench", "commit", "python", "platform", "torch", "torchvision", "timm")
    cuda = torch.version.cuda or "not in this build of torch"
    limit = os.environ.get("OMP_NUM_THREADS")
    hub = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    topics = {
        "versions": {
            **{name: str(about[name]) for name in recorded if name in about},
            **{name: version_of(name) or "not installed" for name in ALSO},
        },
        "hardware": {
            "device": str(about["device"]),
            "CUDA": cuda if torch.cuda.is_available() else f"no GPU found ({cuda})",
            "cores": str(os.cpu_count()),
            "threads": f"{torch.get_num_threads()}" + (f" (OMP_NUM_THREADS={limit})" * bool(limit)),
        },
        "extras": {extra: _installed(extra, packages) for extra, packages in extras().items()},
        "places": {
            "bundled weights": f"{BUNDLED} ({len(list_weights())} models)",
            "timm and hf: weights": f"{hub} (HF_HOME)",
            "tv: weights": torch.hub.get_dir(),
            "data sets by name": f"{default_root()} (SHIFTBENCH_DATA)",
            "cache": f"{cache_folder()} (SHIFTBENCH_CACHE)",
            "records": str(Path("results/runs").absolute()),
        },
        "plug-ins": {e.name: e.value for e in importlib.metadata.entry_points(group=GROUP)},
    }
    return [Fact(topic, *line) for topic, lines in topics.items() for line in lines.items()]


def _installed(extra: str, packages: list[str]) -> str:
    """The versions of an extra's packages, or how to install those that are missing."""
    versions = {package: version_of(package) for package in packages}
    missing = ", ".join(package for package, version in versions.items() if not version)
    if missing:
        return f"no {missing}: pip install '{OURS}[{extra}]'"
    return ", ".join(f"{package} {version}" for package, version in versions.items())


def version_of(package: str) -> str | None:
    """The installed version of a package, without importing it.

    >>> version_of("no-such-package") is None
    True
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def extras() -> dict[str, list[str]]:
    """The optional dependencies, from the metadata of the installed package.

    >>> extras()["hf"]
    ['transformers']
    """
    packages: dict[str, list[str]] = {}
    for line in importlib.metadata.requires(OURS) or ():
        needed = re.match(r"[A-Za-z0-9._-]+", line)
        extra = re.search(r"extra == ['\"]([^'\"]+)['\"]", line)
        if needed and extra and needed.group() not in (OURS, "torch"):
            packages.setdefault(extra.group(1), []).append(needed.group())
    return packages
