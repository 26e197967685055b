"""Whether a loss is unlike the ones before it: then the step is worth a look, whatever the schedule says."""

from __future__ import annotations

from typing import Final

MEMORY: Final = 0.95
LEAST_SEEN: Final = 32
UNLIKE: Final = 6.0
"""Times the usual distance of a loss from the mean of those before it."""
REST: Final = 4
"""Steps between two looks for this reason: a loss that jumps all the time says nothing by it."""


class LossWatch:
    """The mean of the latest losses, and how far they lie from it."""

    def __init__(self) -> None:
        self._num_seen = 0
        self._mean = self._distance = 0.0
        self._last = -REST

    def is_unlike(self, loss: float, step: int) -> bool:
        """Takes a loss in; True where it deserves a look. A loss that is not finite always does."""
        if not -1e300 < loss < 1e300:
            return True
        distance = abs(loss - self._mean)
        is_unlike = self._num_seen >= LEAST_SEEN and distance > UNLIKE * self._distance and step - self._last >= REST
        if self._num_seen == 0:
            self._mean, distance = loss, 0.0
        self._num_seen += 1
        share = max(1 - MEMORY, 1 / self._num_seen)
        self._mean += share * (loss - self._mean)
        self._distance += share * (distance - self._distance)
        if is_unlike:
            self._last = step
        return is_unlike
