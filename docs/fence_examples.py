"""Show the doctests of docstrings as code: an extension for griffe, the parser of mkdocstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

# From the first prompt to the next blank line, with the indentation of its section.
EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


class FenceExamples(griffe.Extension):
    """Extension that fences every doctest."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(match: re.Match[str]) -> str:
    indent = match["indent"]
    return f"\n{indent}```pycon\n{match[0]}\n{indent}```"
