"""Whether the disk takes what is written: when to try again after it did not, and what the user should hear of it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from typing import Final

FIRST_RETRY_S: Final = 0.5
LONGEST_RETRY_S: Final = 30.0
"""After a failed write the next is tried this much later, twice as much every time, up to the longest."""
HANGS_S: Final = 10.0
"""A disk that has not answered for so long is said to hang."""
_MOST_NOTICES: Final = 6


class Bell:
    """Wakes a thread. Unlike an Event it may be rung by a signal handler that came in between a ring."""

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ring(self) -> None:
        """Wake it, or let its next wait be none."""
        if self._rings.empty():
            self._rings.put(None)

    def wait(self, seconds: float) -> None:
        """Returns when it rings, or after so long."""
        with contextlib.suppress(queue.Empty):
            self._rings.get(timeout=seconds)


class FlushRequest:
    """Somebody waits for everything handed in so far to be durable."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.done = threading.Event()
        self.succeeded = False

    def settle(self, succeeded: bool) -> None:
        """Lets them go on."""
        self.succeeded = succeeded
        self.done.set()


class Condition:
    """Noted by the writer's thread, read by all."""

    def __init__(self, *, is_writing: bool) -> None:
        self.is_writing = is_writing
        self._retry_s, self._retry_at = 0.0, 0.0
        if not is_writing:
            self.note(False)
        self._busy_since: float | None = None
        self.last_trouble = ""
        """Why writing failed last, also when it works again."""
        self._notices: deque[str] = deque()
        self._num_notices = 0

    def note(self, succeeded: bool) -> bool:
        """Takes in how a write went; True where that is not as it was before."""
        was_writing, self.is_writing = self.is_writing, succeeded
        if succeeded:
            self._retry_s = 0.0
        else:
            self._retry_s = min(max(2 * self._retry_s, FIRST_RETRY_S), LONGEST_RETRY_S)
            self._retry_at = time.monotonic() + self._retry_s
        return was_writing != succeeded

    def wait_s(self, poll_s: float) -> float:
        """How long to wait before the next write, unless a flush is requested."""
        return poll_s if self.is_writing else max(self._retry_at - time.monotonic(), 0.0)

    def begin(self) -> None:
        """A turn of writing begins."""
        self._busy_since = time.monotonic()

    def end(self) -> None:
        """It is over."""
        self._busy_since = None

    @property
    def hangs(self) -> bool:
        """Whether a turn has been under way for very long."""
        since = self._busy_since
        return since is not None and time.monotonic() - since > HANGS_S

    def notify(self, text: str) -> None:
        """Something for the user; after a few only the end tells, for a disk may come and go all night."""
        self._num_notices += 1
        if self._num_notices <= _MOST_NOTICES:
            self._notices.append(text)

    def take_notices(self) -> list[str]:
        """What was not taken before."""
        return [self._notices.popleft() for _ in range(len(self._notices))]
