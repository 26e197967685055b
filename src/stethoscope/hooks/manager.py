"""HookManager: registers hooks, decides which run, runs them, and counts how it went.

No exception of a hook reaches training, except the `StopTraining` it was asked to raise. A hook that raised
three times is disabled. Safe to call from several threads.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from stethoscope.hooks.alerts import Alert, Sink
from stethoscope.hooks.pause import Pauser
from stethoscope.hooks.rules import (
    Callback,
    Hook,
    HookAction,
    HookBuilder,
    HookCondition,
    HookContext,
    HookResult,
    HookStatus,
    HookTrigger,
    Predicate,
    TriggerKind,
)
from stethoscope.hooks.toolbox import GradientRecorder, Inspector, Toolbox
from stethoscope.record import ConfigError, Severity, StopTraining

MAX_ERRORS: Final = 3
MAX_RESULTS: Final = 1000

logger = logging.getLogger("stethoscope.hooks")


@dataclass(slots=True)
class HookStats:
    """How often a hook ran and how it went."""

    num_success: int = 0
    num_error: int = 0
    num_skipped: int = 0
    num_refused: int = 0
    """Of those skipped: times it had its turn and told by an alert why training was not held."""
    last_error: str = ""
    disabled: bool = False
    """Whether it was disabled because it raised three times."""

    @property
    def num_executions(self) -> int:
        """Times its actions were carried out, well or badly, or answered by an alert instead."""
        return self.num_success + self.num_error + self.num_refused


@dataclass(slots=True)
class _Entry:
    hook: Hook
    stats: HookStats = field(default_factory=HookStats)
    last_step: int | None = None
    cache: dict[str, bool] = field(default_factory=dict)
    """Whether the layer patterns match, by layer."""

    def matches(self, layer: str) -> bool:
        known = self.cache.get(layer)
        if known is None:
            known = self.cache[layer] = self.hook.matches(layer)
        return known


class HookManager(Toolbox):
    """The user's hooks and what they may use."""

    def __init__(
        self,
        *,
        inspector: Inspector | None = None,
        gradient_debugger: GradientRecorder | None = None,
        sinks: Iterable[Sink] | None = None,
        pauser: Pauser | None = None,
        folder: Path | None = None,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            inspector=inspector,
            gradient_debugger=gradient_debugger,
            sinks=sinks,
            pauser=pauser,
            folder=folder,
        )
        self.enabled = enabled
        """Where not, hooks can be registered and none runs."""
        self.on_change: Callable[[], None] | None = None
        """Called whenever a hook comes, goes, or is switched: a session then looks where to listen."""
        self.context = HookContext()
        """What is known of training now; `update` and `execute_step` keep it."""
        self.counts: Counter[HookStatus] = Counter()
        self.results: deque[HookResult] = deque(maxlen=MAX_RESULTS)
        self._entries: dict[int, _Entry] = {}
        self._next_id = 1
        self._calls = 0
        self._knows_step = False
        self._lock = threading.RLock()

    # Registering

    def register_hook(self, hook: Hook) -> int:
        """Adds a hook and returns its id."""
        if not isinstance(hook, Hook):
            raise ConfigError("not a hook", where=type(hook).__name__, do="End the builder with .build()")
        with self._lock:
            hook_id, self._next_id = self._next_id, self._next_id + 1
            self._entries = {**self._entries, hook_id: _Entry(hook)}
        self._notify_change()
        return hook_id

    def remove_hook(self, hook_id: int) -> bool:
        """Removes a hook; False where there is none of this id."""
        with self._lock:
            known = hook_id in self._entries
            self._entries = {key: entry for key, entry in self._entries.items() if key != hook_id}
        self._notify_change()
        return known

    def enable_hook(self, hook_id: int, enabled: bool = True) -> None:
        """Switches a hook on or off; switching on forgives its errors."""
        with self._lock:
            entry = self._entries[hook_id]
            entry.hook = replace(entry.hook, enabled=enabled)
            if enabled:
                entry.stats.disabled, entry.stats.num_error = False, 0
        self._notify_change()

    def _notify_change(self) -> None:
        if self.on_change is not None:
            self.on_change()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to run: the one thing to ask where every microsecond counts."""
        return not self._entries or not self.enabled

    def listens_to(self, layer: str) -> bool:
        """Whether any hook speaks of this layer, at whatever step or pass."""
        return not self.is_idle and any(
            not entry.hook.once_per_step and entry.hook.speaks_of(layer) for entry in self._entries.values()
        )

    def hooks(self) -> dict[int, Hook]:
        """The hooks by id."""
        return {hook_id: entry.hook for hook_id, entry in self._entries.items()}

    def stats(self, hook_id: int) -> HookStats:
        """How a hook has fared."""
        return self._entries[hook_id].stats

    def on(
        self,
        condition: HookCondition | Predicate | None = None,
        action: HookAction | Callback | None = None,
        *,
        every: int | None = None,
        layers: str | Iterable[str] | None = None,
        backward: bool = False,
        name: str = "",
        max_executions: int | None = None,
    ) -> Any:
        """The Python way: `hooks.on(condition, action)` registers and returns the id; without an action it
        decorates.

        `@hooks.on(every=10, layers=r"attention\\..*")` calls the function with a `HookContext`. `every` and a
        condition together mean both.
        """
        register = partial(
            self._register,
            condition,
            every=every,
            layers=layers,
            backward=backward,
            name=name,
            limit=max_executions,
        )
        if action is not None:
            return register(action)

        def decorate(function: Callback) -> Callback:
            register(function)
            return function

        return decorate

    def _register(
        self,
        condition: HookCondition | Predicate | None,
        action: HookAction | Callback,
        *,
        every: int | None,
        layers: str | Iterable[str] | None,
        backward: bool,
        name: str,
        limit: int | None,
    ) -> int:
        act = action if isinstance(action, HookAction) else HookAction.CustomCallback(action)
        title = name or getattr(action, "__name__", "") or str(act.kind)
        builder = HookBuilder(title).action(act).trigger(self._make_trigger(condition, every, backward))
        if layers is not None:
            builder.layer_patterns(layers).passes("backward" if backward else "forward")
        if limit is not None:
            builder.max_executions(limit)
        return self.register_hook(builder.build())

    def _make_trigger(
        self, condition: HookCondition | Predicate | None, every: int | None, backward: bool
    ) -> HookTrigger:
        if condition is None:
            if every is not None:
                return HookTrigger.EveryNSteps(every)
            return HookTrigger.EveryBackward if backward else HookTrigger.EveryForward
        wanted = condition if isinstance(condition, HookCondition) else HookCondition.Custom(condition)
        if every is None:
            return HookTrigger.Conditional(wanted)
        count = HookTrigger.EveryNSteps(every).every
        both = HookCondition.Custom(lambda context: context.step % count == 0 and self.holds(wanted, context))
        return HookTrigger.Conditional(both)

    # Running

    def update(self, **known: Any) -> None:
        """Says what is known of training now: step, loss, gradient_norm, memory_mb, metrics."""
        self._knows_step = self._knows_step or "step" in known
        self.context = replace(self.context, **known)

    def wants(self, layer: str, is_forward: bool, step: int | None = None) -> bool:
        """Whether any hook could run here: a cheap question to ask before a tensor is fetched."""
        at = self.context.step if step is None else step
        return self.enabled and any(
            not entry.hook.once_per_step and self._could_run(entry, layer, is_forward, at)
            for entry in self._entries.values()
        )

    def execute_hooks(
        self,
        layer: str,
        data: Any,
        shape: Iterable[int] | None = None,
        is_forward: bool = True,
        step: int | None = None,
        *,
        context: HookContext | None = None,
        layers_only: bool = False,
    ) -> list[HookResult]:
        """Runs every hook whose trigger and pattern match here; one result each.

        Without a step the one of `update` counts, else the number of calls so far. `context` brings loss,
        gradient norm and memory for this call alone. `layers_only` leaves the hooks that speak of steps to
        `execute_step`, for callers that call it.
        """
        at = self._step_of(step)
        if self.is_idle:
            return []
        base = self.context if context is None else context
        shape = tuple(int(n) for n in shape) if shape is not None else None
        here = replace(base, layer=layer, data=data, shape=shape, is_forward=is_forward, step=at)
        entries = [e for e in self._entries.items() if not (layers_only and e[1].hook.once_per_step)]
        return self._run_all(here, entries)

    def execute_step(self, step: int, **known: Any) -> list[HookResult]:
        """Says that a step is done, with what is known of it, and runs the hooks that speak of steps."""
        self.update(step=step, **known)
        if self.is_idle:
            return []
        entries = [(hook_id, entry) for hook_id, entry in self._entries.items() if entry.hook.once_per_step]
        return self._run_all(replace(self.context, layer="", data=None, shape=None), entries)

    def alert(self, message: str, severity: Severity | str = Severity.WARNING, *, hook: str = "") -> None:
        """Tells every sink."""
        self.tell(Alert(message, Severity(severity), hook, self.context.layer, self.context.step))

    def _step_of(self, step: int | None) -> int:
        with self._lock:
            self._calls += 1
            if step is not None:
                return int(step)
            return self.context.step if self._knows_step else self._calls - 1

    def _run_all(self, context: HookContext, entries: list[tuple[int, _Entry]]) -> list[HookResult]:
        results = []
        for hook_id, entry in entries:
            result = self._run_actions(hook_id, entry, context)
            if result is not None:
                results.append(result)
        with self._lock:
            self.counts.update(result.status for result in results)
            self.results.extend(results)
        return results

    def _could_run(self, entry: _Entry, layer: str, is_forward: bool, step: int) -> bool:
        hook, kind = entry.hook, entry.hook.trigger.kind
        if not hook.enabled or entry.stats.disabled or not entry.matches(layer):
            return False
        if hook.passes not in ("both", "forward" if is_forward else "backward"):
            return False
        return not (
            (kind is TriggerKind.EVERY_FORWARD and not is_forward)
            or (kind is TriggerKind.EVERY_BACKWARD and is_forward)
            or (kind is TriggerKind.EVERY_N_STEPS and step % hook.trigger.every != 0)
            or (kind is TriggerKind.ONCE and entry.stats.num_executions > 0)
            or (kind is TriggerKind.LAYER_SPECIFIC and layer not in hook.trigger.layers)
        )

    def _run_actions(self, hook_id: int, entry: _Entry, context: HookContext) -> HookResult | None:
        hook, stats = entry.hook, entry.stats
        result = partial(HookResult, hook_id, hook.name, layer=context.layer, step=context.step)
        try:
            if not self._could_run(entry, context.layer, context.is_forward, context.step):
                return None
            if hook.once_per_step and entry.last_step == context.step:
                return None
            condition = hook.trigger.condition
            if condition is not None and not self.holds(condition, context):
                return None
            if hook.max_executions is not None and stats.num_executions >= hook.max_executions:
                stats.num_skipped += 1
                return result(status=HookStatus.SKIPPED, message=f"ran {hook.max_executions} times already")
            entry.last_step = context.step
            values, skipped = self.act(hook, context)
        except StopTraining:
            stats.num_success += 1
            self.counts[HookStatus.SUCCESS] += 1
            raise
        except Exception as error:
            return result(status=HookStatus.ERROR, message=self._report_failure(entry, context, error))
        if skipped and len(skipped) == len(hook.actions):
            stats.num_skipped += 1
            stats.num_refused += any(reason.told for reason in skipped)
            return result(status=HookStatus.SKIPPED, message="; ".join(map(str, skipped)))
        stats.num_success += 1
        return result(status=HookStatus.SUCCESS, message="; ".join(map(str, skipped)), values=tuple(values))

    def _report_failure(self, entry: _Entry, context: HookContext, error: Exception) -> str:
        """Reports what a hook raised; the third time disables it."""
        stats = entry.stats
        stats.num_error += 1
        stats.last_error = f"{type(error).__name__}: {error}"
        stats.disabled = stats.num_error >= MAX_ERRORS
        after = "; it is disabled now" if stats.disabled else ""
        text = f"hook raised {stats.last_error} ({stats.num_error} of {MAX_ERRORS}){after}"
        logger.debug("hook %s failed", entry.hook.name, exc_info=error)
        self.tell(Alert(text, Severity.WARNING, entry.hook.name, context.layer, context.step))
        return stats.last_error
