"""Events as sentences for the log: what happened, in words; the fields of an event only where no sentence is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from stethoscope.store import Event
from stethoscope.views.common import numbers
from stethoscope.views.pagedata.packing import plain, text

Body = Mapping[str, Any]
_PARTS: Final = {
    "boundary": "gradients, weights and updates",
    "modules": "outputs",
    "units": "units and attention",
    "histograms": "distributions",
    "batches": "batches",
}


def event_message(event: Event, before: Event | None) -> tuple[str, str]:
    """A sentence, and what stands small under it; `before` is the event of the same kind before this one."""
    told = _MESSAGES.get(event.kind)
    if told is None:
        return text(event.kind.replace("_", " ").capitalize(), 120), _fields(event.body)
    words = told(event.body, before.body if before is not None else {})
    return text(words, 400), ""


def says_something(event: Event, before: Event | None) -> bool:
    """Whether an event tells more than the one before it did."""
    return before is None or event.kind in _EACH_COUNTS or event.body != before.body


def _fields(body: Body) -> str:
    """Names and values, one after the other."""
    parts = [f"{str(key).replace('_', ' ')} {_short(value)}" for key, value in list(body.items())[:12]]
    return text(", ".join(parts), 300)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return numbers.number(value)
    if isinstance(value, Mapping):
        return f"({_fields(value)})"
    if isinstance(value, list | tuple):
        return ", ".join(_short(item) for item in value[:5]) + (" and more" if len(value) > 5 else "")
    return str(plain(value, 120))


def _often(every: int) -> str:
    return "at every step" if every == 1 else f"every {numbers.count(every)} steps"


def _governor(body: Body, before: Body) -> str:
    now, was = body.get("every") or {}, before.get("every") or {}
    parts = {part: every for part, every in now.items() if isinstance(every, int) and was.get(part, 1) != every}
    rarer = [f"{_PARTS.get(p, p)} {_often(every)}" for p, every in parts.items() if every > was.get(p, 1)]
    oftener = [f"{_PARTS.get(p, p)} {_often(every)}" for p, every in parts.items() if every < was.get(p, 1)]
    told = [f"less often, to stay within its budget: {', '.join(rarer)}"] if rarer else []
    told += [f"more often: {', '.join(oftener)}"] if oftener else []
    return f"Recording looks {'; '.join(told)}" if told else "Recording looks as often as before"


def _modes(body: Body, _: Body) -> str:
    evaluating = list(body.get("evaluating") or ())
    if not body.get("training", True):
        return "The model is called in evaluation mode while it trains"
    some = f", {_listed(evaluating)} in evaluation mode" if evaluating else ""
    return f"The model trains in training mode{some}"


def _listed(names: list[Any], most: int = 3) -> str:
    rest = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {numbers.count(rest)} more" if rest > 0 else "")


def _checkup(body: Body, _: Body) -> str:
    amount = numbers.plural(int(body.get("num_experiments") or 0), "experiment")
    wrong = sum(one.get("severity") != "Info" for one in body.get("findings") or () if isinstance(one, Mapping))
    return (
        f"The checkup before training, {amount}, found {numbers.plural(wrong, 'fault') if wrong else 'nothing wrong'}"
    )


def _skipped(body: Body, _: Body) -> str:
    scale = body.get("scale")
    at = f", loss scale {numbers.number(float(scale))}" if isinstance(scale, int | float) else ""
    return f"The scaler skipped the optimizer's step{at}, {numbers.plural(int(body.get('times') or 1), 'time')} so far"


def _discarded(body: Body, _: Body) -> str:
    return f"Gradients were cleared without a step, {numbers.plural(int(body.get('times') or 1), 'time')} so far"


def _backward(body: Body, _: Body) -> str:
    by = f" of {body['by']}" if body.get("by") else ""
    over = f" over {numbers.count(int(body['num_targets']))} targets" if body.get("num_targets") else ""
    factor = float(body.get("factor") or 1.0)
    scaled = f", multiplied by {numbers.number(factor)}" if factor != 1.0 else ""
    return f"The backward pass starts from the result{by}{over}{scaled}"


def _alive(body: Body, _: Body) -> str:
    lines = list(body.get("lines") or ())
    where = f", made at {_listed(lines)}" if lines else ""
    return f"{numbers.plural(int(body.get('count') or 0), 'graph')} of earlier losses are still alive{where}"


def _continued(body: Body, _: Body) -> str:
    if body.get("how") == "beside":
        return f"Recording starts while {body.get('other') or 'another process'} writes to this run too"
    return "Another training starts in this run" if body.get("how") == "fresh" else "The run is resumed"


_MESSAGES: Final[dict[str, Callable[[Body, Body], str]]] = {
    "governor": _governor,
    "modes": _modes,
    "checkup": _checkup,
    "skipped_step": _skipped,
    "gradients_discarded": _discarded,
    "backward": _backward,
    "graphs_alive": _alive,
    "replicas": lambda body, _: f"The model is replicated by {body.get('wrapper') or 'a wrapper unknown'}",
    "capture_error": lambda body, _: f"One step could not be recorded: {body.get('error', '')}",
    "leak": lambda body, _: str(body.get("text") or f"Memory grows at {body.get('place', 'a place unknown')}"),
    "eval_begin": lambda body, _: (
        "Evaluation begins"
        + (f", {_listed(list(body.get('training') or ()))} in training mode" if body.get("num_training") else "")
    ),
    "continuation": _continued,
    "eval_end": lambda _body, _: "Evaluation ends",
    "eval_forward": lambda body, _: f"{_listed(list(body.get('in_training') or ()))} in training mode while evaluating",
}
_EACH_COUNTS: Final = frozenset(
    {"skipped_step", "gradients_discarded", "eval_begin", "eval_end", "capture_error", "leak"}
)
