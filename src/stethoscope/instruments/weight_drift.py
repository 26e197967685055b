"""Drift: how far each layer's weights moved between two checkpoints or steps.

A layer's drift d is the mean absolute difference of its weights. Layers are joined by name where both sides
have names, else by position. What has no partner of the same shape is listed, never guessed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stethoscope.instruments.array_input import NonFinite, as_floats, locate, named_arrays, shape_of
from stethoscope.instruments.rows import mean_within
from stethoscope.instruments.weight_types import LayerDrift, WeightDriftAnalysis, WeightDriftSeverity
from stethoscope.record import FloatArray

LEVELS = (
    (0.1, WeightDriftSeverity.HIGH),
    (0.05, WeightDriftSeverity.MEDIUM),
    (0.01, WeightDriftSeverity.LOW),
)


def analyze(before: Any, after: Any) -> WeightDriftAnalysis:
    """The drift of every layer both sides have, and of all of them together."""
    pairs, unmatched = _matched_layers(named_arrays(before), named_arrays(after))
    layers: list[LayerDrift] = []
    non_finite: list[NonFinite] = []
    for layer, first, second in pairs:
        label = layer if isinstance(layer, str) else f"layer {layer}"
        for value, when in ((first, "before"), (second, "after")):
            if (where := locate(value, f"{label} ({when})")) is not None:
                non_finite.append(where)
        layers.append(_layer_drift(layer, as_floats(first, label), as_floats(second, label)))
    if not layers:
        nothing = float("nan")
        return WeightDriftAnalysis(
            nothing, nothing, WeightDriftSeverity.UNKNOWN, [], unmatched=unmatched, note=_unmatched_note(0, unmatched)
        )
    drifts = np.array([layer.drift for layer in layers])
    mean = mean_within(drifts)
    severity = next((level for least, level in LEVELS if mean > least), WeightDriftSeverity.MINIMAL)
    return WeightDriftAnalysis(
        mean_drift=mean,
        max_drift=float(drifts.max(initial=0.0)),
        severity=WeightDriftSeverity.HIGH if non_finite else severity,
        affected_layers=[layer.layer for layer in layers if layer.drift > 2.0 * mean],
        layers=layers,
        unmatched=unmatched,
        non_finite=non_finite,
        note=_unmatched_note(len(layers), unmatched),
    )


def _unmatched_note(num_compared: int, unmatched: list[str]) -> str:
    if not unmatched:
        return "" if num_compared else "nothing was given to compare"
    shown = ", ".join(unmatched[:5]) + (f" and {len(unmatched) - 5:,} more" if len(unmatched) > 5 else "")
    known = num_compared + len(unmatched)
    said = f"of {known:,} layers {len(unmatched):,} not compared" if num_compared else "nothing could be compared"
    return f"{said}: in one of the two only, or of another shape: {shown}"


Named = tuple[list[str] | None, list[Any]]


def _matched_layers(before: Named, after: Named) -> tuple[list[tuple[int | str, Any, Any]], list[str]]:
    names_before, values_before = before
    names_after, values_after = after
    keys: list[int | str]
    if names_before is not None and names_after is not None:
        left: dict[int | str, Any] = dict(zip(names_before, values_before, strict=True))
        right: dict[int | str, Any] = dict(zip(names_after, values_after, strict=True))
    else:
        names = names_before or names_after
        count = max(len(values_before), len(values_after))
        keys = [names[i] if names and i < len(names) else i for i in range(count)]
        left = dict(zip(keys, values_before, strict=False))
        right = dict(zip(keys, values_after, strict=False))
    pairs, unmatched = [], []
    for key in [*left, *(key for key in right if key not in left)]:
        if key in left and key in right and shape_of(left[key]) == shape_of(right[key]):
            pairs.append((key, left[key], right[key]))
        else:
            unmatched.append(str(key))
    return pairs, unmatched


def _layer_drift(layer: int | str, before: FloatArray, after: FloatArray) -> LayerDrift:
    both = np.isfinite(before) & np.isfinite(after)
    change = after[both] - before[both]
    size = float(np.linalg.norm(before[both]))
    moved = float(np.linalg.norm(change))
    size_after = float(np.linalg.norm(after[both]))
    if size > 0:
        relative = moved / size
    else:
        relative = float("inf") if moved > 0 else 0.0
    cosine = float(before[both] @ after[both] / (size * size_after)) if size > 0 and size_after > 0 else None
    return LayerDrift(
        layer=layer,
        drift=mean_within(np.abs(change)),
        max_change=float(np.abs(change).max(initial=0.0)),
        relative=relative,
        cosine=cosine,
        num_changed=int((before != after).sum() - (np.isnan(before) & np.isnan(after)).sum()),
        num_elements=len(before),
    )
