"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from pathlib import Path

import pytest

IN_MEMORY = Path("/dev/shm")
ROOM_BYTES = 8 << 30
"""Of what is kept in memory no test leaves much, but two run at a time, and one writes a gigabyte."""

# A shell ignores Ctrl-C in what it runs in the background, and children inherit that: tests that send it would wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """The tests' folders in memory where there is room: they wait for no disk at the thousands of times that something is synced."""
    if os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported stays: it need not be gone through at every collection of what the tests leave."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """At the end of the process everything is gone through once: libraries complain of what nobody collected."""
    gc.unfreeze()
