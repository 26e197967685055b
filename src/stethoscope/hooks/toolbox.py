"""What hooks may use, and how each condition is judged and each action carried out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from stethoscope.hooks.alerts import Alert, LoggingSink, Sink, TerminalSink
from stethoscope.hooks.memory import memory_in_use_bytes
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
from stethoscope.kernels import COLUMNS, measure
from stethoscope.record import ConfigError, Severity, StopTraining

MAX_RECORDS: Final = 100

logger = logging.getLogger("stethoscope.hooks")


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """The statistics of one tensor that a hook saw."""

    step: int
    is_forward: bool
    shape: tuple[int, ...]
    stats: dict[str, float]


class CannotAct(Exception):  # noqa: N818 - a reason, not an error
    """An action that cannot be carried out here, and why; no fault of the hook."""

    def __init__(self, why: str, *, told: bool = False) -> None:
        super().__init__(why)
        self.told = told
        """Whether an alert went out in its place."""


class Inspector(Protocol):
    """A `TensorInspector`, or anything that looks at tensors the same way."""

    def inspect_tensor(
        self,
        tensor: Any,
        name: str,
        layer: str | None = None,
        operation: str | None = None,
        *,
        step: int | None = None,
    ) -> int:
        """Inspects a tensor and returns the id of the inspection."""


class GradientRecorder(Protocol):
    """A `GradientDebugger`, or anything that takes gradients the same way."""

    def record_gradient_flow(self, layer: str, values: Any, *, step: int | None = None) -> Any:
        """Takes the gradient of a layer."""


class Toolbox:
    """An inspector, a gradient debugger, sinks for alerts, a way to pause, functions known by name."""

    def __init__(
        self,
        *,
        inspector: Inspector | None = None,
        gradient_debugger: GradientRecorder | None = None,
        sinks: Iterable[Sink] | None = None,
        pauser: Pauser | None = None,
        folder: Path | None = None,
    ) -> None:
        self.folder = folder
        """Where snapshots with a relative path go; the working directory without one."""
        self.sinks: list[Sink] = [TerminalSink(), LoggingSink()] if sinks is None else list(sinks)
        self.pauser = pauser or Pauser()
        self.num_sink_errors = 0
        self.inspector = inspector
        """What `InspectTensor` writes to; without one the statistics are kept in `looks`."""
        self.gradient_debugger = gradient_debugger
        """What `TrackGradients` writes to; without one the statistics are kept in `gradients`."""
        self.activations: dict[str, deque[TensorRecord]] = {}
        self.gradients: dict[str, deque[TensorRecord]] = {}
        self.looks: dict[str, deque[TensorRecord]] = {}
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
            return bool(self._named_function(condition.predicate, self._conditions, "condition")(context))
        value = self._condition_value(kind, context)
        return value is not None and condition.comparison.holds(value, condition.threshold)

    @staticmethod
    def _condition_value(kind: ConditionKind, context: HookContext) -> float | None:
        if kind is ConditionKind.LOSS_THRESHOLD:
            return context.loss
        if kind is ConditionKind.GRADIENT_NORM_THRESHOLD:
            if context.gradient_norm is not None or context.is_forward or context.data is None:
                return context.gradient_norm
            stats = _measure_tensor(context.data)
            bad = stats["num_nan"] + stats["num_posinf"] + stats["num_neginf"]
            return float("nan") if bad else stats["norm"]
        if context.memory_mb is not None:
            return context.memory_mb
        used = memory_in_use_bytes()
        return None if used is None else used / 1e6

    @staticmethod
    def _named_function(given: Any, known: dict[str, Any], what: str) -> Callable[[HookContext], Any]:
        if isinstance(given, str):
            if given not in known:
                raise ConfigError(f"no {what} named {given!r}", do=f"Call register_{what}({given!r}, function) first")
            given = known[given]
        if not callable(given):
            raise ConfigError(f"the {what} cannot be called", where=given)
        function: Callable[[HookContext], Any] = given
        return function

    def act(self, hook: Hook, context: HookContext) -> tuple[list[Any], list[CannotAct]]:
        """Carries out every action; what the actions gave back, and why some were skipped."""
        values, skipped = [], []
        error: Exception | None = None
        for action in hook.actions:
            try:
                values.append(self._carry_out(action, hook, context))
            except CannotAct as reason:
                skipped.append(reason)
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
                _fill_message(action.message, context), action.severity, hook.name, context.layer, context.step
            )
            self.tell(alert)
            return alert
        if kind is ActionKind.CUSTOM_CALLBACK:
            return self._named_function(action.callback, self._callbacks, "callback")(context)
        return self._pause_training(kind, hook, context)

    def _on_tensor(self, action: HookAction, hook: Hook, context: HookContext) -> Any:
        name, tensor = context.layer or hook.name, context.tensor
        if action.kind is ActionKind.INSPECT_TENSOR:
            if self.inspector is None:
                return _keep_statistics(self.looks, name, tensor, context)
            operation = "forward" if context.is_forward else "backward"
            return self.inspector.inspect_tensor(tensor, name, context.layer, operation, step=context.step)
        if action.kind is ActionKind.TRACK_GRADIENTS:
            if context.is_forward:
                raise CannotAct("TrackGradients: this is a forward pass")
            if self.gradient_debugger is None:
                return _keep_statistics(self.gradients, name, tensor, context)
            return self.gradient_debugger.record_gradient_flow(name, tensor, step=context.step)
        if action.kind is ActionKind.RECORD_ACTIVATIONS:
            return _keep_statistics(self.activations, name, tensor, context)
        return save_snapshot((self.folder or Path()) / (action.path or Path()), context, hook.name)

    def _pause_training(self, kind: ActionKind, hook: Hook, context: HookContext) -> str:
        reason = f"hook {hook.name!r} at step {context.step:,}"
        refusal = self.pauser.refusal(waits=kind is ActionKind.PAUSE_TRAINING)
        if refusal:
            text = f"not paused, because {refusal}"
            self.tell(Alert(text, Severity.WARNING, hook.name, context.layer, context.step))
            raise CannotAct(text, told=True)
        if kind is ActionKind.STOP_TRAINING:
            raise StopTraining(reason)
        return self.pauser.wait(reason)

    def tell(self, alert: Alert) -> None:
        """Hands an alert to every sink; one that fails is counted and the others still hear it."""
        for sink in list(self.sinks):
            try:
                sink(alert)
            except Exception as error:
                self.num_sink_errors += 1
                logger.debug("alert sink failed: %s", error)


def _measure_tensor(tensor: Any) -> dict[str, float]:
    return dict(zip(COLUMNS, measure([tensor])[0].tolist(), strict=True))


def _keep_statistics(
    book: dict[str, deque[TensorRecord]], name: str, tensor: Any, context: HookContext
) -> TensorRecord:
    """Keeps the statistics of a tensor under its layer's name: the last hundred of each."""
    shape = context.shape if context.shape is not None else tuple(getattr(tensor, "shape", ()))
    record = TensorRecord(context.step, context.is_forward, tuple(int(n) for n in shape), _measure_tensor(tensor))
    book.setdefault(name, deque(maxlen=MAX_RECORDS)).append(record)
    return record


def _fill_message(message: str, context: HookContext) -> str:
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
