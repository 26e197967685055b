"""What holds for all tests."""

from __future__ import annotations

import gc
import signal

import pytest

# A shell ignores Ctrl-C in what it runs in the background, and children inherit that: tests that send it would wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported stays: it need not be gone through at every collection of what the tests leave."""
    gc.collect()
    gc.freeze()
