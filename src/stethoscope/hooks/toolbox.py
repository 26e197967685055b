"""What hooks may use, and how each condition is judged and each action carried out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stethoscope.hooks.alerts import Alert, LoggingSink, Sink, TerminalSink
from stethoscope.hooks.pause import Pauser
from stethoscope.hooks.rules import (
    TENSOR_ACTIONS,
    ActionKind,
    Callback,
    ConditionKind,
    Hook,
    HookAction,
    HookCondition,
    HookContext,
    Predicate,
)
from stethoscope.hooks.snapshot import save_snapshot
from stethoscope.instruments.memory import memory_in_use_bytes
from stethoscope.instruments.rows import measure_rows
from stethoscope.kernels import COLUMNS
from stethoscope.record import ConfigError, Severity, StopTraining

if TYPE_CHECKING:
    from stethoscope.instruments.gradient_debugger import GradientDebugger
    from stethoscope.instruments.inspector import TensorInspector

MAX_ACTIVATIONS: Final = 100

logger = logging.getLogger("stethoscope.hooks")


@dataclass(frozen=True, slots=True)
class ActivationRecord:
    """The statistics of one tensor that `RecordActivations` saw."""

    step: int
    is_forward: bool
    shape: tuple[int, ...]
    stats: dict[str, float]


class CannotAct(Exception):  # noqa: N818 - a reason, not an error
    """An action that cannot be carried out here, and why; no fault of the hook."""


class Toolbox:
    """An inspector, a gradient debugger, sinks for alerts, a way to pause, functions known by name."""

    def __init__(
        self,
        *,
        inspector: TensorInspector | None = None,
        gradient_debugger: GradientDebugger | None = None,
        sinks: Iterable[Sink] | None = None,
        pauser: Pauser | None = None,
    ) -> None:
        self.sinks: list[Sink] = [TerminalSink(), LoggingSink()] if sinks is None else list(sinks)
        self.pauser = pauser or Pauser()
        self.num_sink_errors = 0
        self.activations: dict[str, deque[ActivationRecord]] = {}
        self._inspector, self._gradient_debugger = inspector, gradient_debugger
        self._callbacks: dict[str, Callback] = {}
        self._conditions: dict[str, Predicate] = {}

    def register_callback(self, name: str, callback: Callback) -> None:
        """Makes a function known by name to `HookAction.CustomCallback(name)`."""
        self._callbacks[name] = callback

    def register_condition(self, name: str, predicate: Predicate) -> None:
        """Makes a function known by name to `HookCondition.Custom(name)`."""
        self._conditions[name] = predicate

    def holds(self, condition: HookCondition, context: HookContext) -> bool:
        """Whether a condition holds here; one whose value is not known does not."""
        kind = condition.kind
        if kind is ConditionKind.STEP_RANGE:
            return condition.first_step <= context.step <= condition.last_step
        if kind is ConditionKind.CUSTOM:
            return bool(self._named(condition.predicate, self._conditions, "condition")(context))
        value = self._value(kind, context)
        return value is not None and condition.comparison.holds(value, condition.threshold)

    @staticmethod
    def _value(kind: ConditionKind, context: HookContext) -> float | None:
        if kind is ConditionKind.LOSS_THRESHOLD:
            return context.loss
        if kind is ConditionKind.GRADIENT_NORM_THRESHOLD:
            if context.gradient_norm is not None or context.is_forward or context.data is None:
                return context.gradient_norm
            row = measure_rows([context.data], [context.layer])[0]
            stats = dict(zip(COLUMNS, row.tolist(), strict=True))
            return (
                float("nan")
                if stats["num_nan"] + stats["num_posinf"] + stats["num_neginf"]
                else stats["norm"]
            )
        if context.memory_mb is not None:
            return context.memory_mb
        used = memory_in_use_bytes()
        return None if used is None else used / 1e6

    @staticmethod
    def _named(given: Any, known: dict[str, Any], what: str) -> Callable[[HookContext], Any]:
        if isinstance(given, str):
            if given not in known:
                raise ConfigError(
                    f"no {what} named {given!r}", do=f"Call register_{what}({given!r}, function) first"
                )
            given = known[given]
        if not callable(given):
            raise ConfigError(f"the {what} cannot be called", where=given)
        function: Callable[[HookContext], Any] = given
        return function

    def act(self, hook: Hook, context: HookContext) -> tuple[list[Any], list[str]]:
        """Carries out every action; what the actions gave back, and why some were skipped."""
        values, skipped = [], []
        error: Exception | None = None
        for action in hook.actions:
            try:
                values.append(self._carry_out(action, hook, context))
            except CannotAct as reason:
                skipped.append(str(reason))
            except StopTraining:
                raise
            except Exception as raised:
                error = error or raised  # the other actions still get their turn
        if error is not None:
            raise error
        return values, skipped

    def _carry_out(self, action: HookAction, hook: Hook, context: HookContext) -> Any:
        kind = action.kind
        if kind in TENSOR_ACTIONS:
            if context.data is None:
                raise CannotAct(f"{kind}: no tensor at hand")
            return self._on_tensor(action, hook, context)
        if kind is ActionKind.ALERT:
            alert = Alert(
                _fill(action.message, context), action.severity, hook.name, context.layer, context.step
            )
            self.tell(alert)
            return alert
        if kind is ActionKind.CUSTOM_CALLBACK:
            return self._named(action.callback, self._callbacks, "callback")(context)
        return self._pause(kind, hook, context)

    def _on_tensor(self, action: HookAction, hook: Hook, context: HookContext) -> Any:
        name, tensor = context.layer or hook.name, context.tensor
        if action.kind is ActionKind.INSPECT_TENSOR:
            operation = "forward" if context.is_forward else "backward"
            return self.inspector.inspect_tensor(tensor, name, context.layer, operation, step=context.step)
        if action.kind is ActionKind.TRACK_GRADIENTS:
            if context.is_forward:
                raise CannotAct("TrackGradients: this is a forward pass")
            return self.gradient_debugger.record_gradient_flow(name, tensor, step=context.step)
        if action.kind is ActionKind.RECORD_ACTIVATIONS:
            row = measure_rows([tensor], [name])[0]
            shape = tuple(int(n) for n in getattr(tensor, "shape", (len(row),)))
            record = ActivationRecord(
                context.step, context.is_forward, shape, dict(zip(COLUMNS, row.tolist(), strict=True))
            )
            self.activations.setdefault(name, deque(maxlen=MAX_ACTIVATIONS)).append(record)
            return record
        return save_snapshot(action.path or Path(), context, hook.name)

    def _pause(self, kind: ActionKind, hook: Hook, context: HookContext) -> str:
        reason = f"hook {hook.name!r} at step {context.step:,}"
        refusal = self.pauser.refusal(waits=kind is ActionKind.PAUSE_TRAINING)
        if refusal:
            text = f"not paused, because {refusal}"
            self.tell(Alert(text, Severity.WARNING, hook.name, context.layer, context.step))
            raise CannotAct(text)
        if kind is ActionKind.STOP_TRAINING:
            raise StopTraining(reason)
        return self.pauser.wait(reason)

    @property
    def inspector(self) -> TensorInspector:
        """What `InspectTensor` writes to."""
        if self._inspector is None:
            from stethoscope.instruments.inspector import TensorInspector

            self._inspector = TensorInspector()
        return self._inspector

    @inspector.setter
    def inspector(self, inspector: TensorInspector) -> None:
        self._inspector = inspector

    @property
    def gradient_debugger(self) -> GradientDebugger:
        """What `TrackGradients` writes to."""
        if self._gradient_debugger is None:
            from stethoscope.instruments.gradient_debugger import GradientDebugger

            self._gradient_debugger = GradientDebugger()
        return self._gradient_debugger

    @gradient_debugger.setter
    def gradient_debugger(self, debugger: GradientDebugger) -> None:
        self._gradient_debugger = debugger

    def tell(self, alert: Alert) -> None:
        """Hands an alert to every sink; one that fails is counted and the others still hear it."""
        for sink in list(self.sinks):
            try:
                sink(alert)
            except Exception as error:
                self.num_sink_errors += 1
                logger.debug("alert sink failed: %s", error)


def _fill(message: str, context: HookContext) -> str:
    """The message with what is known filled in; braces that name nothing stay as they are."""
    known = {
        "step": context.step,
        "layer": context.layer,
        "loss": context.loss,
        "gradient_norm": context.gradient_norm,
        "memory_mb": context.memory_mb,
    }
    for name, value in known.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        message = message.replace("{" + name + "}", text)
    return message
