"""Weights that changed between two steps by more than any update made: other code wrote to them.

A weight matrix cannot become larger or smaller by more than its updates are large. Where its size after a step differs from that after the
step before by many times what the optimizer changed, somebody else changed it: another checkpoint, a new head, a merge, a slip. That alone
is a note, for it may be meant; where the loss breaks in that very step it is the cause of all that follows.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, is_matrix, median
from stethoscope.detect.effects import BLOW_UP, LEARNING_TROUBLE, UNIT_TROUBLE
from stethoscope.detect.groups import Group, groups_by_site
from stethoscope.detect.needs import LOSS, OWNERS, UPDATES, WEIGHTS, optional
from stethoscope.record import Evidence, Finding, FloatArray, IntArray, Kind, Severity, metrics, name_list
from stethoscope.record.events import Continuation, Start

TIMES: Final = 10.0
"""What the updates since the last measurement allow: of a large matrix they are measured on a sample."""
CHANGED: Final = 0.25
"""Of its size before: a change that somebody would care about."""
ADAM_BOUND: Final = 10.0**0.5
"""Times the rate, that a step of Adam can be large at most with its usual betas: for steps that were not measured."""
MOST: Final = 3
"""Steps with such changes: what happens more often is how this script trains (clipped weights, a lookahead, updates by hand)."""
BEFORE: Final = 20
AFTER: Final = 20
"""Losses that are compared: weights that are pruned, or a head that begins anew, cost a few steps."""
LOSSES_KEPT: Final = 256
BROKE: Final = 2.0
"""Times the largest of the losses before."""


@dataclasses.dataclass(slots=True)
class _Change:
    """What stood out in one step."""

    after: int
    """The step of the measurement before."""
    step: int
    paths: tuple[str, ...]
    size: float
    before: float
    allowed: float
    """By its updates, of the first path."""
    losses_before: tuple[float, ...]
    losses_after: list[float] = dataclasses.field(default_factory=list)

    @property
    def loss(self) -> tuple[float, float]:
        """The loss right after, and the largest before."""
        bad = [loss for loss in self.losses_after if not np.isfinite(loss)]
        return bad[0] if bad else median(self.losses_after), max(self.losses_before, default=np.nan)

    def is_harmful(self, now: float) -> bool:
        """Whether the loss broke with it, and is still so: `now` is its level."""
        after, before = self.loss
        if not np.isfinite(after):
            return bool(self.losses_after)
        return len(self.losses_after) == AFTER and min(after, now) > BROKE * abs(before)


class OutsideChanges(Detector):
    """Holds the size of each weight matrix against the updates since it was last measured."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "weights_changed_outside",
            needs=(WEIGHTS, UPDATES, optional(OWNERS), optional(LOSS)),
            leads_to=(
                *LEARNING_TROUBLE,
                *UNIT_TROUBLE,
                *BLOW_UP,
                "adam_update_spike",
                "output_logit_drift",
                "attention_logit_growth",
                "class_collapse",
            ),
        ),
    )

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._sizes: dict[str, float] = {}
        """Of each matrix, after the last step in which it was measured."""
        self._allowed: dict[str, float] = {}
        """By how much updates can have changed it since."""
        self._seen_at: dict[str, int] = {}
        """The step of that measurement."""
        self._losses: deque[tuple[int, float]] = deque(maxlen=LOSSES_KEPT)
        self._changes: list[_Change] = []
        self._num_changes = 0
        self._last_step = -1

    def observe(self, span: Span) -> None:
        """Step by step, all matrices at once."""
        self._groups = groups_by_site(span, self._groups)
        weights, updates, paths = _matrices(span)
        # A size is that of the finite values alone: where some are not, it is none.
        rms, is_bad = span.stat("rms"), span.stat("num_nonfinite") > 0
        sizes, steps = np.where(is_bad, np.nan, rms)[:, weights], rms[:, updates]
        nonfinite = is_bad[:, weights] | is_bad[:, updates]
        unmeasured = self._bounds(span, paths)
        known = np.array([self._sizes.get(path, np.nan) for path in paths])
        allowed = np.array([self._allowed.get(path, 0.0) for path in paths])
        begun = {event.step + n for kind in (Start, Continuation) for event, _ in span.events_of(kind) for n in (0, 1)}
        seen_at = np.array([self._seen_at.get(path, -1) for path in paths])
        losses, recorded = span.metric(metrics.LOSS), span.recorded(metrics.LOSS)
        for row, step in enumerate(span.steps):
            is_next = int(step) == self._last_step + 1
            if int(step) in begun:  # another process may have begun anew, or loaded what it saved
                known = np.full(len(paths), np.nan)
            self._last_step = int(step)
            known = np.where(nonfinite[row], np.nan, known)
            allowed = allowed + np.where(np.isfinite(steps[row]), steps[row], unmeasured[row] if is_next else np.inf)
            with np.errstate(invalid="ignore"):
                change = np.abs(sizes[row] - known)
                out = np.flatnonzero((change > TIMES * allowed) & (change > CHANGED * known))
            if len(out):
                first = out[np.argmax(change[out] / np.maximum(known[out], 1e-300))]
                named = (paths[first], *(paths[n] for n in out if n != first))
                sizes_of = float(sizes[row, first]), float(known[first])
                self._note((int(seen_at[first]), int(step)), named, sizes_of, float(allowed[first]))
            measured = np.isfinite(sizes[row])
            known, allowed = np.where(measured, sizes[row], known), np.where(measured, 0.0, allowed)
            seen_at = np.where(measured, step, seen_at)
            if recorded[row]:
                self._see_loss(int(step), float(losses[row]))
        self._sizes |= zip(paths, known.tolist(), strict=True)
        self._allowed |= zip(paths, allowed.tolist(), strict=True)
        self._seen_at |= zip(paths, seen_at.tolist(), strict=True)

    def _bounds(self, span: Span, paths: list[str]) -> FloatArray:
        """By step and matrix, how much a step that was not measured can have changed it: known of Adam alone."""
        bounds = np.full((len(span.steps), len(paths)), np.inf)
        for column, path in enumerate(paths):
            group = self._groups.get(path)
            if group is not None and group.is_adam:
                decay = group.number("weight_decay", 0.0) * self._sizes.get(path, 0.0)
                rates = span.metric(group.rate_metric)
                bounds[:, column] = np.where(np.isfinite(rates), rates * (ADAM_BOUND + decay), np.inf)
        return bounds

    def _note(self, steps: tuple[int, int], paths: tuple[str, ...], sizes: tuple[float, float], allowed: float) -> None:
        self._num_changes += 1
        if len(self._changes) < MOST:
            # Of steps that were not measured, those after the last one that was may have been changed already.
            before = [loss for at, loss in self._losses if at <= steps[0] and np.isfinite(loss)][-BEFORE:]
            since = [loss for at, loss in self._losses if at > steps[0]][:AFTER]
            self._changes.append(_Change(*steps, paths, *sizes, allowed, tuple(before), since))

    def _see_loss(self, step: int, loss: float) -> None:
        for change in self._changes:
            if len(change.losses_after) < AFTER:
                change.losses_after.append(loss)
        self._losses.append((step, loss))

    def rules(self) -> Iterator[Rule]:
        """The change that broke the loss, else the first."""
        now = median([loss for _, loss in self._losses][-AFTER:])
        harmful = [change for change in self._changes if change.is_harmful(now)]
        told = next(iter(harmful or self._changes), None)
        yield Rule(
            "weights_changed_outside",
            (
                Reading("steps with changes that no update explains", self._num_changes, ">", 0),
                Reading(
                    "the same, against what is usual for a script that writes to its weights",
                    self._num_changes,
                    "<=",
                    MOST,
                ),
                Reading(
                    "size (RMS) of the weight that changed most",
                    told.size if told else np.nan,
                    site=told.paths[0] if told else "",
                ),
                Reading("change of it that updates allow", told.allowed if told else np.nan),
            ),
            lambda: self._tell(told, is_harmful=bool(harmful)),
        )

    def _tell(self, change: _Change | None, *, is_harmful: bool) -> Finding:
        assert change is not None
        after, before = change.loss
        effect = f", and the loss went from {before:.3g} at most to {after:.3g}" if is_harmful else ""
        return Finding(
            "weights_changed_outside",
            Severity.CRITICAL if is_harmful else Severity.INFO,
            f"{name_list(change.paths)} {'was' if len(change.paths) == 1 else 'were'} changed outside the optimizer between steps "
            f"{change.after:,} and {change.step:,}: the size (RMS) of {change.paths[0]} went from {change.before:.3g} to "
            f"{change.size:.3g}, where updates changed it by {change.allowed:.2g}{effect}.",
            change.step,
            change.step,
            change.paths,
            (
                Evidence(
                    f"size (RMS) of {change.paths[0]}",
                    change.size,
                    change.before,
                    site=change.paths[0],
                    kind="weight",
                    stat="rms",
                ),
                Evidence("change that the updates since then allow", change.allowed),
                Evidence("loss, against the largest before", after, before, stat="loss"),
            ),
            "# what writes to these weights between two steps: param.data, copy_(), mul_(), load_state_dict()?",
        )


def _matrices(span: Span) -> tuple[IntArray, IntArray, list[str]]:
    """Weight matrices whose updates are measured: their sites, those of the updates, their paths."""
    updates = {span.sites[n].site.path: int(n) for n in span.site_indices(Kind.UPDATE)}
    weights = [
        int(n)
        for n in span.site_indices(Kind.WEIGHT)
        if is_matrix(span.sites[n]) and span.sites[n].site.path in updates
    ]
    paths = [span.sites[n].site.path for n in weights]
    return np.array(weights, dtype=np.int64), np.array([updates[path] for path in paths], dtype=np.int64), paths
