"""The user's own rules: when this happens, do that.

    hook = (HookBuilder("Layer Monitor").trigger(HookTrigger.EveryForward).action(HookAction.InspectTensor)
            .layer_patterns(["attention.*"]).max_executions(100).build())
    hooks.register_hook(hook)

    @hooks.on(every=10, layers=r"attention\\..*")
    def look(context): ...

No hook can break training: what it raises is reported, and after three times it is disabled. Only a hook that
asks for `StopTraining` stops it.
"""

from stethoscope.hooks.alerts import Alert, EventSink, LoggingSink, TerminalSink, WebhookSink
from stethoscope.hooks.manager import HookManager, HookStats
from stethoscope.hooks.pause import Pauser
from stethoscope.hooks.rules import (
    ActionKind,
    AlertSeverity,
    Comparison,
    ConditionKind,
    Hook,
    HookAction,
    HookBuilder,
    HookCondition,
    HookContext,
    HookResult,
    HookStatus,
    HookTrigger,
    TriggerKind,
)
from stethoscope.hooks.toolbox import TensorRecord

__all__ = [
    "ActionKind",
    "Alert",
    "AlertSeverity",
    "Comparison",
    "ConditionKind",
    "EventSink",
    "Hook",
    "HookAction",
    "HookBuilder",
    "HookCondition",
    "HookContext",
    "HookManager",
    "HookResult",
    "HookStats",
    "HookStatus",
    "HookTrigger",
    "LoggingSink",
    "Pauser",
    "TensorRecord",
    "TerminalSink",
    "TriggerKind",
    "WebhookSink",
]
