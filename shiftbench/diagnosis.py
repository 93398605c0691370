"""What a bug report should say: versions, device, extras, and where weights and data live.

Nothing here is downloaded, and no optional package is imported.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from aft_models.weights import BUNDLED, list_weights
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
    return [*_versions(), *_hardware(), *_extras(), *_places(), *_plugins()]


def _versions() -> Iterator[Fact]:
    about = describe_environment(choose_device())
    for name in ("shiftbench", "commit", "python", "platform", "torch", "torchvision", "timm"):
        if name in about:
            yield Fact("versions", name, str(about[name]))
    for name in ALSO:
        yield Fact("versions", name, version_of(name) or "not installed")


def _hardware() -> Iterator[Fact]:
    device = choose_device()
    yield Fact("hardware", "device", str(describe_environment(device)["device"]))
    cuda = torch.version.cuda or "not in this build of torch"
    yield Fact("hardware", "CUDA", cuda if torch.cuda.is_available() else f"no GPU found ({cuda})")
    yield Fact("hardware", "cores", str(os.cpu_count()))
    limit = os.environ.get("OMP_NUM_THREADS")
    because = f" (OMP_NUM_THREADS={limit})" if limit else ""
    yield Fact("hardware", "threads", f"{torch.get_num_threads()}{because}")


def _extras() -> Iterator[Fact]:
    for extra, packages in extras().items():
        versions = {package: version_of(package) for package in packages}
        if all(versions.values()):
            value = ", ".join(f"{package} {version}" for package, version in versions.items())
        else:
            missing = ", ".join(package for package, version in versions.items() if not version)
            value = f"no {missing}: pip install '{OURS}[{extra}]'"
        yield Fact("extras", extra, value)


def _places() -> Iterator[Fact]:
    weights = f"{BUNDLED} ({len(list_weights())} models)"
    yield Fact("places", "bundled weights", weights)
    yield Fact("places", "timm and hf: weights", _variable("HF_HOME", "~/.cache/huggingface"))
    yield Fact("places", "tv: weights", torch.hub.get_dir())
    yield Fact("places", "data sets by name", f"{default_root()} (SHIFTBENCH_DATA)")
    yield Fact("places", "cache", f"{cache_folder()} (SHIFTBENCH_CACHE)")
    yield Fact("places", "records", str(Path("results/runs").absolute()))


def _plugins() -> Iterator[Fact]:
    for entry in importlib.metadata.entry_points(group=GROUP):
        yield Fact("plug-ins", entry.name, entry.value)


def _variable(name: str, default: str) -> str:
    return f"{Path(os.environ.get(name, default)).expanduser()} ({name})"


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
