"""Which code an answer depends on: the parts of an identity, by name, and where two differ.

A record names the weights it measured by a digest. Code of the user's decides the answers too, and
a refusal says which part of it changed.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shiftbench.errors import ModelError

LOGITS = "logits"  # a part that is compared as numbers: other processors round otherwise
LOGIT_TOLERANCE = 1e-3  # of the largest logit
_PACKAGE = Path(__file__).resolve().parent
_OURS = ("shiftbench", "aft_models", "shiftbench_cli")  # beside a file in a clone of this project


def changed_parts(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Names the parts in which two identities differ; a part that only one has is not compared.

    >>> changed_parts({"options": "sign=1", "logits": "2 1"}, {"options": "", "logits": "2.001 1"})
    ['options']
    """
    return [
        part
        for part, value in before.items()
        if part in after
        and not (_same_logits(value, after[part]) if part == LOGITS else value == after[part])
    ]


def _same_logits(before: str, after: str) -> bool:
    old, new = ([float(x) for x in text.split()] for text in (before, after))
    if len(old) != len(new):
        return False
    tolerance = LOGIT_TOLERANCE * max(map(abs, old), default=0.0)
    return all(str(a) == str(b) or abs(a - b) <= tolerance for a, b in zip(old, new, strict=True))


def source_parts(file: Path) -> dict[str, str]:
    """Digests of a Python file and of what it imports from its own folder, by file name.

    Comments, docstrings and layout do not count.
    """
    return {
        name: hashlib.sha256(_canonical(tree).encode()).hexdigest()[:16]
        for name, tree in sorted(_sources(file).items())
    }


def plugin_parts(*things: Any) -> dict[str, str]:
    """The sources of objects that a plug-in defined; empty for those of this package.

    >>> from shiftbench.grid import Grid
    >>> plugin_parts(Grid)
    {}
    """
    parts: dict[str, str] = {}
    for thing in things:
        named = inspect.ismodule(thing) or inspect.isclass(thing) or inspect.isfunction(thing)
        kind = thing if named else type(thing)
        try:
            file = Path(inspect.getfile(kind)).resolve()
        except (TypeError, OSError):  # built in, or typed into an interpreter
            continue
        if not file.is_relative_to(_PACKAGE) and file.is_file():
            parts |= source_parts(file)
    return parts


def local_names(file: Path) -> set[str]:
    """The top-level modules that a Python file imports from its own folder."""
    return {Path(name).parts[0].removesuffix(".py") for name in _sources(file)} - {file.stem}


def _sources(file: Path) -> dict[str, ast.Module]:
    """The file and all it imports from its folder, directly or not, by relative path."""
    folder = file.resolve().parent
    sources: dict[str, ast.Module] = {}
    waiting = [file.resolve()]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(folder).as_posix()
        if name in sources:
            continue
        try:
            sources[name] = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError) as error:
            raise ModelError(f"cannot read the Python file {path}: {error}") from error
        for module in _imported(sources[name], path.parent.relative_to(folder).parts):
            waiting += _files(folder, module)
    return sources


def _imported(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The modules that a file may import, as parts of a dotted name below its folder."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            yield from ((*base, alias.name) for alias in node.names)


def _files(folder: Path, module: tuple[str, ...]) -> Iterator[Path]:
    """The files that importing a module runs: its packages, and itself."""
    for length in range(1, len(module) + 1 if module[0] not in _OURS else 0):
        place = folder.joinpath(*module[:length])
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.is_file():
                yield path


def _canonical(node: Any) -> str:
    """A syntax tree as text that no version of Python writes differently."""
    if isinstance(node, list):
        return f"[{','.join(_canonical(item) for item in node if not _is_docstring(item))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = (
        f"{name}={_canonical(value)}"
        for name, value in ast.iter_fields(node)
        if value is not None and value != [] and name != "kind"
    )
    return f"{type(node).__name__}({','.join(fields)})"


def _is_docstring(node: Any) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
