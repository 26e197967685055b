"""Unit by unit: saturated, dormant, copies of each other, unused experts, batches too small to normalise by.

Dormant units do not matter where nothing is left for them to learn: under shifting targets the loss comes back with every
shift; where it stays far below what it was, the layer has learned all it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.analyse.trends import Direction, mann_kendall
from stethoscope.detect.curves import Curves
from stethoscope.detect.detector import Code, Detector, Reading, Readings, Rule, all_hold, layer_name, median, nearest
from stethoscope.detect.needs import UNITS, Need
from stethoscope.detect.tracks import SampledHistory, Track
from stethoscope.record import Evidence, Finding, FloatArray, IntArray, Severity, name_list
from stethoscope.record.events import Copies, Units

SATURATED_SHARE: Final = 0.8
LOOKS_NEEDED: Final = 4
LOOKS_KEPT: Final = 256
DORMANT_LOOKS: Final = 8
DORMANT_SHARE: Final = 0.5
DORMANT_RISE: Final = 0.25
LEARNED: Final = 0.5
"""Of the losses of the run's first third, by the median and by the largest: a last third below it has not come back up."""
EVER_LEARNED: Final = 0.9
LOSSES_AT_ONCE: Final = 5
"""Of the first losses: their middle must have come below that share of it for something to have been learned."""
LOAD_SHARE: Final = 0.9
LOAD_LOOKS: Final = 5
SMALL_BATCH: Final = 4
"""Values per channel that BatchNorm's mean and variance rest on: under this they are noise."""
SQUASHING: Final = ("Tanh", "Sigmoid", "Hardtanh", "Hardsigmoid", "Softsign")
RECTIFYING: Final = ("ReLU", "ReLU6", "LeakyReLU", "Hardswish", "Threshold")


class UnitHealth(Detector):
    """Follows the looks at units that were taken every few steps."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code("saturated_units", needs=(UNITS,), leads_to=("vanishing_gradients",)),
        Code(
            "dormant_units",
            needs=(UNITS,),
            # Units that fell silent one after another ended dead; dead from the start, they are dormant too.
            leads_to=("dead_units",),
        ),
        Code(
            "symmetric_units",
            needs=(
                Need(
                    "layers whose rows began equal",
                    "event",
                    (Copies.KIND,),
                    "there is none on the CPU",
                    may_be_absent=True,
                ),
            ),
            leads_to=("vanishing_gradients", "dead_units"),
        ),
        Code("expert_collapse", needs=(UNITS,)),
        Code("batchnorm_small_batch", needs=(UNITS,)),
    )

    def __init__(self) -> None:
        self._saturated: dict[str, Track] = {}
        self._dormant: dict[str, Track] = {}
        self._routed: dict[str, SampledHistory[tuple[int, IntArray]]] = {}
        self._normalised: dict[str, Track] = {}
        self._copies: tuple[int, list[str]] | None = None
        self._curves = Curves()
        self._last_look = 0
        self._order: list[str] = []
        self._types: dict[str, str] = {}

    def observe(self, span: Span) -> None:
        """Keep every sample, and the losses."""
        self._curves.observe(span)
        self._order = [path for path in span.depth if path] or self._order
        self._types = span.types or self._types
        for event, units in span.events_of(Units):
            self._note_units(event.step, units)
        for event, copies in span.events_of(Copies):
            if copies.sites and self._copies is None:
                self._copies = (event.step, list(copies.sites))

    def _note_units(self, step: int, units: Units) -> None:
        self._last_look = step
        for found, kept in (
            (units.saturation, self._saturated),
            (units.dormant, self._dormant),
            (units.batchnorm, self._normalised),
        ):
            for path, value in found.items():
                if path not in kept:
                    kept[path] = Track(2, limit=LOOKS_KEPT, ends=LOOKS_NEEDED)
                kept[path].add(step, value)
        for path, counts in units.routed.items():
            if path not in self._routed:
                self._routed[path] = SampledHistory(limit=LOOKS_KEPT)
            self._routed[path].append((step, np.array(counts, dtype=np.int64)))

    def rules(self) -> Iterator[Rule]:
        """Each kind where it lasts."""
        # What comes out last is meant to be at its ends.
        last = next((path for path in reversed(self._order) if self._types.get(path) != "Flatten"), "")
        index = {path: number for number, path in enumerate(self._order)}
        squashed = {path: looks for path, looks in self._saturated.items() if path != last} or {"": Track(2)}
        for path in sorted(squashed, key=lambda path: index.get(path, 0)):
            yield self._saturation(path, squashed[path])
        yield self._dormancy()
        yield self._small_batches()
        for path, kept in sorted(self._routed.items()) or [("", SampledHistory())]:
            yield self._collapse(path, kept.to_list())
        step, sites = self._copies or (0, [])
        copies = Reading("layers whose rows are all equal after training", len(sites), ">", 0)
        yield Rule("symmetric_units", (copies,), lambda: self._symmetry_finding(step, sites))

    def _saturation(self, path: str, looks: Track) -> Rule:
        first, now = looks.first(LOOKS_NEEDED)[:, 1], median(looks.last(1)[:, 1])
        return Rule(
            "saturated_units",
            (
                Reading("looks at its values", len(looks), ">=", LOOKS_NEEDED, path),
                Reading("share at the ends of their range", now, ">", SATURATED_SHARE, path),
                Reading("the same, least of the first looks", min(first, default=np.nan), ">", SATURATED_SHARE, path),
            ),
            lambda: Finding(
                "saturated_units",
                Severity.WARNING,
                f"{now:.0%} of the values in {path} lie at the ends of their range, where the gradient is almost 0.",
                int(looks.first(1)[0, 0]),
                self._last_look,
                (path,),
                (Evidence("share at the ends", now, site=path, kind="activation", stat="mean_abs"),),
                "nn.init.xavier_uniform_(layer.weight)  # or scale the inputs, or put nn.LayerNorm before it",
            ),
            is_otherwise=True,
        )

    def _dormancy(self) -> Rule:
        asked = {p: _risen(p, looks) for p, looks in self._dormant.items() if self._types.get(p) in RECTIFYING}
        risen = {path: readings[1].value for path, readings in asked.items() if all_hold(readings)}
        paths = sorted(risen, key=lambda path: -risen[path])
        return Rule("dormant_units", nearest(asked.values()) or _risen("", Track(2)), lambda: self._tell_dormant(paths))

    def _tell_dormant(self, paths: list[str]) -> Finding:
        path, looks = paths[0], self._dormant[paths[0]]
        early, late = median(looks.values[:1]), median(looks.last(3)[:, 1])
        high = np.flatnonzero(looks.values > (early + late) / 2)
        first = int(looks.steps[high[0]]) if len(high) else self._last_look
        learned, had_learned = self._has_learned(), self._had_learned()
        follows = (
            "what it was asked it has learned"
            if learned
            else "the layer loses its ability to learn"
            if had_learned
            else "the loss never fell while they were awake"
        )
        return Finding(
            "dormant_units",
            Severity.WARNING if not learned and had_learned else Severity.INFO,
            f"{late:.0%} of the units of {layer_name(path, self._types)} are dormant, up from {early:.0%}: {follows}.",
            first,
            self._last_look,
            tuple(paths),
            (Evidence("share of dormant units", late, early, site=path, kind="activation", stat="zero_fraction"),),
            "reinitialise dormant units (ReDo), nn.LayerNorm, or a smaller learning rate",
        )

    def _has_learned(self) -> bool:
        """Whether the loss fell far and stayed there."""
        loss = self._curves.loss
        if not len(loss) or loss.values.min() <= 0:
            # For losses that can be negative there is no scale for "far".
            return False
        early, late = loss.part(0, 1 / 3), loss.part(2 / 3, 1)
        return bool(late.max() < LEARNED * early.max() and np.median(late) < LEARNED * np.median(early))

    def _had_learned(self) -> bool:
        """Whether the loss was ever well below its first values: what never could learn did not lose that by falling asleep."""
        loss = self._curves.loss
        if not len(loss) or not self._curves.is_measure or loss.values.min() <= 0:
            return True
        width = min(LOSSES_AT_ONCE, len(loss))
        lowest = np.median(np.lib.stride_tricks.sliding_window_view(loss.values, width), axis=1).min()
        return bool(lowest < EVER_LEARNED * np.median(loss.values[:width]))

    def _small_batches(self) -> Rule:
        values = {path: median(v.values) for path, v in sorted(self._normalised.items()) if len(v) >= LOOKS_NEEDED}
        paths = [path for path, value in values.items() if value <= SMALL_BATCH]
        few = min(values, key=lambda path: values[path], default="")
        fewest = Reading("fewest values per channel of a BatchNorm", values.get(few, np.nan), "<=", SMALL_BATCH, few)
        return Rule("batchnorm_small_batch", (fewest,), lambda: self._tell_small(paths, values[paths[0]]))

    def _tell_small(self, paths: list[str], count: float) -> Finding:
        return Finding(
            "batchnorm_small_batch",
            Severity.WARNING,
            f"{name_list(paths)} normalise{'s' if len(paths) == 1 else ''} by the mean and variance of {count:.0f} values: noise, "
            "and not what evaluation will use.",
            int(self._normalised[paths[0]].first(1)[0, 0]),
            self._last_look,
            tuple(paths),
            (Evidence("values per channel", count),),
            "nn.GroupNorm(8, channels)  # or nn.LayerNorm, or a larger batch",
        )

    def _collapse(self, path: str, looks: list[tuple[int, IntArray]]) -> Rule:
        alike = [(step, counts) for step, counts in looks if len(counts) == len(looks[0][1])]
        counts = np.array([counts for _, counts in alike], dtype=float)
        counts = counts if counts.size else np.zeros((1, 1))
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        tail = shares[-LOAD_LOOKS:]
        winner = int(tail.mean(0).argmax())
        load, num_experts = tail[:, winner], counts.shape[1]
        return Rule(
            "expert_collapse",
            (
                Reading("looks at where inputs are sent", len(alike), ">=", LOAD_LOOKS, path),
                Reading("experts", num_experts, ">=", 2, path),
                Reading("share of the busiest expert, least of the latest looks", load.min(), ">", LOAD_SHARE, path),
            ),
            lambda: self._tell_collapse(path, looks, shares, winner),
            is_otherwise=True,
        )

    def _tell_collapse(self, path: str, looks: list[tuple[int, IntArray]], shares: FloatArray, winner: int) -> Finding:
        over = np.flatnonzero(shares[:, winner] <= LOAD_SHARE)
        first = looks[int(over[-1]) + 1][0] if len(over) else looks[0][0]
        load = float(shares[-LOAD_LOOKS:, winner].mean())
        return Finding(
            "expert_collapse",
            Severity.WARNING,
            f"{path} sends {load:.0%} of its inputs to expert {winner} of {shares.shape[1]} since step {first:,}: "
            "the others do not learn.",
            first,
            self._last_look,
            (path,),
            (Evidence("share of the busiest expert", load, float(shares[0].max())),),
            "loss = loss + 0.01 * balance_loss  # add what spreads the load",
        )

    def _symmetry_finding(self, step: int, sites: list[str]) -> Finding:
        verb = "is" if len(sites) == 1 else "are"
        return Finding(
            "symmetric_units",
            Severity.CRITICAL,
            f"All rows of {name_list(sites)} {verb} equal, and training keeps them so: the layer has one unit, many times.",
            0,
            max(step, self._last_look),
            tuple(sites),
            (Evidence("layers of copies", float(len(sites))),),
            "nn.init.kaiming_normal_(layer.weight)  # random, not constant",
        )


def _risen(path: str, looks: Track) -> Readings:
    """Whether a layer fell asleep bit by bit: what the first steps put to sleep stays at one level."""
    early, late = median(looks.values[:1]), median(looks.last(3)[:, 1])
    rises = mann_kendall(looks.values[LOOKS_NEEDED // 2 :], alpha=0.01).direction is Direction.RISING
    return (
        Reading("looks at its units", len(looks), ">=", DORMANT_LOOKS, path),
        Reading("share of dormant units", late, ">", DORMANT_SHARE, path),
        Reading("its rise since the first sample", late - early, ">", DORMANT_RISE, path),
        Reading("it goes on rising, by more than chance", rises, "=", 1, path),
    )
