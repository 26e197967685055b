"""Where an instrument of a session gets what the session measured: when it is asked, and once at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Source:
    """Fills an instrument with what came since the last question; filling may itself ask."""

    def __init__(self, fill: Callable[[Any], None] | None) -> None:
        self._fill, self._is_filling = fill, False
        self._lock = threading.RLock()

    def into(self, instrument: Any) -> None:
        """Take in what there is, where there is a session and the instrument is enabled."""
        if self._fill is None or not instrument.enabled:
            return
        with self._lock:
            if self._is_filling:
                return
            self._is_filling = True
            try:
                self._fill(instrument)
            finally:
                self._is_filling = False
