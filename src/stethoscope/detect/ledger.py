"""The exact ledger: gradients cleared, kept, thrown away; parameters that no optimizer holds; rates of zero.

All of these are counts, not estimates: they come from identities and version counters of gradients, and from which
tensor is in which list.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule, Streak
from stethoscope.detect.effects import BLOW_UP, LEARNING_TROUBLE, UNIT_TROUBLE
from stethoscope.detect.needs import GRADIENTS, LEDGER, OWNERS, RATE, Need, optional
from stethoscope.record import Evidence, Finding, Kind, Severity, events, metrics, name_list

SURE_AFTER: Final = 3
"""Steps in a row before a broken account is called a habit and not an accident."""
NEVER_STEPS_AFTER: Final = 4
"""Times that gradients were thrown away by an optimizer that never stepped."""
BACKWARDS_NEEDED: Final = 8
"""By the end of a run in which no optimizer stepped."""
OWNERSHIP_AFTER: Final = 4
"""Steps to wait before a parameter counts as held by no optimizer: that may come later."""
ZERO_RATE_AFTER: Final = 10
"""Steps for which a group's rate is 0 from the start while others' are not, or all are: longer than a warm-up from 0."""


class GradientAccounts(Detector):
    """F01, F02, F03: what happens to gradients between backward and step."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "gradients_not_cleared",
            needs=(LEDGER, GRADIENTS),
            leads_to=(*LEARNING_TROUBLE, *UNIT_TROUBLE, *BLOW_UP, "output_logit_drift", "attention_logit_growth"),
            through_updates=True,
        ),
        Code(
            "gradients_cleared_before_step",
            needs=(LEDGER, optional(GRADIENTS)),
            leads_to=("silent_no_update", "update_too_small", "dead_units", "detached_graph"),
        ),
        Code(
            "optimizer_never_steps",
            needs=(
                Need(
                    "backward passes without a step",
                    "event",
                    (events.GradientsDiscarded.KIND, events.Totals.KIND),
                    "watch(model, optimizer)",
                ),
            ),
            leads_to=("silent_no_update", "update_too_small"),
        ),
    )

    def __init__(self) -> None:
        self._kept, self._lost = Streak(), Streak()
        self._kept_share = 0.0
        self._kept_sites: tuple[str, ...] = ()
        """Of a part of the gradients that are not cleared, whose they are."""
        self._discarded = 0
        self._discarded_step = 0
        self._totals: events.Totals | None = None
        self._has_moved = False
        """Whether the weights moved although no optimizer stepped: the script moves them itself."""
        self._num_steps = 0

    def observe(self, span: Span) -> None:
        """Follow the accounts of every step."""
        for event, discarded in span.events_of(events.GradientsDiscarded):
            self._discarded, self._discarded_step = discarded.times, event.step
            self._has_moved = self._has_moved or discarded.weights_moved
        for _, kept_some in span.events_of(events.GradientsKept):
            self._kept_sites = kept_some.sites
        for _, totals in span.events_of(events.Totals):
            self._totals = totals
            self._has_moved = self._has_moved or totals.weights_moved
        arrived, kept = span.metric(metrics.LEDGER_ARRIVED), span.metric(metrics.LEDGER_KEPT)
        vanished, touched = span.metric(metrics.LEDGER_VANISHED), span.metric(metrics.LEDGER_TOUCHED)
        gradients = span.site_indices(Kind.GRADIENT)
        largest = span.stat("abs_max")[:, gradients] if len(gradients) else np.empty((len(span.steps), 0))
        for index, step in enumerate(span.steps):
            if not np.isfinite(arrived[index]):
                continue
            self._num_steps += 1
            some = arrived[index] > 0
            live = largest[index][~np.isnan(largest[index])]
            moved = bool(len(live)) and bool((live > 0).any())
            self._kept.see(int(step), bool(some and kept[index] > 0 and moved))
            if some and kept[index] > 0:
                self._kept_share = kept[index] / arrived[index]
            all_gone = vanished[index] == arrived[index]
            all_zero = touched[index] == arrived[index] and bool(len(live)) and not moved
            self._lost.see(int(step), bool(some and (all_gone or all_zero)))

    def rules(self) -> Iterator[Rule]:
        """The accounts that are broken as a habit."""
        yield Rule(
            "gradients_not_cleared",
            (
                Reading(
                    "steps in a row that kept the gradients of the step before", self._kept.longest, ">=", SURE_AFTER
                ),
            ),
            self._not_cleared,
        )
        yield Rule(
            "gradients_cleared_before_step",
            (
                Reading(
                    "steps in a row whose gradients were gone before the optimizer's step",
                    self._lost.longest,
                    ">=",
                    SURE_AFTER,
                ),
            ),
            self._cleared_early,
        )
        ended = self._totals
        backwards, steps, is_cut = (
            (ended.num_backwards, ended.num_steps, ended.step_unfinished) if ended is not None else (0, 0, False)
        )
        never = (
            Reading("optimizer steps", self._num_steps, "=", 0),
            Reading("the weights moved all the same", self._has_moved, "=", 0),
        )
        yield Rule(
            "optimizer_never_steps",
            (*never, Reading("times gradients were thrown away unused", self._discarded, ">=", NEVER_STEPS_AFTER)),
            lambda: self._never_steps(max(backwards, self._discarded)),
            "thrown away",
        )
        yield Rule(
            "optimizer_never_steps",
            (
                *never,
                Reading("backward passes by the end", backwards, ">=", BACKWARDS_NEEDED),
                Reading("optimizer steps by the end", steps, "=", 0),
                # A step that the run's end cut off had begun: its closure's evaluations are no backward passes without a step.
                Reading("a step was under way at the end", is_cut, "=", 0),
            ),
            lambda: self._never_steps(max(backwards, self._discarded)),
            "at the end",
            is_otherwise=True,
        )

    def _not_cleared(self) -> Finding:
        sites = self._kept_sites if self._kept_share < 1 else ()
        whose = f"Gradients of {name_list(sites)}" if sites else "Gradients"
        return Finding(
            code="gradients_not_cleared",
            severity=Severity.CRITICAL,
            message=f"{whose} are not cleared between steps since step {self._kept.start_of_longest:,}: "
            f"each step uses the sum of all {'their ' if sites else ''}gradients so far.",
            first_step=self._kept.start_of_longest,
            last_step=self._kept.last_step,
            sites=sites,
            evidence=(
                Evidence("share of gradients kept from the step before", self._kept_share),
                Evidence("steps in a row", float(self._kept.longest)),
            ),
            remedy="optimizer.zero_grad()  # before each backward",
        )

    def _cleared_early(self) -> Finding:
        return Finding(
            code="gradients_cleared_before_step",
            severity=Severity.CRITICAL,
            message=f"Gradients are cleared between backward and step since step {self._lost.start_of_longest:,}: "
            "the optimizer has nothing to apply.",
            first_step=self._lost.start_of_longest,
            last_step=self._lost.last_step,
            evidence=(Evidence("steps in a row without a gradient", float(self._lost.longest)),),
            remedy="loss.backward(); optimizer.step(); optimizer.zero_grad()  # in this order",
        )

    def _never_steps(self, num_backwards: int) -> Finding:
        return Finding(
            code="optimizer_never_steps",
            severity=Severity.CRITICAL,
            message=f"The optimizer never steps: {num_backwards:,} backward passes made gradients and no weight ever moved.",
            first_step=0,
            last_step=self._discarded_step,
            evidence=(Evidence("backward passes", float(num_backwards)), Evidence("optimizer steps", 0.0)),
            remedy="optimizer.step()  # after loss.backward()",
        )


class Ownership(Detector):
    """F04, F05, F79: which optimizer holds which parameter, at which rate."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "optimizer_params_not_in_model",
            needs=(OWNERS,),
            leads_to=("trainable_params_not_in_optimizer", "silent_no_update", "update_too_small"),
        ),
        Code("trainable_params_not_in_optimizer", needs=(OWNERS,)),
        Code("zero_lr_group", needs=(RATE, optional(OWNERS)), leads_to=("silent_no_update", "update_too_small")),
    )

    def __init__(self) -> None:
        self._latest: events.Ownership | None = None
        self._step = -1
        self._since: dict[str, int] = {}
        """From a parameter that no optimizer holds to the step since when; by "" the same of tensors that no model holds."""
        self._alive: dict[str, int] = {}
        """From a parameter to the last step at which it had a gradient."""
        self._zero: dict[str, Streak] = {}
        self._ever_positive: set[str] = set()
        self._last_step = 0

    def observe(self, span: Span) -> None:
        """Keep the latest lists and every rate."""
        for event, ownership in span.events_of(events.Ownership):
            self._follow_gradients(span, event.step)
            self._follow_lists(event.step, ownership)
        self._follow_gradients(span)
        for name in [name for name in span.metrics if metrics.is_learning_rate(name)]:
            rates = span.metric(name)
            streak = self._zero.setdefault(name, Streak())
            for index in np.flatnonzero(~np.isnan(rates)):
                streak.see(int(span.steps[index]), bool(rates[index] == 0))
                if rates[index] != 0:
                    self._ever_positive.add(name)
        if len(span.steps):
            self._last_step = int(span.steps[-1])

    def _follow_gradients(self, span: Span, before: int | None = None) -> None:
        """When each parameter last had a gradient, of the steps before one, or of all."""
        rows = slice(None) if before is None else slice(0, int(np.searchsorted(span.steps, before)))
        indices = span.site_indices(Kind.GRADIENT)
        largest = span.stat("abs_max")[rows][:, indices]
        for column, index in enumerate(indices):
            there = np.flatnonzero(largest[:, column] > 0)
            if len(there):
                self._alive[span.sites[index].site.path] = int(span.steps[there[-1]])

    def _follow_lists(self, step: int, ownership: events.Ownership) -> None:
        """What was replaced in the middle of a run is in the list since the last one: since its old self had its last gradient."""
        outside = [p.site for p in ownership.not_in_optimizer if p.trainable]
        named = [*outside, *([""] if ownership.not_in_model else [])]
        last = [self._alive[site] for site in outside if site in self._alive and site not in self._since]
        begun = 0 if self._latest is None else max(self._step, *(one + 1 for one in last)) if last else step
        self._since = {site: self._since.get(site, begun) for site in named}
        self._latest, self._step = ownership, step

    def rules(self) -> Iterator[Rule]:
        """What has no rate, what no model holds, what no optimizer holds."""
        yield from self._zero_rates()
        orphans, num_foreign = self._outside()
        known = Reading("step of the latest list of parameters", self._step, ">=", OWNERSHIP_AFTER)
        foreign = "tensors in the optimizer that are not the model's and get no gradient"
        yield Rule(
            "optimizer_params_not_in_model",
            (known, Reading(foreign, num_foreign, ">", 0)),
            lambda: self._of_other_model(num_foreign, orphans),
        )
        yield Rule(
            "trainable_params_not_in_optimizer",
            (
                known,
                Reading("trainable tensors with a gradient that no optimizer holds", len(orphans), ">", 0),
                Reading(f"{foreign}, which is told instead", num_foreign, "=", 0),
            ),
            lambda: self._left_out(orphans),
        )

    def _outside(self) -> tuple[list[str], int]:
        """Trainable parameters with a gradient that no optimizer holds; how many unused tensors optimizers hold that no model has."""
        if self._latest is None:
            return [], 0
        orphans = [p.site for p in self._latest.not_in_optimizer if p.trainable and p.has_gradient]
        return orphans, sum(not p.has_gradient for p in self._latest.not_in_model)

    def _left_out(self, orphans: list[str]) -> Finding:
        verb = "gets" if len(orphans) == 1 else "get"
        return Finding(
            code="trainable_params_not_in_optimizer",
            severity=Severity.CRITICAL,
            message=f"{name_list(orphans)} {verb} gradients, and no optimizer holds "
            f"{'it' if len(orphans) == 1 else 'them'}: never trained.",
            first_step=min(self._since.get(site, 0) for site in orphans),
            last_step=self._last_step,
            sites=tuple(orphans),
            evidence=(Evidence("trainable tensors outside every optimizer", float(len(orphans))),),
            remedy="torch.optim.AdamW(model.parameters(), ...)  # made after the last layer was added",
        )

    def _of_other_model(self, num_foreign: int, orphans: list[str]) -> Finding:
        where = f", while {name_list(orphans)} {'is' if len(orphans) == 1 else 'are'} in none" if orphans else ""
        return Finding(
            code="optimizer_params_not_in_model",
            severity=Severity.CRITICAL,
            message=f"The optimizer holds {num_foreign} tensors that the model does not use{where}: "
            "it was made from an older model or layer.",
            first_step=self._since.get("", 0),
            last_step=self._last_step,
            sites=tuple(orphans),
            evidence=(
                Evidence("tensors in the optimizer and not in the model", float(num_foreign)),
                Evidence("trainable tensors of the model in no optimizer", float(len(orphans))),
            ),
            remedy="optimizer = torch.optim.AdamW(model.parameters(), ...)  # again, after replacing a layer",
        )

    def _zero_rates(self) -> Iterator[Rule]:
        groups = self._latest.groups if self._latest is not None else ()
        for name, streak in sorted(self._zero.items()) or [("", Streak())]:
            number = int(name.partition(".")[2] or 0)
            sites = groups[number].sites if number < len(groups) else ()
            yield Rule(
                "zero_lr_group",
                (
                    Reading("the group's rate was ever above 0", name in self._ever_positive, "=", 0, *sites[:1]),
                    Reading("steps in a row at rate 0", streak.longest, ">=", ZERO_RATE_AFTER, *sites[:1]),
                ),
                partial(_zero_rate, number, sites, streak),
            )


def _zero_rate(number: int, sites: tuple[str, ...], streak: Streak) -> Finding:
    return Finding(
        code="zero_lr_group",
        severity=Severity.CRITICAL,
        message=f"The learning rate of {name_list(sites) or 'a parameter group'} is 0 and has been since step "
        f"{streak.start_of_longest:,}: never trained.",
        first_step=streak.start_of_longest,
        last_step=streak.last_step,
        sites=sites,
        evidence=(Evidence("learning rate", 0.0), Evidence("steps", float(streak.longest))),
        remedy=f'optimizer.param_groups[{number}]["lr"] = 1e-3  # or leave the group out',
    )
