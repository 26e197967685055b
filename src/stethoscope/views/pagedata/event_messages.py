"""Events as sentences for the log: what happened, in words; the fields of an event only where no sentence is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from stethoscope.record import Severity, events, name_list, plural
from stethoscope.store import Event
from stethoscope.views.common import numbers
from stethoscope.views.pagedata.packing import plain, text

_PARTS: Final = {
    "boundary": "gradients, weights and updates",
    "modules": "outputs",
    "units": "per-unit and attention statistics",
    "histograms": "distributions",
    "batches": "batches",
}


def event_message(event: Event, before: Event | None) -> tuple[str, str]:
    """A sentence, and what stands small under it; `before` is the event of the same kind before this one."""
    told = _MESSAGES.get(event.kind)
    if told is None:
        return text(event.kind.replace("_", " ").capitalize(), 120), _fields_text(event.body)
    return text(told(event.typed, before.typed if before is not None else None), 400), ""


def says_something(event: Event, before: Event | None) -> bool:
    """Whether an event tells more than the one before it did."""
    return before is None or event.kind in _EACH_COUNTS or event.body != before.body


def _fields_text(body: Mapping[str, Any]) -> str:
    """Names and values, one after the other."""
    parts = [f"{str(key).replace('_', ' ')} {_value_text(value)}" for key, value in list(body.items())[:12]]
    return text(", ".join(parts), 300)


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return numbers.number(value)
    if isinstance(value, Mapping):
        return f"({_fields_text(value)})"
    if isinstance(value, list | tuple):
        return ", ".join(_value_text(item) for item in value[:5]) + (" and more" if len(value) > 5 else "")
    return str(plain(value, 120))


def _interval_text(every: int) -> str:
    return "at every step" if every == 1 else f"every {numbers.count(every)} steps"


def _governor(said: events.Governor, before: events.Governor | None) -> str:
    was = before.every if before is not None else {}
    parts = {part: every for part, every in said.every.items() if was.get(part, 1) != every}
    rarer = [f"{_PARTS.get(p, p)} {_interval_text(every)}" for p, every in parts.items() if every > was.get(p, 1)]
    oftener = [f"{_PARTS.get(p, p)} {_interval_text(every)}" for p, every in parts.items() if every < was.get(p, 1)]
    told = [f"Sampling reduced to keep overhead low: {', '.join(rarer)}"] if rarer else []
    told += [f"Sampling increased: {', '.join(oftener)}"] if oftener else []
    return ". ".join(told) or "Sampling as before"


def _modes(said: events.Modes, _: object) -> str:
    if not said.training:
        return "The model is trained while in eval() mode"
    some = f", {name_list(said.evaluating)} in eval() mode" if said.evaluating else ""
    return f"The model trains in train() mode{some}"


def _checkup(said: events.Checkup, _: object) -> str:
    amount = plural(said.num_experiments, "experiment")
    wrong = sum(finding.get("severity") != Severity.INFO for finding in said.findings)
    return f"The checkup before training, {amount}, found {plural(wrong, 'fault') if wrong else 'nothing wrong'}"


def _skipped(said: events.SkippedStep, _: object) -> str:
    at = f", loss scale {numbers.number(said.scale)}" if said.scale is not None else ""
    return f"The scaler skipped the optimizer's step{at}, {plural(said.times or 1, 'time')} so far"


def _discarded(said: events.GradientsDiscarded, _: object) -> str:
    return f"Gradients were cleared without a step, {plural(said.times or 1, 'time')} so far"


def _backward(said: events.Backward, _: object) -> str:
    by = f" of {said.by}" if said.by else ""
    over = f" over {numbers.count(int(said.num_targets))} targets" if said.num_targets >= 1 else ""
    scaled = f", multiplied by {numbers.number(said.factor)}" if abs(said.factor) not in (0.0, 1.0) else ""
    return f"The backward pass starts from the result{by}{over}{scaled}"


def _alive(said: events.GraphsAlive, _: object) -> str:
    where = f", made at {name_list(said.lines)}" if said.lines else ""
    return f"{plural(said.count, 'graph')} of earlier losses are still alive{where}"


def _continued(said: events.Continuation, _: object) -> str:
    if said.how == "beside":
        return f"Recording starts while {said.other or 'another process'} writes to this run too"
    return "Another training starts in this run" if said.how == "fresh" else "The run is resumed"


def _eval_begin(said: events.EvalBegin, _: object) -> str:
    if not said.num_training:
        return "Evaluation starts"
    named = [name for name in said.training if name]
    if len(named) < len(said.training):  # the root itself
        return "Evaluation starts while the model is still in train() mode"
    return (
        f"Evaluation starts while {name_list(named)} {'is' if said.num_training == 1 else 'are'} still in train() mode"
    )


def _eval_forward(said: events.EvalForward, _: object) -> str:
    return f"{name_list([name or 'the model' for name in said.in_training])} in train() mode while evaluating"


_MESSAGES: Final[dict[str, Callable[[Any, Any], str]]] = {
    events.Governor.KIND: _governor,
    events.Modes.KIND: _modes,
    events.Checkup.KIND: _checkup,
    events.SkippedStep.KIND: _skipped,
    events.GradientsDiscarded.KIND: _discarded,
    events.Backward.KIND: _backward,
    events.GraphsAlive.KIND: _alive,
    events.Replicas.KIND: lambda said, _: f"The model is replicated by {said.wrapper or 'a wrapper unknown'}",
    events.CaptureError.KIND: lambda said, _: f"One step could not be recorded: {said.error}",
    events.Leak.KIND: lambda said, _: said.text or f"Memory grows at {said.location or 'an unknown line'}",
    events.EvalBegin.KIND: _eval_begin,
    events.Continuation.KIND: _continued,
    events.EvalEnd.KIND: lambda _said, _: "Evaluation ends",
    events.EvalForward.KIND: _eval_forward,
}
_EACH_COUNTS: Final = frozenset(
    kind.KIND
    for kind in (
        events.SkippedStep,
        events.GradientsDiscarded,
        events.EvalBegin,
        events.EvalEnd,
        events.CaptureError,
        events.Leak,
    )
)
