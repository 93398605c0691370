"""Where a record was made: versions, device, commit."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import torch


def describe_environment(device: torch.device, *, processes: int = 1) -> dict[str, str | int]:
    """Names the software and the hardware; the commit when the code is a git checkout."""
    about: dict[str, str | int] = {
        "shiftbench": importlib.metadata.version("shiftbench"),
        "torch": torch.__version__,
        "torchvision": importlib.metadata.version("torchvision"),
        "timm": importlib.metadata.version("timm"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": _device_name(device),
        "processes": processes,
    }
    commit = _commit(Path(__file__).parents[2])
    return about | ({"commit": commit} if commit else {})


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _commit(checkout: Path) -> str | None:
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
