"""What is known of one layer's gradients, step by step: size, direction, noise, updates.

A layer keeps its last `max_history` looks as numbers. Directions are kept twice only, for the last step and
for the mean: the values themselves up to `MAX_VALUES` elements, a random-sign sketch beyond.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.instruments.array_input import NonFinite, as_numpy, locate
from stethoscope.instruments.comparison import cosine
from stethoscope.instruments.rows import measure_rows
from stethoscope.kernels import stat
from stethoscope.kernels.columns import INDEX
from stethoscope.kernels.sketch import mix
from stethoscope.record import FloatArray

MAX_VALUES: Final = 1 << 16
NO_GRADIENT: Final = 1e-8
SKETCH_WIDTH: Final = 1024
"""A cosine between two sketches of this width is off by about 1 / sqrt(1024), 0.03."""


@dataclass(frozen=True, slots=True)
class GradientLook:
    """One layer's gradient at one step; None where it cannot be known."""

    step: int
    norm: float | None
    mean: float | None
    mean_abs: float | None
    std: float | None
    max_abs: float | None
    zero_fraction: float
    num_elements: int
    cosine_to_last: float | None
    cosine_to_mean: float | None
    update_ratio: float | None
    """Norm of what the step changed over the norm of the weights."""
    nonfinite: NonFinite | None

    @property
    def is_finite(self) -> bool:
        """Whether every element is a finite number."""
        return self.nonfinite is None


EMPTY_LOOK: Final = GradientLook(
    step=0,
    norm=None,
    mean=None,
    mean_abs=None,
    std=None,
    max_abs=None,
    zero_fraction=0.0,
    num_elements=0,
    cosine_to_last=None,
    cosine_to_mean=None,
    update_ratio=None,
    nonfinite=None,
)
"""What a debugger that is switched off has seen."""


class LayerGradients:
    """The history of one layer."""

    def __init__(self, name: str, max_history: int) -> None:
        self.name = name
        self.looks: deque[GradientLook] = deque(maxlen=max_history)
        self.num_looks = 0
        self.steps_without_gradient = 0
        """How many samples in a row, up to the last one, had a norm under 1e-8."""
        self._last: FloatArray | None = None
        self._mean: FloatArray | None = None
        self._num_directions = 0
        self._sum_squares = 0.0
        self._weights: FloatArray | None = None

    def add(self, step: int, values: Any, *, weights: Any = None, update: Any = None) -> GradientLook:
        """Takes one gradient in and returns what is known of it."""
        row = measure_rows([values], [self.name])[0]
        bad = bool(stat(row, "num_nonfinite"))
        return self.add_row(
            step,
            row,
            direction=None if bad or not row[INDEX["count"]] else direction_of(values),
            update_ratio=self._update_ratio(weights, update),
            nonfinite=locate(values, self.name, step) if bad else None,
        )

    def add_row(
        self,
        step: int,
        row: FloatArray,
        *,
        direction: FloatArray | None = None,
        update_ratio: float | None = None,
        nonfinite: NonFinite | None = None,
    ) -> GradientLook:
        """Takes in a gradient that was measured elsewhere; `direction` is its sketch, where there is one."""
        if nonfinite is None and stat(row, "num_nonfinite"):
            num_inf = int(row[INDEX["num_posinf"]] + row[INDEX["num_neginf"]])
            nonfinite = NonFinite(self.name, int(row[INDEX["num_nan"]]), num_inf, None, step)
        look = GradientLook(
            step=step,
            norm=_known(row, "norm"),
            mean=_known(row, "mean"),
            mean_abs=_known(row, "mean_abs"),
            std=_known(row, "std"),
            max_abs=_known(row, "abs_max"),
            zero_fraction=float(row[INDEX["num_zero"]] / row[0]) if row[0] else 0.0,
            num_elements=int(row[INDEX["count"]]),
            cosine_to_last=_cosine(direction, self._last),
            cosine_to_mean=_cosine(direction, self._mean),
            update_ratio=update_ratio,
            nonfinite=nonfinite,
        )
        self._remember(direction)
        self.looks.append(look)
        self.num_looks += 1
        absent = look.is_finite and (look.norm is None or look.norm < NO_GRADIENT)
        self.steps_without_gradient = self.steps_without_gradient + 1 if absent else 0
        return look

    def series(self, name: str) -> FloatArray:
        """One number of every sample kept, oldest first; NaN where it is unknown."""
        values = [getattr(look, name) for look in self.looks]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    @property
    def steps(self) -> list[int]:
        """The steps of the looks kept."""
        return [look.step for look in self.looks]

    @property
    def signal_to_noise(self) -> float | None:
        """Squared norm of the mean gradient over the variance around it, freed of the bias of a finite
        sample.

        0 for gradients that point anywhere, large for ones that agree; None before three finite looks.
        """
        n = self._num_directions
        if n < 3 or self._mean is None:
            return None
        mean_square = float(self._mean @ self._mean)
        variance = (self._sum_squares - n * mean_square) / (n - 1)
        if variance <= 0:
            return float("inf") if mean_square > 0 else None
        return max(0.0, mean_square - variance / n) / variance

    def _remember(self, direction: FloatArray | None) -> None:
        if direction is None:
            return
        if self._mean is None or len(self._mean) != len(direction):
            self._mean, self._num_directions, self._sum_squares = np.zeros_like(direction), 0, 0.0
        self._num_directions += 1
        self._mean = self._mean + (direction - self._mean) / self._num_directions
        self._sum_squares += float(direction @ direction)
        self._last = direction

    def _update_ratio(self, weights: Any, update: Any) -> float | None:
        """From the update where it is given, else from how the weights changed since the last sample."""
        if weights is None:
            return None
        norm = float(measure_rows([weights], [self.name])[0][INDEX["norm"]])
        before, self._weights = self._weights, direction_of(weights)
        if not norm > 0:
            return None
        if update is not None:
            return float(measure_rows([update], [self.name])[0][INDEX["norm"]]) / norm
        if before is None or len(before) != len(self._weights):
            return None
        return float(np.linalg.norm(self._weights - before)) / norm


def direction_of(values: Any) -> FloatArray:
    """The values as one vector, or its random-sign sketch where there are more than `MAX_VALUES`.

    Element i is added with a random sign to sum i mod 1,024, so the sketch of a difference is the difference
    of the sketches and norms and inner products survive on average.
    """
    flat = as_numpy(values).reshape(-1)
    if flat.size <= MAX_VALUES:
        return flat.astype(np.float64)
    total = np.zeros(SKETCH_WIDTH)
    chunk = 64 * SKETCH_WIDTH
    for begin in range(0, flat.size, chunk):
        part = flat[begin : begin + chunk].astype(np.float64)
        part[_sign_bits(begin, part.size)] *= -1.0
        whole = part.size // SKETCH_WIDTH * SKETCH_WIDTH
        total += part[:whole].reshape(-1, SKETCH_WIDTH).sum(axis=0)
        total[: part.size - whole] += part[whole:]
    return total


def _sign_bits(begin: int, count: int) -> npt.NDArray[np.bool_]:
    """A fixed random bit for each element: one scrambled word for every 64 of them."""
    first = begin // 64
    words = np.arange(first, first + -(-count // 64), dtype=np.uint64)
    scrambled = mix((words + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    return np.unpackbits(scrambled.view(np.uint8))[:count].astype(np.bool_)


def _cosine(a: FloatArray | None, b: FloatArray | None) -> float | None:
    if a is None or b is None or len(a) != len(b):
        return None
    return cosine(a, b)


def _known(row: FloatArray, column: str) -> float | None:
    value = float(row[INDEX[column]])
    return None if np.isnan(value) else value
