"""What is wrong with the values of one array: NaN, infinities, extreme magnitudes; each with its index."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.instruments.distribution import index_of
from stethoscope.record import Severity, plural

EXTREME: Final = 1e10


class TensorAlertKind(StrEnum):
    """What an alert is about."""

    NAN_VALUES = "NaNValues"
    INFINITE_VALUES = "InfiniteValues"
    EXTREME_VALUES = "ExtremeValues"
    DRIFT = "Drift"


@dataclass(frozen=True, slots=True)
class TensorAlert:
    """One thing wrong with a tensor: what, how often, and where first."""

    kind: TensorAlertKind
    severity: Severity
    message: str
    count: int
    first_index: tuple[int, ...] | None = None
    """Index of the first one in the tensor's own shape."""
    value: float | None = None
    tensor_id: int | None = None

    def __str__(self) -> str:
        return f"{self.severity}: {self.message}"


def value_alerts(array: npt.NDArray[Any], name: str, *, extreme: float = EXTREME) -> list[TensorAlert]:
    """Alerts for NaN, infinities and finite values beyond `extreme`, in this order."""
    if array.dtype.kind != "f":
        checks = [
            (
                TensorAlertKind.EXTREME_VALUES,
                _is_extreme(array, extreme),
                Severity.WARNING,
                (f"value beyond {extreme:g}", f"values beyond {extreme:g}"),
            )
        ]
    else:
        infinite = np.isinf(array)
        checks = [
            (TensorAlertKind.NAN_VALUES, np.isnan(array), Severity.CRITICAL, ("NaN", "NaN")),
            (TensorAlertKind.INFINITE_VALUES, infinite, Severity.CRITICAL, ("infinite value", "infinite values")),
            (
                TensorAlertKind.EXTREME_VALUES,
                _is_extreme(array, extreme) & ~infinite,
                Severity.WARNING,
                (f"value beyond {extreme:g}", f"values beyond {extreme:g}"),
            ),
        ]
    alerts = []
    for kind, mask, severity, what in checks:
        num = int(np.count_nonzero(mask))
        if not num:
            continue
        flat = int(np.argmax(mask))
        first = index_of(flat, array.shape)
        message = f"{name} holds {plural(num, *what)} of {plural(array.size, 'element')}, the first at {list(first)}"
        alerts.append(TensorAlert(kind, severity, message, num, first, float(array.reshape(-1)[flat])))
    return alerts


def row_alerts(num_nan: int, num_inf: int, abs_max: float | None, count: int, name: str) -> list[TensorAlert]:
    """The same from statistics alone: how many and how large, without an index."""
    found = []
    for kind, num, what in (
        (TensorAlertKind.NAN_VALUES, num_nan, ("NaN", "NaN")),
        (TensorAlertKind.INFINITE_VALUES, num_inf, ("infinite value", "infinite values")),
    ):
        if num:
            message = f"{name} holds {plural(num, *what)} of {plural(count, 'element')}"
            found.append(TensorAlert(kind, Severity.CRITICAL, message, num))
    if abs_max is not None and abs_max > EXTREME:
        message = f"{name} reaches {abs_max:.3g}, beyond {EXTREME:g}"
        found.append(TensorAlert(TensorAlertKind.EXTREME_VALUES, Severity.WARNING, message, 1, value=abs_max))
    return found


def _is_extreme(array: npt.NDArray[Any], extreme: float) -> npt.NDArray[np.bool_]:
    if array.dtype.kind == "b":
        return np.zeros(array.shape, dtype=np.bool_)
    if array.dtype.kind == "f":
        if extreme > float(np.finfo(array.dtype).max):  # float16 ends far below
            return np.zeros(array.shape, dtype=np.bool_)
        mask: npt.NDArray[np.bool_] = np.abs(array) > extreme
        return mask
    return (array > extreme) | (array < -extreme)  # abs of the smallest integer is negative
