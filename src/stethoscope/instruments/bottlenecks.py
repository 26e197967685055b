"""From recorded times to bottlenecks: eight kinds, each with its numbers and what to do.

A layer is one above 100 ms on average (High above 500), an operation above 10 ms (High above 50), as in the
seeds. Loading, waiting and memory count by their share as well: a loader that takes a fifth of all time is
one at any speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stethoscope.instruments.profiler import LayerProfile, Totals

LAYER_MS: Final = 100.0
LAYER_HIGH_MS: Final = 500.0
OPERATION_MS: Final = 10.0
OPERATION_HIGH_MS: Final = 50.0
WAITING_SHARE: Final = 0.2
MEMORY_SHARE: Final = 0.9


class BottleneckType(StrEnum):
    """What training waits for."""

    CPU_BOUND = "CpuBound"
    MEMORY_BOUND = "MemoryBound"
    IO_BOUND = "IoBound"
    GPU_BOUND = "GpuBound"
    NETWORK_BOUND = "NetworkBound"
    DATA_LOADING = "DataLoading"
    MODEL_COMPUTATION = "ModelComputation"
    GRADIENT_COMPUTATION = "GradientComputation"


class BottleneckSeverity(StrEnum):
    """How much it costs."""

    MEDIUM = "Medium"
    HIGH = "High"


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """One thing that holds training up."""

    type: BottleneckType
    severity: BottleneckSeverity
    location: str
    message: str
    suggestion: str
    mean_ms: float | None = None
    total_s: float = 0.0


OPERATION_TYPES: Final = {
    "operation": BottleneckType.CPU_BOUND,
    "cpu": BottleneckType.CPU_BOUND,
    "gpu": BottleneckType.GPU_BOUND,
    "memory": BottleneckType.MEMORY_BOUND,
    "io": BottleneckType.IO_BOUND,
    "network": BottleneckType.NETWORK_BOUND,
    "data_loading": BottleneckType.DATA_LOADING,
    "forward": BottleneckType.MODEL_COMPUTATION,
    "backward": BottleneckType.GRADIENT_COMPUTATION,
}
PHASE: Final = "phase"
WAITING: Final = frozenset({"data_loading", "io", "network"})

SUGGESTIONS: Final = {
    BottleneckType.CPU_BOUND: "Vectorise the operation, move it to the device, or run it in a worker",
    BottleneckType.MEMORY_BOUND: "Use a smaller batch, activation checkpointing or mixed precision",
    BottleneckType.IO_BOUND: "Read less often or ahead of time, from a faster disk or a packed format",
    BottleneckType.GPU_BOUND: "Use mixed precision, torch.compile or fused kernels",
    BottleneckType.NETWORK_BOUND: "Overlap communication with backward, or accumulate gradients",
    BottleneckType.DATA_LOADING: "Raise DataLoader(num_workers=..., pin_memory=True, prefetch_factor=...)",
    BottleneckType.MODEL_COMPUTATION: "Compile or split the layer, or lower its width",
    BottleneckType.GRADIENT_COMPUTATION: "Freeze what need not learn, or use torch.compile",
}


def find_bottlenecks(
    *,
    layers: Sequence[LayerProfile],
    totals: Sequence[Totals],
    memory_used_bytes: int | None = None,
    memory_total_bytes: int | None = None,
) -> list[Bottleneck]:
    """Every bottleneck in what was recorded, the one that cost most time first."""
    found = [*_of_layers(layers), *_of_operations(totals)]
    found.sort(key=lambda bottleneck: -bottleneck.total_s)
    if memory_used_bytes and memory_total_bytes and memory_used_bytes > MEMORY_SHARE * memory_total_bytes:
        share = memory_used_bytes / memory_total_bytes
        text = f"{100 * share:.0f}% of the memory was in use"
        severity = BottleneckSeverity.HIGH if share > 0.97 else BottleneckSeverity.MEDIUM
        kind = BottleneckType.MEMORY_BOUND
        found.append(Bottleneck(kind, severity, "memory", text, SUGGESTIONS[kind]))
    return found


def _of_layers(layers: Sequence[LayerProfile]) -> list[Bottleneck]:
    found = []
    for layer in layers:
        passes = (
            (BottleneckType.MODEL_COMPUTATION, "forward", layer.mean_forward_s, layer.forward_s),
            (BottleneckType.GRADIENT_COMPUTATION, "backward", layer.mean_backward_s, layer.backward_s),
        )
        for kind, word, mean_s, total_s in passes:
            mean_ms = 1e3 * mean_s
            if mean_ms > LAYER_MS:
                severity = BottleneckSeverity.HIGH if mean_ms > LAYER_HIGH_MS else BottleneckSeverity.MEDIUM
                text = f"the {word} pass of {layer.name} ({layer.type}) takes {_shown(mean_ms)} ms"
                found.append(Bottleneck(kind, severity, layer.name, text, SUGGESTIONS[kind], mean_ms, total_s))
    return found


def _of_operations(totals: Sequence[Totals]) -> list[Bottleneck]:
    whole_s = sum(entry.self_s for entry in totals)
    found = []
    for entry in totals:
        if entry.category == PHASE:  # the training itself: its layers are judged, and what it waits for
            continue
        kind = OPERATION_TYPES[entry.category]
        mean_ms = 1e3 * entry.self_s / entry.count
        share = entry.self_s / whole_s if whole_s > 0 else 0.0
        waits = entry.category in WAITING and share > WAITING_SHARE and len(totals) > 1
        if mean_ms <= OPERATION_MS and not waits:
            continue
        high = mean_ms > OPERATION_HIGH_MS or (waits and share > 0.5)
        severity = BottleneckSeverity.HIGH if high else BottleneckSeverity.MEDIUM
        text = f"{entry.name} takes {_shown(mean_ms)} ms, {100 * share:.0f}% of the measured time"
        found.append(Bottleneck(kind, severity, entry.name, text, SUGGESTIONS[kind], mean_ms, entry.self_s))
    return found


def _shown(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"
