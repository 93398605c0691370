"""Everything that the predictions of a model depend on, as digests and numbers.

A record stores the identity of the model that was evaluated. A model with another identity cannot
continue the record; the error names the part that changed.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shiftbench.errors import ModelError, reason

LOGIT_TOLERANCE = 1e-3  # of the largest logit: processors round differently
_PACKAGE = Path(__file__).resolve().parent
# Packages of this project, which a file in a clone of it can import from its own folder. Their
# code changes with every commit, and the version of the package identifies it.
_OWN_PACKAGES = ("shiftbench", "aft_models", "shiftbench_cli")


@dataclass(frozen=True)
class Identity:
    """Everything that predictions depend on."""

    weights: str = ""  # sha256 of the state dict, or of the file
    remedies: str = ""  # "circular+aps"
    code: Mapping[str, str] = field(default_factory=dict)  # the user's files and options -> digest
    logits: tuple[float, ...] = ()  # some logits of a fixed image, compared up to rounding

    @property
    def digest(self) -> str:
        """One sha256 for weights, code and remedies."""
        whole = self.weights
        if self.code:
            whole = _sha256(json.dumps(dict(self.code), sort_keys=True) + whole)
        return _sha256(f"{whole}+{self.remedies}") if self.remedies else whole

    def changed(self, now: Identity) -> list[str]:
        """Name the parts that differ from those of `now`; a part that one lacks is not compared.

        >>> Identity("a", logits=(2.0, 1.0)).changed(Identity("b", logits=(2.001, 1.0)))
        ['weights']
        """
        parts = ["weights"] if self.weights != now.weights else []
        parts += ["remedies"] if self.remedies != now.remedies else []
        parts += changed_digests(self.code, now.code)
        return parts if self._same_logits(now) else [*parts, "logits"]

    def _same_logits(self, now: Identity) -> bool:
        if not self.logits or not now.logits:
            return True
        tolerance = LOGIT_TOLERANCE * max(map(abs, self.logits))
        return len(self.logits) == len(now.logits) and all(
            str(a) == str(b) or abs(a - b) <= tolerance  # NaN equals NaN
            for a, b in zip(self.logits, now.logits, strict=True)
        )

    def difference(self, now: Identity) -> str:
        """Describe the change from this identity to `now`; empty if there is none.

        >>> Identity(code={"net.py": "1"}).difference(Identity(code={"net.py": "2"}))
        'net.py changed, logits did not'
        """
        parts = self.changed(now)
        if not parts:
            return ""
        text = f"{', '.join(parts)} changed"
        return text if "logits" in parts else f"{text}, logits did not"

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a record."""
        return {**asdict(self), "logits": list(self.logits)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Identity:
        """Read the values of `to_json`; a part that is absent is empty."""
        logits = content.get("logits", ())
        return cls(
            weights=content.get("weights", ""),
            remedies=content.get("remedies", ""),
            code=content.get("code", {}),
            logits=() if isinstance(logits, str) else tuple(logits),
        )


def changed_digests(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Name the digests that differ; a digest that only one has is not compared."""
    return [name for name in before if name in now and before[name] != now[name]]


def file_digests(file: Path) -> dict[str, str]:
    """Compute the sha256 of a Python file and of the files that it imports from its own folder.

    Returns:
        The first 16 digits by path relative to the folder.
    """
    folder = file.resolve().parent
    digests: dict[str, str] = {}
    waiting = [file.resolve()]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(folder).as_posix()
        if name in digests:
            continue
        try:
            content = path.read_bytes()
            tree = ast.parse(content)
        except (OSError, SyntaxError, ValueError) as error:
            raise ModelError(f"cannot read the Python file {path}: {reason(error)}") from error
        digests[name] = hashlib.sha256(content).hexdigest()[:16]
        for module in _imports(tree, path.parent.relative_to(folder).parts):
            waiting += _files(folder, module)
    return dict(sorted(digests.items()))


def plugin_digests(*things: Any) -> dict[str, str]:
    """Compute the digests of the files in which plug-ins define objects.

    Objects of this package have none.

    >>> from shiftbench.grid import Grid
    >>> plugin_digests(Grid)
    {}
    """
    digests: dict[str, str] = {}
    for thing in things:
        named = inspect.ismodule(thing) or inspect.isclass(thing) or inspect.isfunction(thing)
        try:
            file = Path(inspect.getfile(thing if named else type(thing))).resolve()
        except (TypeError, OSError):  # built in, or typed into an interpreter
            continue
        if file.suffix == ".py" and file.is_file() and _PACKAGE not in file.parents:
            digests |= file_digests(file)
    return digests


def _imports(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the modules that a file imports, as parts of a dotted name below the folder."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            yield from ((*base, alias.name) for alias in node.names)


def _files(folder: Path, module: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files below the folder that an import runs: its packages and itself."""
    for length in range(1, len(module) + 1 if module[0] not in _OWN_PACKAGES else 0):
        base = folder.joinpath(*module[:length])
        yield from (p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file())


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
