"""Vanishing and exploding gradients: how the gradient changes with depth, and with time.

With depth: a chain of layers each of which multiplies the gradient by less (or more) than one gives a trend in the
logarithm that every layer takes part in. One odd layer is not a trend. With time: a norm far above the run's own recent
median and above the one it began with, again and again, with nothing that clips it. A run that has learned its data has
almost no gradient left, and a sample that it gets wrong gives it back the size it learned with: that is no explosion.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Recent, Rule, is_matrix, median
from stethoscope.detect.effects import BLOW_UP
from stethoscope.detect.needs import GRADIENTS
from stethoscope.detect.tracks import Track
from stethoscope.record import Evidence, Finding, FloatArray, Kind, Severity, metrics, plural
from stethoscope.record.events import DataFlow

LAYERS_NEEDED: Final = 5
DECADES: Final = 4.0
"""Four orders of magnitude between the ends of the chain: the first layers learn ten thousand times slower."""
TREND: Final = 0.8
"""Rank correlation between depth and the logarithm of the gradient."""
STEPS_NEEDED: Final = 20
RATIOS_KEPT: Final = 1024
SPIKE: Final = 100.0
HISTORY: Final = 50
SPIKES_NEEDED: Final = 3
BACK_IN_TIME: Final = 1e3
"""A sum over a hundred moments of equal gradients gives a hundred; a thousand is growth from moment to moment."""
BURST: Final = 1e6
"""So much in a single step, and a gradient of a thousand at least, needs no repetition: often the first one ends it all."""
BURST_NORM: Final = 1e3
MOMENTS: Final = 10
"""Calls of a module in one forward pass, fed by itself: a recurrence written by hand."""
RECURRENT: Final = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")


class Flow(Detector):
    """Follows the gradients of weight matrices in the order of depth, and their total over time."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "vanishing_gradients",
            needs=(GRADIENTS,),
            leads_to=("update_below_precision", "silent_no_update", "update_too_small"),
        ),
        Code("exploding_gradients", needs=(GRADIENTS,), leads_to=(*BLOW_UP, "update_too_large"), through_updates=True),
    )

    def __init__(self) -> None:
        self._slopes = Track(2)
        self._num_steps = 0
        self._ends: tuple[str, str] = ("", "")
        self._sums: FloatArray = np.zeros(0)
        self._paths: list[str] = []
        self._recent = Recent(HISTORY)
        self._began_with = 0.0
        self._first_spike: tuple[int, float, float, str] | None = None
        self._last_spike = 0
        self._num_spikes = 0
        self._clips = False
        self._last_step = 0
        self._first_step = 0
        self._recurrent: dict[str, Track] = {}
        self._recurrent_since = 0
        self._bursts: dict[str, tuple[int, float]] = {}
        self._loops: set[str] = set()

    def observe(self, span: Span) -> None:
        """One value of slope and one of size for every step."""
        self._clips = self._clips or bool(
            span.recorded(metrics.CLIP_NORM).any() or span.recorded(metrics.CLIP_VALUE).any()
        )
        indices = [n for n in span.in_depth(span.site_indices(Kind.GRADIENT)) if is_matrix(span.sites[n])]
        if not indices:
            return
        self._follow_recurrence(span, indices)
        rms = span.stat("rms")[:, indices]
        norms = span.stat("norm")[:, indices]
        sparse = span.stat("zero_fraction")[:, indices] > 0.5
        paths = [span.sites[n].site.path for n in indices]
        for row, step in enumerate(span.steps):
            sizes = np.where(sparse[row], np.nan, rms[row])
            if np.isnan(norms[row]).all():
                continue
            self._last_step = int(step)
            self._size(int(step), norms[row], paths)
            self._slope(int(step), sizes, paths)

    def _follow_recurrence(self, span: Span, indices: list[int]) -> None:
        """Modules that run once a moment, against the last layer: what they pile up on the way back in time."""
        self._loops |= _loops(span)
        repeated = _repeated(span) | self._loops
        last = indices[-1]
        norms = span.stat("norm")
        for index in indices[:-1]:
            path = span.sites[index].site.path
            if span.sites[index].site.module not in repeated or span.sites[last].site.module in repeated:
                continue
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = norms[:, index] / norms[:, last]
            known = np.flatnonzero(np.isfinite(ratio) & (norms[:, last] > 0))
            if len(known) and not self._recurrent:
                self._recurrent_since = int(span.steps[known[0]])
            if path not in self._recurrent:
                self._recurrent[path] = Track(limit=RATIOS_KEPT, ends=1)
            for value in ratio[known]:
                self._recurrent[path].add(float(value))
            burst = known[(ratio[known] > BURST) & (norms[known, index] > BURST_NORM)]
            if len(burst):
                self._bursts.setdefault(path, (int(span.steps[burst[0]]), float(ratio[burst[0]])))

    def _slope(self, step: int, sizes: FloatArray, paths: list[str]) -> None:
        live = np.flatnonzero(sizes > 0)
        if len(live) < LAYERS_NEEDED:
            return
        logs = np.log10(sizes[live])
        depth = np.arange(len(live))
        ranks = np.argsort(np.argsort(logs))
        trend = float(np.corrcoef(depth, ranks)[0, 1])
        third = max(1, len(live) // 5)
        decades = float(np.median(logs[-third:]) - np.median(logs[:third]))
        if self._num_steps == 0:
            self._first_step = step
        self._num_steps += 1
        self._slopes.add(decades, trend)
        chosen = [paths[n] for n in live]
        if chosen != self._paths:
            self._paths, self._sums = chosen, np.zeros(len(chosen))
        self._sums += logs

    def _size(self, step: int, norms: FloatArray, paths: list[str]) -> None:
        total = float(np.sqrt(np.nansum(norms**2)))
        usual = max(self._recent.median(), self._began_with)
        if len(self._recent) >= STEPS_NEEDED and total > SPIKE * usual and np.isfinite(total):
            self._first_spike = self._first_spike or (step, total, usual, paths[int(np.nanargmax(norms))])
            self._last_spike = step
            self._num_spikes += 1
        else:
            self._recent.add(total)
            if not self._began_with and len(self._recent) == STEPS_NEEDED:
                self._began_with = self._recent.median()

    def rules(self) -> Iterator[Rule]:
        """The trend with depth, then the jumps in time."""
        seen = Reading("steps with gradients of enough layers", self._num_steps, ">=", STEPS_NEEDED)
        decades, trend = median(self._slopes.column(0)), median(self._slopes.column(1))
        spread, order = "powers of ten from the first layers' gradient to the last ones'", "rank correlation with depth"
        for code, sign, asks in (("vanishing_gradients", 1, ">="), ("exploding_gradients", -1, "<=")):
            by_depth = (seen, Reading(spread, decades, asks, sign * DECADES), Reading(order, trend, asks, sign * TREND))
            yield Rule(code, by_depth, lambda: self._by_depth(decades), "by depth")
        clips = Reading("clipping seen", self._clips, "=", 0)
        back = {path: median(ratios.values) for path, ratios in self._recurrent.items() if len(ratios) >= STEPS_NEEDED}
        back = {path: times for path, times in back.items() if times > BACK_IN_TIME} or back
        worst = max(back, key=lambda path: back[path], default="")
        explodes = Reading(
            "gradient of a recurrent layer / last layer's", back.get(worst, np.nan), ">", BACK_IN_TIME, worst
        )
        yield Rule(
            "exploding_gradients",
            (explodes, clips),
            lambda: self._back_in_time(back, self._recurrent_since),
            "back in time",
        )
        burst = (
            Reading(f"recurrent layers over {BURST:.0e} times the last one", len(self._bursts), ">", 0),
            Reading("the same usually, and found so", explodes.holds is True, "=", 0),
            clips,
        )
        yield Rule("exploding_gradients", burst, self._in_one_burst, "in one burst")
        jumps = Reading(f"steps over {SPIKE:.0f} times the usual norm", self._num_spikes, ">=", SPIKES_NEEDED)
        yield Rule("exploding_gradients", (jumps, clips), self._in_time, "in time")

    def _in_one_burst(self) -> Finding:
        since = min(step for step, _ in self._bursts.values())
        return self._back_in_time({path: ratio for path, (_, ratio) in self._bursts.items()}, since)

    def _by_depth(self, decades: float) -> Finding:
        mean = self._sums / max(self._num_steps, 1)
        drops = np.diff(mean)
        turn = self._paths[int(np.argmax(drops) if decades > 0 else np.argmin(drops))]
        first, last = self._paths[0], self._paths[-1]
        vanishing = decades > 0
        verb = "fade" if vanishing else "grow"
        return Finding(
            code="vanishing_gradients" if vanishing else "exploding_gradients",
            severity=Severity.CRITICAL if abs(decades) > 6 else Severity.WARNING,
            message=f"Gradients {verb} on their way back from {last} to {first}, to {_ratio(decades)} of their size; "
            f"the steepest loss is at {turn}."
            if vanishing
            else f"Gradients grow on their way back from {last} to {first}, by a factor of {10**-decades:,.0f}; "
            f"the steepest rise is at {turn}.",
            first_step=self._first_step,
            last_step=self._last_step,
            sites=(turn, first),
            evidence=(Evidence(f"gradient of {first} / gradient of {last}", 10.0**-decades),),
            remedy="nn.ReLU() or nn.GELU(), a residual connection x + f(x), or nn.LayerNorm"
            if vanishing
            else "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # and a smaller initialisation",
        )

    def _back_in_time(self, back: dict[str, float], since: int) -> Finding:
        path = max(back, key=lambda name: back[name])
        module = path.rpartition(".")[0] or path
        return Finding(
            code="exploding_gradients",
            severity=Severity.CRITICAL,
            message=f"The gradient explodes on its way back through time in {module}: {back[path]:,.0f} times that of the last "
            "layer, and nothing clips it.",
            first_step=since,
            last_step=self._last_step,
            sites=(module, path),
            evidence=(
                Evidence("gradient against the last layer's", back[path], site=path, kind="gradient", stat="norm"),
            ),
            remedy="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # and an orthogonal recurrence of gain 1",
        )

    def _in_time(self) -> Finding:
        assert self._first_spike is not None
        step, total, usual, path = self._first_spike
        return Finding(
            code="exploding_gradients",
            severity=Severity.CRITICAL,
            message=f"The gradient explodes: over {SPIKE:.0f}x its median at {plural(self._num_spikes, 'step')} since step {step:,}, "
            f"most of it in {path}, and nothing clips it.",
            first_step=step,
            last_step=self._last_spike,
            sites=(path,),
            evidence=(Evidence("gradient norm", total, usual, site=path, kind="gradient", stat="norm"),),
            remedy="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before optimizer.step()",
        )


def _ratio(decades: float) -> str:
    return f"1/{10**decades:,.0f}" if decades < 7 else f"10^-{decades:.0f}"


def _loops(span: Span) -> set[str]:
    """Modules that one forward pass calls many times on what came out of them."""
    found = set()
    for _, graph in span.events_of(DataFlow):
        often = {node.path for node in graph.nodes if node.calls >= MOMENTS}
        found |= {edge.source for edge in graph.edges if edge.source == edge.target} & often
    return found


def _repeated(span: Span) -> set[str]:
    """Modules that are recurrent by their type, or by name of their cell."""
    return {path for path, kind in span.types.items() if kind in RECURRENT}
