"""Text that users write: lists with brackets and quotes, and literal values."""

from __future__ import annotations

import ast
from typing import Any


def split(text: str, separator: str) -> list[str]:
    """Split a text at separators outside brackets and quotes.

    >>> split("img_size=(64,64),name='a,b'", ",")
    ['img_size=(64,64)', "name='a,b'"]
    """
    words, depth, start, quote = [], 0, 0, ""
    for i, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and text[i - 1 : i] in ("=", "(", "[", ","):
            quote = character
        depth += 0 if quote else (character in "([{") - (character in ")]}")
        if character == separator and depth == 0 and not quote:
            words.append(text[start:i])
            start = i + 1
    return [*words, text[start:]]


def literal(text: str) -> Any:
    """Read a Python literal, `true`, `false` or `none`; any other text is returned as a string.

    >>> [literal(text) for text in ("0.5", "true", "(1, 2)", "word")]
    [0.5, True, (1, 2), 'word']
    """
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
