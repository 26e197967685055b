"""Is the signal blown up or put out from layer to layer by the way the weights begin?

The gain of a layer is what comes out over what goes in. Right initialisations have gains of about 0.5 to 1.5; gains
before a normalisation do not matter; one layer alone may be wide on purpose. Flagged: several that multiply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import torch

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import WARNING, found
from stethoscope.checkup.observation import Layer, rms
from stethoscope.record import Finding, plural

MAX_GAIN: Final = 4.0
MIN_GAIN: Final = 0.03
MIN_LAYERS: Final = 2
MULTIPLYING: Final = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


def examine(exam: Examination) -> Iterator[Finding]:
    """bad_init_scale."""
    gains = _layer_gains(exam)
    if gains:
        exam.saw(f"{plural(len(gains), 'layer')} multiply by {min(gains.values()):.2g} to {max(gains.values()):.2g}")
    wide = {path: gain for path, gain in gains.items() if gain > MAX_GAIN}
    narrow = {path: gain for path, gain in gains.items() if gain < MIN_GAIN}
    for layers, word in ((wide, "grow"), (narrow, "shrink")):
        if len(layers) >= MIN_LAYERS and len(layers) >= len(gains) / 2:
            paths = list(layers)
            total = 1.0
            for gain in layers.values():
                total *= gain
            yield found(
                "bad_init_scale",
                WARNING,
                f"Numbers {word} by a factor of {layers[paths[0]]:.3g} in {paths[0]} and so on through "
                f"{len(paths)} layers: the weights begin too {'large' if word == 'grow' else 'small'}.",
                sites=paths,
                numbers={"gain of the first": layers[paths[0]], "gain of all together": total},
                remedy=f'nn.init.kaiming_normal_(model.get_submodule("{paths[0]}").weight, nonlinearity="relu")',
                confidence=0.9,
            )
    yield from _recurrent_weights(exam)


def _layer_gains(exam: Examination) -> dict[str, float]:
    """Gains of hidden layers that learn and that nothing normalises; the head begins small or large for its own reasons."""
    readers: dict[str, list[dict[str, object]]] = {}
    for edge in exam.graph.get("edges", []):
        readers.setdefault(edge["source"], []).append(edge)
    types = {n["path"]: n["type"] for n in exam.graph.get("nodes", [])}
    gains: dict[str, float] = {}
    for path, layer in exam.first.observer.layers.items():
        following = readers.get(path, [])
        if not _is_trained(layer) or not following or any(e["target"] == "(output)" for e in following):
            continue
        if any(_is_normalizing(str(types.get(str(e["target"]), "")), e.get("operations", ())) for e in following):
            continue
        by_weight = weight_gain(layer.module)
        measured = layer.rms_out / layer.rms_in if layer.rms_in > 0 else 1.0
        # Both must say so: weights alone may meet inputs they cancel, a measured gain may be the data's own.
        gains[path] = min(by_weight, measured) if by_weight > 1 else max(by_weight, measured)
    return gains


def _is_trained(layer: Layer) -> bool:
    module = layer.module
    if not isinstance(module, MULTIPLYING) or not isinstance(module.weight, torch.Tensor) or not layer.rms_out:
        return False
    return bool(module.weight.requires_grad)


def _is_normalizing(kind: str, operations: object) -> bool:
    words = [kind.lower(), *(str(o) for o in operations)] if isinstance(operations, (list, tuple)) else [kind.lower()]
    return any("norm" in word or word in ("std", "var", "softmax", "standardize") for word in words)


def weight_gain(module: torch.nn.Module) -> float:
    """What the size of the weights alone makes of independent inputs: their rms times the root of the fan-in."""
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    fan_in = weight[0].numel()
    return rms(weight.detach()) * math.sqrt(fan_in)


def _recurrent_weights(exam: Examination) -> Iterator[Finding]:
    for path, module in exam.subject.model.named_modules():
        for name, p in module.named_parameters(recurse=False):
            if isinstance(module, (torch.nn.RNNBase, torch.nn.RNNCellBase)) and name.startswith("weight_hh"):
                gain = rms(p.detach()) * math.sqrt(p.shape[1])
                if gain > MAX_GAIN and p.requires_grad:
                    full = f"{path}.{name}" if path else name
                    yield found(
                        "bad_init_scale",
                        WARNING,
                        f"{full} multiplies the state by about {gain:.3g} at every moment: the weights begin too large.",
                        sites=[full],
                        numbers={"gain per moment": gain},
                        remedy=f'nn.init.orthogonal_(model.get_parameter("{full}"))',
                        confidence=0.9,
                    )
                    return
