"""From what a session recorded to the Profiler: every step's time by parts, layers at the steps that were timed.

Times come from the step's named numbers; nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stethoscope.instruments.profiler import Profiler

PARTS: Final = (
    ("data_ms", "waiting for data", "data_loading"),
    ("forward_ms", "forward", "phase"),
    ("backward_ms", "backward", "phase"),
    ("optimizer_ms", "optimizer", "phase"),
    ("overhead_ms", "stethoscope", "operation"),
)
"""The step's parts in the order in which they come: its named number, what it is called, its category."""
WHOLE: Final = "step"


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One execution of one module, its own code only: what its children take is theirs."""

    name: str
    type: str
    forward_s: float
    backward_s: float | None
    output_bytes: int
    parameter_count: int


def step_into(profiler: Profiler, values: Mapping[str, float], ended_s: float) -> None:
    """One step as an event with its parts inside it."""
    took_s = values["step_ms"] / 1e3
    at, inside_s = ended_s - took_s, 0.0
    for name, title, category in PARTS:
        part_ms = values.get(name)
        if part_ms is None or not part_ms >= 0:
            continue
        part_s = min(part_ms / 1e3, max(took_s - inside_s, 0.0))
        profiler.record_part(title, category, at + inside_s, part_s, WHOLE)
        inside_s += part_s
    profiler.record_part(WHOLE, "phase", at, took_s, "", inside_s=inside_s)


def layers_into(profiler: Profiler, times: list[LayerTime]) -> None:
    """The layers of one step that was timed."""
    for time in times:
        profiler.record_layer_execution(
            time.name, time.type, time.forward_s, time.backward_s, time.output_bytes, time.parameter_count
        )
