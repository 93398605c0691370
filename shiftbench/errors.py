"""Errors that the user can fix: each message states expectation, finding and fix."""


class ShiftbenchError(Exception):
    """Error that the user can fix, with a one-line message; the exit code is `exit_code`."""

    exit_code = 1


class UsageError(ShiftbenchError):
    """An invalid request: an unknown name, an option out of range, a grid too wide."""

    exit_code = 2


class ModelError(ShiftbenchError):
    """A model that cannot be loaded, or whose output is not a row of logits."""


class DataError(ShiftbenchError):
    """Images or labels that cannot be read or do not fit the request."""


class RecordError(ShiftbenchError):
    """A record that cannot be read, written or combined with others."""


def no_images() -> DataError:
    """Build the error for an empty set of images."""
    return DataError("expected at least one image, got none: check the path and the filters")


def reason(error: BaseException) -> str:
    """Return the message of an error; that of the system without its number and path.

    >>> reason(FileNotFoundError(2, "No such file or directory", "x.csv"))
    'no such file or directory'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)


def first_line(error: BaseException) -> str:
    """Return an error of a library in one line: its type and the first line of its message."""
    if isinstance(error, OSError) and error.strerror:
        return reason(error)
    lines = str(error).strip().splitlines()
    text = lines[0].strip() if lines else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
