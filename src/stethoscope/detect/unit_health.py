"""Unit by unit: dead, saturated, dormant, copies of each other, unused experts, batches too small to normalise by.

Some dead units are no fault. Where its inputs hardly vary a unit is off for every sample by the toss of a coin; and
the first steps, which move the output one way, push down the units whose outgoing weight has the wrong sign: about half of
those that live, and more where inputs have one sign. The others learn, so that a part of a layer that was killed costs capacity
and explains no failure: a note. A fault is more than that: more units off from the first sample on than coins would give, or
hardly any that is left.

Nor do dormant units matter where nothing is left for them to learn: under shifting targets the loss comes back with every
shift; where it stays far below what it was, the layer has learned all it is asked.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.analyse.trends import Direction, mann_kendall
from stethoscope.detect.curves import Curves
from stethoscope.detect.detector import Code, Detector, Reading
from stethoscope.detect.needs import UNITS, Need
from stethoscope.detect.tracks import SampledHistory, Track
from stethoscope.record import Evidence, Finding, IntArray, Kind, Severity, name_list
from stethoscope.record.events import Copies, Units

DEAD_SHARE: Final = 0.5
COIN: Final = 1.64
"""Standard deviations above the half: one toss in twenty of so many coins gives more."""
SATURATED_SHARE: Final = 0.8
BEGINNING: Final = 16
"""A first sample before this step shows the units as they were initialized."""
STARVED: Final = 0.9
"""Above this share of dead units hardly anything is left of a layer, and nothing speaks for it."""
LOOKS_NEEDED: Final = 4
LOOKS_KEPT: Final = 256
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
        Code(
            "dead_units",
            needs=(UNITS,),
            leads_to=("vanishing_gradients", "dormant_units", "silent_no_update", "adam_eps_dominates"),
        ),
        Code(
            "saturated_units",
            needs=(UNITS,),
            leads_to=("vanishing_gradients",),
        ),
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
        Code(
            "expert_collapse",
            needs=(UNITS,),
        ),
        Code(
            "batchnorm_small_batch",
            needs=(UNITS,),
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
        self._types = {path: str(module.get("type", "")) for path, module in span.modules.items()} or self._types
        for event, units in span.events_of(Units):
            self._note_units(event.step, units)
        for event, copies in span.events_of(Copies):
            if copies.sites and self._copies is None:
                self._copies = (event.step, list(copies.sites))
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
                first = self._dead[path][2] if path in self._dead else max(0, step - 8 * (LOOKS_NEEDED - 1))
                self._dead[path] = (num_units, lasting, first)
            else:
                self._dead.pop(path, None)
        for path in [path for path in self._dead if path not in silent and silent]:
            self._dead.pop(path)
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

    def readings(self) -> dict[str, list[Reading]]:
        """What each rule asks for of the layer that is worst."""

        def worst(shares: dict[str, float]) -> tuple[float, str]:
            path = max(shares, key=lambda name: shares[name], default="")
            return shares.get(path, np.nan), path

        dead, dead_at = worst(self._lasting)
        full, full_at = worst(
            {path: looks.latest[1] for path, looks in self._saturated.items() if len(looks) >= LOOKS_NEEDED}
        )
        asleep = {p: v for p, v in self._dormant.items() if len(v) >= 8 and self._types.get(p) in RECTIFYING}
        ends = {p: (float(v.first(1)[0, 1]), float(np.median(v.last(3)[:, 1]))) for p, v in asleep.items()}
        # Of the layer that rose most, of those that are dormant enough where there are any.
        _, late_at = worst({p: late - early + (late > DORMANT_SHARE) for p, (early, late) in ends.items()})
        early, late = ends.get(late_at, (np.nan, np.nan))
        values = {p: float(np.median(v.values)) for p, v in self._normalised.items() if len(v) >= LOOKS_NEEDED}
        few_at = min(values, key=lambda name: values[name], default="")
        routed = {p: v.to_list()[-1][1] for p, v in self._routed.items()}
        load, load_at = worst({p: float(n.max() / max(n.sum(), 1)) for p, n in routed.items() if len(n)})
        return {
            "dead_units": [
                Reading("largest share of units without a gradient for long", dead, ">", DEAD_SHARE, dead_at),
                Reading("its share at the first sample", self._share_born(dead_at), site=dead_at),
            ],
            "saturated_units": [
                Reading("largest share of values at the ends of their range", full, ">", SATURATED_SHARE, full_at)
            ],
            "dormant_units": [
                Reading("share of dormant units", late, ">", DORMANT_SHARE, late_at),
                Reading("its rise since the first sample", late - early, ">", DORMANT_RISE, late_at),
            ],
            "symmetric_units": [
                Reading("layers whose rows are all equal after training", len((self._copies or (0, []))[1]), ">", 0)
            ],
            "expert_collapse": [Reading("share of the busiest expert, latest look", load, ">", LOAD_SHARE, load_at)],
            "batchnorm_small_batch": [
                Reading(
                    "fewest values per channel of a BatchNorm", values.get(few_at, np.nan), "<=", SMALL_BATCH, few_at
                )
            ],
        }

    def findings(self) -> list[Finding]:
        """Each kind where it lasts."""
        found = [
            self._find_dead(),
            self._find_saturated(),
            self._find_dormant(),
            self._find_small(),
            self._find_collapse(),
        ]
        if self._copies is not None:
            found.append(self._symmetry_finding(*self._copies))
        return [finding for finding in found if finding is not None]

    def _find_dead(self) -> Finding | None:
        lying = {path: dead for path, dead in self._dead.items() if not self._is_resting(path)}
        if not lying:
            return None
        too_many = {path: dead for path, dead in lying.items() if self._is_fault(path, *dead[:2])}
        told = too_many or lying
        # A dead layer starves the ones before it: the last in depth is where it began.
        index = {path: number for number, path in enumerate(self._order)}
        ordered = sorted(told, key=lambda path: -index.get(path.rpartition(".")[0], -1))
        path = ordered[0]
        num_units, dead, first = told[path]
        layer = path.rpartition(".")[0] or path
        share = dead / num_units
        bad = Severity.CRITICAL if share > 0.9 else Severity.WARNING
        beyond = self._silent_after(layer, first) if dead == num_units else ""
        why = f"no gradient comes back through {beyond}" if beyond else "no sample gives them a gradient"
        return Finding(
            "dead_units",
            bad if too_many else Severity.INFO,
            f"{'All' if dead == num_units else f'{dead:,} of'} {num_units:,} units of {self._layer_name(layer)} are dead: {why}.",
            first,
            self._last_look,
            (*([beyond] if beyond else []), layer, *(p.rpartition(".")[0] or p for p in ordered[1:])),
            (Evidence("share of dead units", share, site=path, kind="gradient", stat="zero_fraction"),),
            "nn.LeakyReLU(0.01)  # or a bias that starts at 0, a smaller learning rate",
        )

    def _layer_name(self, path: str) -> str:
        """For a sentence: "layer 2 (Linear)"."""
        kind = self._types.get(path, "")
        return f"layer {path} ({kind})" if kind else f"layer {path}"

    def _share_born(self, path: str) -> float:
        if path not in self._num_units or self._born is None or not self._began_so:
            return float("nan")
        return self._born.get(path, 0) / self._num_units[path]

    def _is_fault(self, path: str, num_units: int, dead: int) -> bool:
        """Whether hardly any unit is left, or more were dead from the first sample on than chance gives."""
        born = (self._born or {}).get(path, 0) if self._began_so else num_units // 2
        from_birth = min(born, dead)
        return dead > STARVED * num_units or _beyond_coins(from_birth, num_units)

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

    def _find_saturated(self) -> Finding | None:
        last = next((path for path in reversed(self._order) if self._types.get(path) != "Flatten"), "")
        lasting = {
            path: looks
            for path, looks in self._saturated.items()
            if path != last
            and len(looks) >= LOOKS_NEEDED
            and (looks.first(LOOKS_NEEDED)[:, 1] > SATURATED_SHARE).all()
            and looks.latest[1] > SATURATED_SHARE
        }
        if not lasting:
            return None
        index = {path: number for number, path in enumerate(self._order)}
        path = min(lasting, key=lambda name: index.get(name, 0))
        share = lasting[path].latest[1]
        return Finding(
            "saturated_units",
            Severity.WARNING,
            f"{share:.0%} of the values in {path} lie at the ends of their range, where the gradient is almost 0.",
            int(lasting[path].first(1)[0, 0]),
            self._last_look,
            (path,),
            (Evidence("share at the ends", share, site=path, kind="activation", stat="mean_abs"),),
            "nn.init.xavier_uniform_(layer.weight)  # or scale the inputs, or put nn.LayerNorm before it",
        )

    def _find_dormant(self) -> Finding | None:
        risen = {}
        for path, looks in self._dormant.items():
            if len(looks) < 8 or self._types.get(path) not in RECTIFYING:
                continue
            shares = looks.values
            early, late = float(shares[0]), float(np.median(looks.last(3)[:, 1]))
            # What the first steps put to sleep stays at one level: it must go on.
            rises = mann_kendall(shares[LOOKS_NEEDED // 2 :], alpha=0.01).direction is Direction.RISING
            if late > DORMANT_SHARE and late > early + DORMANT_RISE and rises:
                high = np.flatnonzero(shares > (early + late) / 2)
                risen[path] = (early, late, int(looks.steps[high[0]]) if len(high) else self._last_look)
        if not risen:
            return None
        path = max(risen, key=lambda name: risen[name][1])
        early, late, first = risen[path]
        learned = self._has_learned()
        follows = (
            "what it was asked it has learned"
            if learned
            else "the layer loses its ability to learn"
            if self._had_learned()
            else "the loss never fell while they were awake"
        )
        return Finding(
            "dormant_units",
            Severity.WARNING if not learned and self._had_learned() else Severity.INFO,
            f"{late:.0%} of the units of {self._layer_name(path)} are dormant, up from {early:.0%}: {follows}.",
            first,
            self._last_look,
            tuple(sorted(risen, key=lambda name: -risen[name][1])),
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

    def _find_small(self) -> Finding | None:
        small = {
            path: looks
            for path, looks in self._normalised.items()
            if len(looks) >= LOOKS_NEEDED and np.median(looks.values) <= SMALL_BATCH
        }
        if not small:
            return None
        paths = sorted(small)
        count = float(np.median(small[paths[0]].values))
        return Finding(
            "batchnorm_small_batch",
            Severity.WARNING,
            f"{name_list(paths)} normalise{'s' if len(paths) == 1 else ''} by the mean and variance of {count:.0f} values: noise, "
            "and not what evaluation will use.",
            int(small[paths[0]].first(1)[0, 0]),
            self._last_look,
            tuple(paths),
            (Evidence("values per channel", count),),
            "nn.GroupNorm(8, channels)  # or nn.LayerNorm, or a larger batch",
        )

    def _find_collapse(self) -> Finding | None:
        for path, kept in sorted(self._routed.items()):
            looks = kept.to_list()
            counts = np.array([c for _, c in looks if len(c) == len(looks[0][1])], dtype=float)
            if len(counts) < LOAD_LOOKS or counts.shape[1] < 2:
                continue
            shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
            tail = shares[-LOAD_LOOKS:]
            winner = int(tail.mean(0).argmax())
            if (tail[:, winner] > LOAD_SHARE).all():
                over = np.flatnonzero(shares[:, winner] <= LOAD_SHARE)
                first = looks[int(over[-1]) + 1][0] if len(over) else looks[0][0]
                return Finding(
                    "expert_collapse",
                    Severity.WARNING,
                    f"{path} sends {tail[:, winner].mean():.0%} of its inputs to expert {winner} of {counts.shape[1]} since step "
                    f"{first:,}: the others do not learn.",
                    first,
                    self._last_look,
                    (path,),
                    (Evidence("share of the busiest expert", float(tail[:, winner].mean()), float(shares[0].max())),),
                    "loss = loss + 0.01 * balance_loss  # add what spreads the load",
                )
        return None

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


def _beyond_coins(count: int, num_coins: int) -> bool:
    """More than so many coins would give, tossed once."""
    return count > num_coins / 2 + COIN * math.sqrt(num_coins) / 2
