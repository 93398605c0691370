"""From a model name to a classifier: which source it belongs to."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from shiftbench.errors import UsageError
from shiftbench.models.classifier import Classifier
from shiftbench.models.repaired import load_repaired, split_remedies
from shiftbench.models.source import SOURCES, ModelEntry, ModelSpec, parse_options
from shiftbench.registry import unknown_name


def load_model(name: str, *, checkpoint: Path | None = None) -> Classifier:
    """Loads a model by its name.

    Args:
        name: `xcit_nano_12_p16_af.TAG` (bundled), a folder exported by training, `timm:NAME`,
            `tv:NAME`, `hf:REPO_OR_DIR`, `onnx:FILE.onnx` or `FILE.py:FUNCTION`; `,key=value` adds
            options, and remedies may follow: `timm:resnet50+circular+aps`.
        checkpoint: A file of weights to load instead of the source's own.

    Raises:
        UsageError: The name or an option is not known.
        ModelError: The weights cannot be had, or do not fit.
    """
    plain, remedies = split_remedies(name)
    if remedies:
        return load_repaired(plain, remedies, checkpoint, _load)
    return _load(name, checkpoint)


def _load(name: str, checkpoint: Path | None) -> Classifier:
    source, spec = parse_name(name, checkpoint=checkpoint)
    return SOURCES.get(source).load(spec)


def parse_name(text: str, *, checkpoint: Path | None = None) -> tuple[str, ModelSpec]:
    """Finds the source that a name belongs to."""
    if not text.strip():
        raise UsageError("a model name cannot be empty: see `shiftbench list models`")
    name, options = parse_options(text)
    prefix, colon, rest = name.partition(":")
    file, _, function = name.rpartition(":")
    if file.endswith(".py") and function.isidentifier():
        source = "python"
    elif colon and prefix in SOURCES:
        source, name = prefix, rest
    elif name.endswith(".py"):
        raise UsageError(f"expected FILE.py:FUNCTION, got {text!r}: name the function to call")
    elif colon and not Path(name).is_dir():
        raise unknown_name("model source", prefix, SOURCES)
    else:
        source = "bundled"
    return source, ModelSpec(text=text, name=name, options=options, checkpoint=checkpoint)


def list_models(pattern: str | None = None) -> list[ModelEntry]:
    """Every model that can be named, bundled ones first; `pattern` as in a shell, or a part."""
    entries = [entry for source in SOURCES for entry in SOURCES.get(source).entries()]
    if not pattern:
        return entries
    if not any(character in pattern for character in "*?["):
        pattern = f"*{pattern}*"
    # `swin*` means timm:swin_... too: the prefix need not be typed.
    return [
        entry
        for entry in entries
        if fnmatch.fnmatch(entry.name, pattern)
        or fnmatch.fnmatch(entry.name.rpartition(":")[2], pattern)
    ]


def default_models(data: str) -> list[str]:
    """The bundled models that were trained on a data set."""
    names = [entry.name for entry in list_models(f"*.{data}") if entry.source == "bundled"]
    if not names:
        raise UsageError(f"no bundled model was trained on {data}: name one with --model")
    return names
