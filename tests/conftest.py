"""Fixtures shared by all tests."""

import os
import signal
from pathlib import Path

import pytest

collect_ignore = ["toy_plugin.py"]  # registers entries: only separate processes import it

# Background jobs of a shell ignore Ctrl-C, and so would the processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use a temporary cache instead of the user's; child processes inherit it."""
    os.environ["SHIFTBENCH_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real data beside the checkout; skip the test if it is missing."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real data at {SHARED_DATA}")
    return SHARED_DATA
