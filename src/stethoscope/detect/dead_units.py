"""Dead units: those to which no sample gives a gradient any more.

Some are no fault. Where its inputs hardly vary a unit is off for every sample by the toss of a coin; and
the first steps, which move the output one way, push down the units whose outgoing weight has the wrong sign: about half of
those that live, and more where inputs have one sign. The others learn, so that a part of a layer that was killed costs capacity
and explains no failure: a note. A fault is more than that: more units off from the first sample on than coins would give, or
hardly any that is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, layer_name
from stethoscope.detect.needs import UNITS
from stethoscope.record import Evidence, Finding, Kind, Severity
from stethoscope.record.events import Units

DEAD_SHARE: Final = 0.5
COIN: Final = 1.64
"""Standard deviations above the half: one toss in twenty of so many coins gives more."""
BEGINNING: Final = 16
"""A first sample before this step shows the units as they were initialized."""
STARVED: Final = 0.9
"""Above this share of dead units hardly anything is left of a layer, and nothing speaks for it."""
EVERY: Final = 8
LOOKS_NEEDED: Final = 4
"""A unit that is told as silent for long was so in so many looks, some steps apart."""


class DeadUnits(Detector):
    """Follows the looks at units that were taken every few steps, and the gradients between them."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "dead_units",
            needs=(UNITS,),
            leads_to=("vanishing_gradients", "dormant_units", "silent_no_update", "adam_eps_dominates"),
        ),
    )

    def __init__(self) -> None:
        self._dead: dict[str, tuple[int, int, int]] = {}
        self._lasting: dict[str, float] = {}
        self._born: dict[str, int] | None = None
        """Units without a gradient at the first sample, by layer."""
        self._began_so = True
        self._num_units: dict[str, int] = {}
        self._awake: dict[str, tuple[int, int]] = {}
        """From a parameter to the last step at which it had a gradient, and the longest rest after which it had one again."""
        self._trained: set[str] = set()
        """Parameters whose gradients are measured."""
        self._last_look = 0
        self._order: list[str] = []
        self._types: dict[str, str] = {}

    def observe(self, span: Span) -> None:
        """Keep every sample, and when parameters had a gradient."""
        self._order = [path for path in span.depth if path] or self._order
        self._types = span.types or self._types
        for event, units in span.events_of(Units):
            self._note_units(event.step, units)
        self._follow_gradients(span)

    def _follow_gradients(self, span: Span) -> None:
        """Looks come every few steps; between them a branch that is used now and then may have had its gradient."""
        if not len(span.steps):
            return
        indices = span.site_indices(Kind.GRADIENT)
        largest = span.stat("abs_max")[:, indices]
        for column, index in enumerate(indices):
            path, steps = span.sites[index].site.path, span.steps[largest[:, column] > 0]
            if span.present[:, index].any():
                self._trained.add(path)
            if len(steps):
                last, rest = self._awake.get(path, (int(steps[0]), 0))
                self._awake[path] = (int(steps[-1]), max(rest, int(np.diff(steps, prepend=last).max())))

    def _is_resting(self, path: str) -> bool:
        """Whether a layer without any gradient has been so for as long before, and had one again."""
        num_units, dead, _ = self._dead[path]
        last, rest = self._awake.get(path, (-1, 0))
        return dead == num_units and last >= 0 and self._last_look - last <= 2 * rest

    def _note_units(self, step: int, units: Units) -> None:
        self._last_look = step
        silent = units.silent or {}
        if self._born is None and units.silent is not None:
            # How the units of a training that resumes from a checkpoint began is unknown.
            self._began_so = step < BEGINNING
            self._born = {path: once for path, (_, once, _, _) in silent.items()}
        self._num_units |= {path: max(num_units, 1) for path, (num_units, _, _, _) in silent.items()}
        self._lasting = {
            path: lasting / max(num_units, 1) for path, (num_units, _, lasting, _) in silent.items()
        } or self._lasting
        for path, (num_units, _, lasting, _) in silent.items():
            if lasting > DEAD_SHARE * num_units:
                first = self._dead[path][2] if path in self._dead else max(0, step - EVERY * (LOOKS_NEEDED - 1))
                self._dead[path] = (num_units, lasting, first)
            else:
                self._dead.pop(path, None)
        for path in [path for path in self._dead if path not in silent and silent]:
            self._dead.pop(path)

    def rules(self) -> Iterator[Rule]:
        """A fault where hardly any unit is left, or more were dead from the first sample on than chance gives; else a note."""
        worst = max(self._lasting, key=lambda path: self._lasting[path], default="")
        lying = {path: dead for path, dead in self._dead.items() if not self._is_resting(path)}
        share = self._lasting.get(worst, np.nan)
        yield Rule(
            "dead_units",
            (
                Reading("largest share of units without a gradient for long", share, ">", DEAD_SHARE, worst),
                Reading("its share at the first sample", self._share_born(worst), site=worst),
                Reading("layers of which it is so, and not as at rest before", len(lying), ">", 0),
            ),
            lambda: self._tell(lying),
        )

    def _tell(self, lying: dict[str, tuple[int, int, int]]) -> Finding:
        too_many = {path: dead for path, dead in lying.items() if self._is_fault(path, *dead[:2])}
        told = too_many or lying
        # A dead layer starves the ones before it: the last in depth is where it began.
        index = {path: number for number, path in enumerate(self._order)}
        path, *others = sorted(told, key=lambda path: -index.get(path.rpartition(".")[0], -1))
        num_units, dead, first = told[path]
        layer, share = path.rpartition(".")[0] or path, dead / num_units
        bad = Severity.CRITICAL if share > STARVED else Severity.WARNING
        beyond = self._silent_after(layer, first) if dead == num_units else ""
        why = f"no gradient comes back through {beyond}" if beyond else "no sample gives them a gradient"
        return Finding(
            "dead_units",
            bad if too_many else Severity.INFO,
            f"{'All' if dead == num_units else f'{dead:,} of'} {num_units:,} units of {layer_name(layer, self._types)} are dead: {why}.",
            first,
            self._last_look,
            (*([beyond] if beyond else []), layer, *(other.rpartition(".")[0] or other for other in others)),
            (Evidence("share of dead units", share, site=path, kind="gradient", stat="zero_fraction"),),
            "nn.LeakyReLU(0.01)  # or a bias that starts at 0, a smaller learning rate",
        )

    def _share_born(self, path: str) -> float:
        if path not in self._num_units or self._born is None or not self._began_so:
            return math.nan
        return self._born.get(path, 0) / self._num_units[path]

    def _is_fault(self, path: str, num_units: int, dead: int) -> bool:
        """Whether hardly any unit is left, or more were dead from the first sample on than coins would give, tossed once."""
        born = (self._born or {}).get(path, 0) if self._began_so else num_units // 2
        coins = num_units / 2 + COIN * math.sqrt(num_units) / 2
        return dead > STARVED * num_units or min(born, dead) > coins

    def _silent_after(self, layer: str, first: int) -> str:
        """The last of the modules right after a dead layer whose scales and shifts have no gradient either: there it is lost."""
        modules = {path.rpartition(".")[0]: False for path in self._trained}
        for path in self._trained:
            modules[path.rpartition(".")[0]] |= self._awake.get(path, (-1, 0))[0] >= first
        found = ""
        for path in self._order[self._order.index(layer) + 1 :] if layer in self._order else ():
            if modules.get(path):
                break
            found = path if path in modules else found
        return found
