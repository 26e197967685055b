"""One point in time by which everything at an end must be done, shared by all who wait on the way there."""

from __future__ import annotations

import time


class Deadline:
    """So many seconds from now, for all waits together."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def left(self, share: float = 1.0) -> float:
        """Seconds until then, or a share of them; never below zero."""
        return max(self._at - time.monotonic(), 0.0) * share

    @property
    def has_passed(self) -> bool:
        """Whether nothing is left."""
        return time.monotonic() >= self._at
