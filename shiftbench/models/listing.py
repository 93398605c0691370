"""Which models can be named. Torch is not imported: it takes seconds."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from shiftbench.errors import UsageError
from shiftbench.files import cache_folder, write_atomic
from shiftbench.models.source import SOURCES, ModelEntry, SourceFile


def list_models() -> list[ModelEntry]:
    """Every model that can be named, bundled ones first."""
    return [*_own_entries(), *_entries(own=False)]


def _entries(*, own: bool) -> list[ModelEntry]:
    """What our sources list, or those of plug-ins; a source that cannot know lists nothing."""
    sources = (SOURCES.get(name) for name in SOURCES)
    chosen = (source for source in sources if isinstance(source, SourceFile) == own)
    return [entry for source in chosen for entry in getattr(source, "entries", tuple)()]


def _own_entries() -> list[ModelEntry]:
    """What our sources list, remembered for this installation: timm takes seconds to import."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    for package in ("aft_models", "timm", "torchvision"):
        spec = find_spec(package)
        assert spec is not None
        place = Path(spec.origin or "").parent
        files += [place, place / "version.py", place / "presets.py", place / "weights"]
    stamps = [f"{file} {file.stat().st_mtime_ns}" for file in files if file.exists()]
    key = hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]
    memory = cache_folder() / "models" / f"{key}.json"
    with suppress(OSError, ValueError, TypeError):
        return [ModelEntry(**entry) for entry in json.loads(memory.read_text("utf-8"))]
    entries = _entries(own=True)
    with suppress(OSError):  # a folder that cannot be written to costs time, nothing else
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(memory, json.dumps([asdict(entry) for entry in entries]).encode())
    return entries


def default_models(data: str) -> list[str]:
    """The bundled models that were trained on a data set."""
    names = [entry.name for entry in _own_entries() if entry.source == "bundled"]
    names = [name for name in names if name.endswith(f".{data}")]
    if not names:
        raise UsageError(f"no bundled model was trained on {data}: name one with --model")
    return names
