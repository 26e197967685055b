"""Averages of the weights that the user keeps: the one that was given, and averaged models of the same make that are alive."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.optim.swa_utils import AveragedModel

from stethoscope.capture.census import same
from stethoscope.capture.deferred_reads import DeferredReads, Values, can_defer
from stethoscope.capture.sites import Names
from stethoscope.record.events import Average
from stethoscope.record.events import Averages as AveragesEvent

SAMPLE: Final = 64
"""Values of each tensor that are compared."""


class Averages:
    """Whether they move."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.given: Any = None
        """The average that the user told us of."""
        self._initial: torch.Tensor | None = None
        self._known: dict[int, tuple[Any, torch.Tensor | None]] = {}
        self._made: list[Any] = []
        """Averaged models that were alive at the beginning or made since."""

    def begin(self) -> None:
        """Before the first step: what the weights are now, and which averages there are. Looking for them takes too long for a step."""
        self._initial = sample(self._names.tensors)
        self._made = made_after([*self._names.roots.values()])

    def met(self, average: Any) -> None:
        """One more was made."""
        self._made.append(average)

    def ask(self, reads: DeferredReads, *, search: bool) -> Callable[[], AveragesEvent | None]:
        """Compares each with what it was; what is returned says which moved, when that has come."""
        if search:
            self._take_in()
        moved: list[tuple[str, bool, bool, bool]] = []
        for average, before in self._known.values():
            now = sample(average)
            given, name = average is self.given, type(average).__name__
            if now is None or before is None or now.shape != before.shape or now.device != before.device:
                continue
            initial = self._initial
            is_like = initial is not None and initial.shape == now.shape and initial.device == now.device
            flags = [
                same(now, before),
                same(now, initial) if is_like and initial is not None else now.new_zeros(()).float(),
            ]
            reads.ask(torch.stack(flags), _note, moved, name, given)

        def told() -> AveragesEvent | None:
            # An average that still equals our first weights is ours, and nobody has updated it.
            found = [
                Average(type=name, moved=not stayed, given=given)
                for name, given, stayed, untouched in moved
                if given or untouched or not stayed
            ]
            return AveragesEvent(averages=tuple(found)) if found else None

        return told

    def ask_moved(self, reads: DeferredReads, found: dict[str, bool]) -> None:
        """Notes in `found` whether the weights themselves are others than at the start, when that has come."""
        now, before = sample(self._names.tensors), self._initial
        if now is not None and before is not None and now.shape == before.shape and now.device == before.device:
            reads.ask(same(now, before), lambda values: found.update(weights_moved=not bool(values[0])))

    def _take_in(self) -> None:
        """Those that are of our model's kind, as they are when they are first compared."""
        made, self._made = self._made, []
        root = type(self._names.root)
        found = [average for average in made if isinstance(getattr(average, "module", None), root)]
        for average in found if self.given is None else [self.given, *found]:
            if id(average) not in self._known:
                self._known[id(average)] = (average, sample(average))


def made_after(models: list[torch.nn.Module]) -> list[AveragedModel]:
    """The averaged models that are younger than the oldest of these models: an older one, of a training before, is not theirs.

    The collector lists the objects of a generation in the order in which they were made, and an older generation's are older.
    """
    generations = [gc.get_objects(generation=generation) for generation in (2, 1, 0)]
    # The types first, at C's speed: nearly always there is none, and nobody has to look at a million objects.
    kinds = {kind for objects in generations for kind in set(map(type, objects)) if issubclass(kind, AveragedModel)}
    if not kinds:
        return []
    relevant = kinds | set(map(type, models))
    some = [one for objects in generations for one in objects if type(one) in relevant]
    first = next((n for n, one in enumerate(some) if any(one is model for model in models)), 0)
    return [one for one in some[first:] if type(one) in kinds]


def sample(average: Any) -> torch.Tensor | None:
    """A few values of each tensor of an average, whatever kind of object it is; None where nothing can be looked at."""
    if isinstance(average, torch.nn.Module):
        tensors = list(average.parameters())
    else:
        held = getattr(average, "shadow_params", None) or getattr(average, "shadow", None) or average
        tensors = (
            list(held.values()) if isinstance(held, dict) else list(held) if isinstance(held, (list, tuple)) else []
        )
    some = [t.detach().flatten()[:SAMPLE] for t in tensors if isinstance(t, torch.Tensor) and can_defer(t)]
    # Of a model on several devices, what lies on the first.
    return torch.cat([_real(t) for t in some if t.device == some[0].device]) if some else None


def _real(values: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(values).flatten() if values.is_complex() else values).double()


def _note(moved: list[tuple[str, bool, bool, bool]], name: str, given: bool, values: Values) -> None:
    moved.append((name, given, bool(values[0]), bool(values[1])))
