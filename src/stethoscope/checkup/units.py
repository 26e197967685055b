"""Are units off, or at their limits, whatever comes in?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import CRITICAL, WARNING, found, listed
from stethoscope.checkup.ignoring import constant_inputs
from stethoscope.checkup.observation import LIMITS, ZERO_BELOW, Activation
from stethoscope.checkup.structure import tensors
from stethoscope.record import ROOT_NAME, Finding, plural

MIN_ROWS: Final = 32
MIN_UNITS: Final = 8
MANY_DEAD: Final = 0.9
"""Half of the units, by chance more, are off for every sample where a deep layer sees little but its bias."""
MANY_SATURATED: Final = 0.6


def examine(exam: Examination) -> Iterator[Finding]:
    """dead_units, saturated_units."""
    if constant_inputs(exam) is not None:
        # Units that see nothing are off for a reason that is not theirs.
        return
    outputs = {t.data_ptr() for t in tensors(exam.first.output) if t.is_floating_point()}
    seen = [
        a
        for a in exam.first.observer.activations
        if a.num_rows >= MIN_ROWS and a.num_units >= MIN_UNITS and a.index not in outputs and a.path != "(loss)"
    ]
    if seen:
        units = sum(a.num_units for a in seen)
        exam.saw(f"{plural(units, 'unit')} behind {plural(len(seen), 'activation')}")
    dead = [a for a in seen if a.name in ZERO_BELOW and a.share_dead >= MANY_DEAD]
    if dead:
        # A layer behind a dead one sees nothing: the first is the cause.
        first = dead[0]
        num_off = round(first.share_dead * first.num_units)
        yield found(
            "dead_units",
            CRITICAL if first.share_dead > 0.95 else WARNING,
            f"{num_off} of {first.num_units} units of {_layer_name(exam, first)} are off for every sample: "
            "no gradient gets through them.",
            sites=_layer_and_activation(first),
            numbers={"share of units off": first.share_dead, "rows seen": first.num_rows},
            remedy=_bias_line(exam, first),
            confidence=0.9,
        )
    stuck = [a for a in seen if a.name in LIMITS and a.share_saturated >= MANY_SATURATED]
    if stuck:
        first = max(stuck, key=lambda a: a.share_saturated)
        layers = [layer for a in stuck for layer in _layer_and_activation(a)]
        layers = [*_layer_and_activation(first), *layers]
        yield found(
            "saturated_units",
            WARNING,
            f"{first.share_saturated:.0%} of what comes out of {first.name.rstrip('_')} after {_layer_and_activation(first)[0]} is at its "
            f"limits{_other_layers(stuck)}: almost no gradient gets through.",
            sites=layers,
            numbers={"share at the limits": first.share_saturated, "layers": len(stuck)},
            remedy=f'nn.init.xavier_uniform_(model.get_submodule("{_layer_and_activation(first)[0]}").weight)',
            confidence=0.9,
        )


def _other_layers(stuck: list[Activation]) -> str:
    return f", and so for {listed([_layer_and_activation(a)[0] for a in stuck[1:]])}" if len(stuck) > 1 else ""


def _layer_and_activation(activation: Activation) -> list[str]:
    """The layer that made what went in, then the nonlinearity's own path."""
    sites = [activation.producer, activation.path]
    return [layer for layer in sites if layer and layer != ROOT_NAME] or [ROOT_NAME]


def _layer_name(exam: Examination, activation: Activation) -> str:
    """For a sentence: "layer 3 (Linear)"."""
    path = _layer_and_activation(activation)[0]
    module = dict(exam.subject.model.named_modules()).get(path)
    return f"layer {path} ({type(module).__name__})" if module is not None else path


def _bias_line(exam: Examination, activation: Activation) -> str:
    path = _layer_and_activation(activation)[0]
    module = dict(exam.subject.model.named_modules()).get(path)
    if isinstance(getattr(module, "bias", None), torch.Tensor):
        return f'nn.init.zeros_(model.get_submodule("{path}").bias)'
    return "nn.LeakyReLU()  # or a smaller learning rate, or biases that begin at 0"
