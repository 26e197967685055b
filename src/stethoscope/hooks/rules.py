"""Hooks as plain data: triggers, conditions, actions, and the builder that puts them together.

Names follow the seeds: `HookTrigger.EveryNSteps(10)`, `HookCondition.LossThreshold(5.0)`,
`HookAction.Alert("...")`. Nothing here runs anything; `manager` does.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from stethoscope.record import ConfigError, Severity

Passes = Literal["both", "forward", "backward"]

AlertSeverity = Severity
"""The seeds' name for `Severity`."""


class TriggerKind(StrEnum):
    """When a hook is considered."""

    EVERY_FORWARD = "EveryForward"
    EVERY_BACKWARD = "EveryBackward"
    EVERY_N_STEPS = "EveryNSteps"
    CONDITIONAL = "Conditional"
    ONCE = "Once"
    LAYER_SPECIFIC = "LayerSpecific"


class ConditionKind(StrEnum):
    """What a condition looks at."""

    LOSS_THRESHOLD = "LossThreshold"
    GRADIENT_NORM_THRESHOLD = "GradientNormThreshold"
    MEMORY_THRESHOLD = "MemoryThreshold"
    STEP_RANGE = "StepRange"
    CUSTOM = "Custom"


class ActionKind(StrEnum):
    """What a hook does."""

    INSPECT_TENSOR = "InspectTensor"
    TRACK_GRADIENTS = "TrackGradients"
    RECORD_ACTIVATIONS = "RecordActivations"
    SAVE_SNAPSHOT = "SaveSnapshot"
    ALERT = "Alert"
    CUSTOM_CALLBACK = "CustomCallback"
    PAUSE_TRAINING = "PauseTraining"
    STOP_TRAINING = "StopTraining"


class HookStatus(StrEnum):
    """How a hook's execution ended."""

    SUCCESS = "Success"
    ERROR = "Error"
    SKIPPED = "Skipped"


class Comparison(StrEnum):
    """How a value is held against a threshold."""

    GREATER = ">"
    LESS = "<"
    EQUAL = "=="
    GREATER_EQUAL = ">="
    LESS_EQUAL = "<="

    def holds(self, value: float, threshold: float) -> bool:
        """Whether `value <comparison> threshold`; a NaN counts as larger than anything: it has run away."""
        if math.isnan(value):
            return self in (Comparison.GREATER, Comparison.GREATER_EQUAL)
        return _OPERATORS[self](value, threshold)


_OPERATORS: Final[dict[Comparison, Callable[[float, float], bool]]] = {
    Comparison.GREATER: operator.gt,
    Comparison.LESS: operator.lt,
    Comparison.EQUAL: operator.eq,
    Comparison.GREATER_EQUAL: operator.ge,
    Comparison.LESS_EQUAL: operator.le,
}


@dataclass(slots=True)
class HookContext:
    """What a hook sees: where and when it runs, and what is known of training there."""

    layer: str = ""
    data: Any = None
    """The tensor at hand, or None at the end of a step."""
    shape: tuple[int, ...] | None = None
    is_forward: bool = True
    step: int = 0
    loss: float | None = None
    gradient_norm: float | None = None
    memory_mb: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def tensor(self) -> Any:
        """The data in its shape: flat lists and arrays are reshaped where the numbers fit."""
        if self.data is None or self.shape is None:
            return self.data
        if tuple(getattr(self.data, "shape", ())) == tuple(self.shape) and hasattr(self.data, "shape"):
            return self.data
        if callable(getattr(self.data, "reshape", None)):
            return self.data.reshape(tuple(self.shape))
        import numpy as np

        array = np.asarray(self.data)
        return array.reshape(self.shape) if array.size == math.prod(self.shape) else array


Predicate = Callable[[HookContext], bool]
Callback = Callable[[HookContext], Any]


@dataclass(frozen=True, slots=True)
class HookCondition:
    """Something that holds or does not at a moment of training; made by the named constructors."""

    kind: ConditionKind
    threshold: float = 0.0
    comparison: Comparison = Comparison.GREATER
    first_step: int = 0
    last_step: int = 0
    predicate: Predicate | str | None = None

    @staticmethod
    def LossThreshold(threshold: float, comparison: Comparison | str = ">") -> HookCondition:  # noqa: N802
        """The loss against a number; does not hold while no loss is known."""
        return HookCondition(ConditionKind.LOSS_THRESHOLD, float(threshold), _comparison(comparison))

    @staticmethod
    def GradientNormThreshold(threshold: float, comparison: Comparison | str = ">") -> HookCondition:  # noqa: N802
        """The gradient norm against a number: of the whole model where known, else of the gradient at
        hand."""
        return HookCondition(ConditionKind.GRADIENT_NORM_THRESHOLD, float(threshold), _comparison(comparison))

    @staticmethod
    def MemoryThreshold(megabytes: float) -> HookCondition:  # noqa: N802
        """Memory in use above this many MB: the device's where there is one, else the process's."""
        return HookCondition(ConditionKind.MEMORY_THRESHOLD, float(megabytes))

    @staticmethod
    def StepRange(first: int, last: int) -> HookCondition:  # noqa: N802
        """Steps from `first` to `last`, both included."""
        if last < first:
            raise ConfigError(f"StepRange({first}, {last}) is empty", do="Give the smaller step first")
        return HookCondition(ConditionKind.STEP_RANGE, first_step=int(first), last_step=int(last))

    @staticmethod
    def Custom(predicate: Predicate | str) -> HookCondition:  # noqa: N802
        """A function of the context, or the name under which one was registered."""
        return HookCondition(ConditionKind.CUSTOM, predicate=predicate)


@dataclass(frozen=True, slots=True)
class HookTrigger:
    """When a hook runs; made by the named constructors."""

    kind: TriggerKind
    every: int = 1
    condition: HookCondition | None = None
    layers: frozenset[str] = frozenset()

    EveryForward: ClassVar[HookTrigger]
    EveryBackward: ClassVar[HookTrigger]
    Once: ClassVar[HookTrigger]

    @staticmethod
    def EveryNSteps(n: int) -> HookTrigger:  # noqa: N802
        """At steps divisible by n."""
        if n < 1:
            raise ConfigError(f"EveryNSteps({n}) never comes", do="Use 1 or more")
        return HookTrigger(TriggerKind.EVERY_N_STEPS, every=int(n))

    @staticmethod
    def Conditional(condition: HookCondition) -> HookTrigger:  # noqa: N802
        """Whenever a condition holds."""
        return HookTrigger(TriggerKind.CONDITIONAL, condition=condition)

    @staticmethod
    def LayerSpecific(names: Iterable[str]) -> HookTrigger:  # noqa: N802
        """At these layers, by their exact names."""
        names = [names] if isinstance(names, str) else names
        return HookTrigger(TriggerKind.LAYER_SPECIFIC, layers=frozenset(names))


HookTrigger.EveryForward = HookTrigger(TriggerKind.EVERY_FORWARD)
HookTrigger.EveryBackward = HookTrigger(TriggerKind.EVERY_BACKWARD)
HookTrigger.Once = HookTrigger(TriggerKind.ONCE)

TENSOR_ACTIONS: Final = frozenset(
    {
        ActionKind.INSPECT_TENSOR,
        ActionKind.TRACK_GRADIENTS,
        ActionKind.RECORD_ACTIVATIONS,
        ActionKind.SAVE_SNAPSHOT,
    }
)
"""Actions that need a tensor at hand."""


@dataclass(frozen=True, slots=True)
class HookAction:
    """What a hook does; made by the named constructors."""

    kind: ActionKind
    path: Path | None = None
    message: str = ""
    severity: Severity = Severity.INFO
    callback: Callback | str | None = None

    InspectTensor: ClassVar[HookAction]
    TrackGradients: ClassVar[HookAction]
    RecordActivations: ClassVar[HookAction]
    PauseTraining: ClassVar[HookAction]
    StopTraining: ClassVar[HookAction]

    @staticmethod
    def SaveSnapshot(path: str | Path) -> HookAction:  # noqa: N802
        """Writes the tensor as safetensors with a JSON beside it.

        A path that ends in `.safetensors` is that file, and a later snapshot replaces it; any other path is a
        folder that gets one pair of files for each step and layer.
        """
        return HookAction(ActionKind.SAVE_SNAPSHOT, path=Path(path))

    @staticmethod
    def Alert(message: str, severity: Severity | str = Severity.WARNING) -> HookAction:  # noqa: N802
        """Tells every sink; `{step}`, `{layer}`, `{loss}`, `{gradient_norm}`, `{memory_mb}` are filled in."""
        return HookAction(ActionKind.ALERT, message=message, severity=Severity(severity))

    @staticmethod
    def CustomCallback(callback: Callback | str) -> HookAction:  # noqa: N802
        """Calls a function with the context, or the one registered under this name."""
        return HookAction(ActionKind.CUSTOM_CALLBACK, callback=callback)


HookAction.InspectTensor = HookAction(ActionKind.INSPECT_TENSOR)
HookAction.TrackGradients = HookAction(ActionKind.TRACK_GRADIENTS)
HookAction.RecordActivations = HookAction(ActionKind.RECORD_ACTIVATIONS)
HookAction.PauseTraining = HookAction(ActionKind.PAUSE_TRAINING)
HookAction.StopTraining = HookAction(ActionKind.STOP_TRAINING)


@dataclass(frozen=True, slots=True)
class Hook:
    """A trigger, what to do, where, and how often at most."""

    name: str
    trigger: HookTrigger
    actions: tuple[HookAction, ...]
    layer_patterns: tuple[re.Pattern[str], ...] = ()
    max_executions: int | None = None
    enabled: bool = True
    passes: Passes = "both"
    """Which passes of a layer it sees; what speaks of the step alone sees none."""

    @property
    def once_per_step(self) -> bool:
        """Whether it speaks of the step and not of a layer, so that one execution per step is enough."""
        by_step = self.trigger.kind in (TriggerKind.EVERY_N_STEPS, TriggerKind.CONDITIONAL, TriggerKind.ONCE)
        return by_step and not self.layer_patterns and not any(a.kind in TENSOR_ACTIONS for a in self.actions)

    def speaks_of(self, layer: str) -> bool:
        """Whether it could ever run at this layer."""
        named = self.trigger.kind is not TriggerKind.LAYER_SPECIFIC or layer in self.trigger.layers
        return self.enabled and named and self.matches(layer)

    def matches(self, layer: str) -> bool:
        """Whether one of the patterns is found in the layer's name; no patterns match every layer."""
        return not self.layer_patterns or any(pattern.search(layer) for pattern in self.layer_patterns)


@dataclass(frozen=True, slots=True)
class HookResult:
    """What one execution of one hook came to."""

    hook_id: int
    hook_name: str
    status: HookStatus
    layer: str
    step: int
    message: str = ""
    values: tuple[Any, ...] = ()
    """What the actions gave back: a tensor's id, a snapshot's path, a callback's value."""


class HookBuilder:
    """Builds a hook step by step; each call returns the builder."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._trigger = HookTrigger.EveryForward
        self._actions: list[HookAction] = []
        self._patterns: list[re.Pattern[str]] = []
        self._max_executions: int | None = None
        self._enabled = True
        self._passes: Passes = "both"

    def trigger(self, trigger: HookTrigger) -> HookBuilder:
        """When it runs; EveryForward unless said."""
        self._trigger = trigger
        return self

    def action(self, action: HookAction) -> HookBuilder:
        """Adds one action."""
        self._actions.append(action)
        return self

    def actions(self, actions: Iterable[HookAction]) -> HookBuilder:
        """Adds several actions."""
        self._actions.extend(actions)
        return self

    def layer_patterns(self, patterns: Iterable[str]) -> HookBuilder:
        """Regular expressions, one of which must be found in the layer's name."""
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            try:
                self._patterns.append(re.compile(pattern))
            except re.error as error:
                raise ConfigError(f"{pattern!r} is no regular expression ({error})", where=self._name) from error
        return self

    def passes(self, passes: Passes) -> HookBuilder:
        """ "forward", "backward" or "both", the default: which passes of a layer it sees."""
        self._passes = passes
        return self

    def max_executions(self, n: int) -> HookBuilder:
        """How often it runs at most."""
        if n < 0:
            raise ConfigError(f"max_executions({n})", where=self._name, do="Use 0 or more")
        self._max_executions = n
        return self

    def enabled(self, enabled: bool) -> HookBuilder:
        """Whether it runs at all."""
        self._enabled = enabled
        return self

    def build(self) -> Hook:
        """The hook; it needs at least one action."""
        if not self._actions:
            raise ConfigError("a hook without an action does nothing", where=self._name, do="Add .action(...)")
        return Hook(
            name=self._name,
            trigger=self._trigger,
            actions=tuple(self._actions),
            layer_patterns=tuple(self._patterns),
            max_executions=self._max_executions,
            enabled=self._enabled,
            passes=self._passes,
        )


def _comparison(value: Comparison | str) -> Comparison:
    try:
        return Comparison(value)
    except ValueError as error:
        raise ConfigError(f"{value!r} is no comparison", do="Use >, <, ==, >= or <=") from error
