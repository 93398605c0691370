"""Downloads that cannot work fail at once, and are told apart from other failures."""

from __future__ import annotations

import logging
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from huggingface_hub import constants

# Types of several libraries (requests, httpx, huggingface_hub, urllib), none of which we import.
NETWORK_ERRORS = ("Connect", "URLError", "Timeout", "LocalEntryNotFound", "Offline", "HTTPError")


def is_network_error(error: BaseException | None) -> bool:
    """Whether a connection failed anywhere down the chain of causes."""
    while error is not None:
        names = [kind.__name__ for kind in type(error).__mro__]
        if isinstance(error, ConnectionError) or any(n in x for n in NETWORK_ERRORS for x in names):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def quick_offline() -> Iterator[None]:
    """Uses only the hub's cache when its host has no address: its retries take most of a minute.

    Behind a proxy the address is the proxy's to find, so nothing changes there.
    """
    before = constants.HF_HUB_OFFLINE
    level = (hub := logging.getLogger("huggingface_hub")).level
    hub.setLevel(logging.ERROR)
    constants.HF_HUB_OFFLINE = before or not _has_address(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
        hub.setLevel(level)


def _has_address(url: str) -> bool:
    parts = urlsplit(url)
    if urllib.request.getproxies() or not parts.hostname:
        return True
    try:
        socket.getaddrinfo(parts.hostname, parts.port or 443)
    except OSError:
        return False
    return True
