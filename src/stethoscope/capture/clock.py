"""Which Step it is, with one optimizer or several.

A Step is a round in which every optimizer steps at most once. It is complete when all known optimizers have
stepped, or when one of them begins its next step; one that has not stepped for `PATIENCE` rounds is no longer
waited for (it was replaced, or its phase is over). So there are as many Steps as the busiest optimizer takes.

Numbers start at 0, like a loop's own counter: the Step with number n is the one whose optimizer has stepped n
times before.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

PATIENCE: Final = 16
RESTS: Final = 2


class Clock:
    """Counts Steps, and each optimizer's own steps beside them."""

    def __init__(self, first_step: int = 0) -> None:
        self.step = first_step
        self.own_counts: dict[int, int] = {}
        self._known: dict[int, weakref.ref[Any]] = {}
        self._stepped: set[int] = set()
        self._missed: dict[int, int] = {}
        """For how many rounds each has not stepped."""

    def know(self, optimizer: Any) -> None:
        """Count on this optimizer to step once a round."""
        known = self._known.get(id(optimizer))
        if known is None or known() is not optimizer:
            self._known[id(optimizer)] = weakref.ref(optimizer)
            self.own_counts[id(optimizer)] = self._missed[id(optimizer)] = 0

    def forget(self, optimizer: Any) -> None:
        """It was replaced: nobody waits for it any more."""
        for known in (self._known, self.own_counts, self._missed):
            known.pop(id(optimizer), None)
        self._stepped.discard(id(optimizer))

    @property
    def optimizers(self) -> list[Any]:
        """Those known and still alive, in the order they were met."""
        return [found for ref in self._known.values() if (found := ref()) is not None]

    @property
    def first(self) -> Any:
        """The one that was met first of those still alive; None where there is none."""
        for known in self._known.values():
            if (found := known()) is not None:
                return found
        return None

    @property
    def has_several(self) -> bool:
        """Whether more than one optimizer was met; one that is gone counts until a Step finds it so."""
        return len(self._known) > 1

    def rests(self, optimizer: Any) -> bool:
        """Whether it has not stepped for two rounds in which others did: another one may have taken its place."""
        return self._missed.get(id(optimizer), 0) >= RESTS

    @property
    def anything_stepped(self) -> bool:
        """Whether the open Step has had an optimizer step at all."""
        return bool(self._stepped)

    def repeats(self, optimizer: Any) -> bool:
        """Whether this optimizer has already stepped in the open Step, so that a new one begins."""
        return id(optimizer) in self._stepped

    def stepped(self, optimizer: Any) -> bool:
        """Note that it stepped; True when the open Step is complete by that."""
        key = id(optimizer)
        if key not in self._known or len(self._known) > 1:
            self.know(optimizer)
        self._stepped.add(key)
        self.own_counts[key] += 1
        if len(self._known) == 1:
            return True
        waited_for = {key for key, ref in self._known.items() if self._missed[key] < PATIENCE and ref() is not None}
        return waited_for <= self._stepped

    def close(self) -> int:
        """End the open Step and return its number."""
        finished = self.step
        self.step += 1
        if len(self._known) > 1:
            for key in self._missed:
                self._missed[key] = 0 if key in self._stepped else self._missed[key] + 1
        self._stepped.clear()
        return finished
