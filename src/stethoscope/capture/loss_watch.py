"""Whether a loss is unlike the ones before it: then the step is worth a look, whatever the schedule says."""

from __future__ import annotations

from typing import Final

MEMORY: Final = 0.95
LEAST_SEEN: Final = 32
LARGEST: Final = 1e300
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
        """Whether this step's loss deserves a look. A loss that is not finite always does."""
        return not -LARGEST < loss < LARGEST or (
            self._num_seen >= LEAST_SEEN
            and abs(loss - self._mean) > UNLIKE * self._distance
            and step - self._last >= REST
        )

    def take(self, loss: float) -> None:
        """Takes a loss in, but for one that is not finite."""
        if not -LARGEST < loss < LARGEST:
            return
        distance = abs(loss - self._mean)
        if self._num_seen == 0:
            self._mean, distance = loss, 0.0
        self._num_seen += 1
        share = max(1 - MEMORY, 1 / self._num_seen)
        self._mean += share * (loss - self._mean)
        self._distance += share * (distance - self._distance)

    def looked(self, step: int) -> None:
        """A step was looked at because of its loss."""
        self._last = step
