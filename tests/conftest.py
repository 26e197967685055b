"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell ignores Ctrl-C in what it runs in the background, and children inherit that: tests that send it would wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
