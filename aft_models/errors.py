"""The error of this package that callers can fix, and its message for unknown names."""

import difflib
from collections.abc import Iterable


class AftModelsError(ValueError):
    """An invalid model, layer, checkpoint or training request; the message contains the fix."""


def unknown(kind: str, name: str, known: Iterable[str], *, shown: int = 12) -> str:
    """Format the message for an unknown name: close matches first, then a bounded list.

    >>> unknown("attack", "crops", ["crop", "half"])
    "unknown attack 'crops'. Did you mean 'crop'? Known: crop, half"
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(repr(match) for match in close)}?" if close else ""
    more = f", ... ({len(names)} in all)" if len(names) > shown else ""
    listed = ", ".join(names[:shown]) + more
    return f"unknown {kind} {name!r}.{hint} Known: {listed or 'none'}"
