"""Initial weights against their fan-in and fan-out.

Promises nothing about trained weights: it is for a model before its first step. A spread within a factor of
two of any of the usual schemes is taken as meant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from stethoscope.instruments.array_input import as_numpy, named_arrays


class InitializationVerdict(StrEnum):
    """How a weight's spread compares with the usual schemes."""

    USUAL = "Usual"
    TOO_SMALL = "TooSmall"
    TOO_LARGE = "TooLarge"
    CONSTANT = "Constant"
    NON_FINITE = "NonFinite"


@dataclass(frozen=True, slots=True)
class InitializationCheck:
    """One weight's spread and what it should be near to."""

    layer: int | str
    fan_in: int
    fan_out: int
    std: float
    expected: dict[str, float]
    """Standard deviation by scheme."""
    closest: str
    ratio: float
    """std over the closest scheme's."""
    verdict: InitializationVerdict
    symmetric_units: int = 0
    """Output units that are exact copies of an earlier one: they will learn the same thing."""


def schemes(fan_in: int, fan_out: int) -> dict[str, float]:
    """The standard deviations that the usual schemes give (He, Glorot, LeCun, PyTorch, GPT-2)."""
    return {
        "kaiming": math.sqrt(2.0 / fan_in),
        "xavier": math.sqrt(2.0 / (fan_in + fan_out)),
        "lecun": math.sqrt(1.0 / fan_in),
        "torch_default": math.sqrt(1.0 / (3.0 * fan_in)),
        "normal_0.02": 0.02,
    }


def check(model: Any) -> list[InitializationCheck]:
    """Every array with two or more dimensions; an embedding or a norm's scale is judged like the rest."""
    names, values = named_arrays(model)
    found = []
    for index, value in enumerate(values):
        layer: int | str = names[index] if names else index
        array = as_numpy(value, str(layer))
        if array.ndim >= 2 and array.size:
            found.append(_one(layer, np.asarray(array, dtype=np.float64)))
    return found


def _one(layer: int | str, weight: np.ndarray[Any, np.dtype[np.float64]]) -> InitializationCheck:
    field = int(np.prod(weight.shape[2:]))
    fan_in, fan_out = weight.shape[1] * field, weight.shape[0] * field
    expected = schemes(fan_in, fan_out)
    std = float(weight.std()) if np.isfinite(weight).all() else float("nan")
    if math.isnan(std) or std == 0.0:
        verdict = InitializationVerdict.NON_FINITE if math.isnan(std) else InitializationVerdict.CONSTANT
        copies = weight.shape[0] - 1 if std == 0.0 else 0
        return InitializationCheck(layer, fan_in, fan_out, std, expected, "", std, verdict, copies)
    closest = min(expected, key=lambda name: abs(math.log(std / expected[name])))
    ratio = std / expected[closest]
    if ratio < 0.5:
        verdict = InitializationVerdict.TOO_SMALL
    else:
        verdict = InitializationVerdict.TOO_LARGE if ratio > 2.0 else InitializationVerdict.USUAL
    rows = weight.reshape(weight.shape[0], -1)
    copies = len(rows) - len(np.unique(rows, axis=0))
    return InitializationCheck(layer, fan_in, fan_out, std, expected, closest, ratio, verdict, copies)
