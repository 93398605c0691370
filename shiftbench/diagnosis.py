"""Facts about an installation for bug reports, and a check of runs before they start.

A diagnosis downloads nothing and imports no optional package.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from aft_models.cards import BUNDLED, list_weights
from aft_models.errors import AftModelsError
from shiftbench.data.torchvision_sets import default_root
from shiftbench.errors import ShiftbenchError
from shiftbench.files import cache_folder
from shiftbench.plugins import GROUP
from shiftbench.running.job import make_job
from shiftbench.running.predict import choose_device, float32_arithmetic
from shiftbench.running.runner import describe_environment, image_batch, load_ahead, make_predictor
from shiftbench.running.suite import RunSpec

ALSO = ("numpy", "pandas", "pyarrow", "matplotlib", "safetensors")  # besides those of a record
OURS = "shiftbench"
ROUNDS = 3  # forward passes; the fastest one is extrapolated


@dataclass(frozen=True)
class Fact:
    """One line of a diagnosis."""

    topic: str  # versions, hardware, extras, paths
    name: str
    value: str


def diagnose() -> list[Fact]:
    """List versions, hardware, extras, paths and plug-ins.

    >>> {fact.topic for fact in diagnose()} >= {"versions", "hardware", "extras", "paths"}
    True
    """
    about = describe_environment()
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
        "paths": {
            "bundled weights": f"{BUNDLED} ({len(list_weights())} models)",
            "timm and hf: weights": f"{hub} (HF_HOME)",
            "tv: weights": torch.hub.get_dir(),
            "datasets by name": f"{default_root()} (SHIFTBENCH_DATA)",
            "cache": f"{cache_folder()} (SHIFTBENCH_CACHE)",
            "records": str(Path("results/runs").absolute()),
        },
        "plug-ins": {e.name: e.value for e in importlib.metadata.entry_points(group=GROUP)},
    }
    return [Fact(topic, *line) for topic, lines in topics.items() for line in lines.items()]


def _installed(extra: str, packages: list[str]) -> str:
    """Return the versions of an extra's packages, or how to install the missing ones."""
    versions = {package: version_of(package) for package in packages}
    missing = ", ".join(package for package, version in versions.items() if not version)
    if missing:
        return f"no {missing}: pip install '{OURS}[{extra}]'"
    return ", ".join(f"{package} {version}" for package, version in versions.items())


def version_of(package: str) -> str | None:
    """Return the installed version of a package, without importing it.

    >>> version_of("no-such-package") is None
    True
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def extras() -> dict[str, list[str]]:
    """Return the packages of each extra, from the metadata of the installed package.

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


@dataclass(frozen=True)
class Check:
    """Cost of a run, or the reason why it cannot start."""

    model: str
    data: str
    images: int = 0
    passes: int = 0  # forward passes at most: an image that is misclassified early needs fewer
    seconds: float = 0.0  # on this device, for all passes
    problem: str = ""  # empty: weights and data are available and fit


def check_run(spec: RunSpec, *, device: str = "auto") -> Check:
    """Load the model and data of a run, predict one batch, and estimate the cost.

    >>> quick = RunSpec(model="xcit_pico_6_p8.scenes", attacks=("crop",), consistency=(), limit=12)
    >>> check = check_run(quick, device="cpu")
    >>> check.images, check.passes, check.problem
    (12, 2028, '')
    """
    try:
        dataset = spec.load_data()
        job = make_job(spec.load_model(dataset), dataset, spec)
        tables = job.images()
        with float32_arithmetic(spec.precision):
            predictor = make_predictor(job, choose_device(device), None)
            size = min(predictor.batch_size, len(job.keys))
            batch = next(load_ahead(job, job.keys[:size], size, tables, workers=0))
            canvas = image_batch(job, batch, predictor).canvas
            side, margin = job.geometry.view, job.geometry.margin
            views = canvas[..., margin : margin + side, margin : margin + side]
            times = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                predictor(views)
                times.append(time.perf_counter() - began)
        passes = job.remaining_passes(job.images())
        return Check(spec.shown, spec.data, len(job.keys), passes, passes * min(times) / size)
    except (ShiftbenchError, AftModelsError) as error:
        return Check(spec.shown, spec.data, problem=str(error))
