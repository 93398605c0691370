"""Fixtures shared by all tests."""

import os
import signal
from pathlib import Path

import pytest

collect_ignore = ["toy_plugin.py"]  # registers things: only processes of their own import it

# What a shell runs in the background ignores Ctrl-C, and so would the processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps what tests remember out of the user's own cache; processes they start inherit it."""
    os.environ["SHIFTBENCH_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data kept beside the checkout; tests that need it skip where it is not."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real data at {SHARED_DATA}")
    return SHARED_DATA
