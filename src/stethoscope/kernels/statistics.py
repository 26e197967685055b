"""Every statistic, declared once: what it is called, what it follows from, how those of several tensors become one.

The columns of a row come first, in the order in which kernels write them; what follows from columns comes after. A new
derived statistic is one entry here; a new column is one entry and the kernels that measure it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


class Across(StrEnum):
    """How the values of several tensors become the value of all of them together."""

    SUM = "sum"
    LARGEST = "largest"
    SMALLEST = "smallest"
    ROOT_SUM_SQUARES = "root_sum_squares"
    MERGED = "merged"
    """Only from whole rows, by `columns.merge`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Statistic:
    """One number of a row."""

    name: str
    label: str
    """For people: "Largest |x|"."""
    across: Across
    unit: str = ""
    """ "elements", "share", or "" where it has the tensor's own unit or none."""
    short: str = ""
    """A label for narrow places, where the long one is too long."""
    is_size: bool = False
    """Whether its zero says that every element is zero."""
    inputs: tuple[str, ...] = ()
    """The columns it follows from; none for a column."""
    formula: Callable[[Mapping[str, Values]], Values] | None = None
    """From the values of the inputs, by name."""

    @property
    def is_count(self) -> bool:
        """Whether it is a whole number of elements."""
        return self.unit == "elements"


def _count(name: str, label: str, short: str = "") -> Statistic:
    return Statistic(name, label, Across.SUM, "elements", short)


def _nonfinite(of: Mapping[str, Values]) -> Values:
    return of["num_nan"] + of["num_posinf"] + of["num_neginf"]


def _rms(of: Mapping[str, Values]) -> Values:
    out: Values = of["norm"] / np.sqrt(of["count"] - _nonfinite(of))
    return out


_NONFINITE: Final = ("num_nan", "num_posinf", "num_neginf")

COUNT_COLUMNS: Final = (
    _count("count", "Elements"),
    _count("num_nan", "NaN"),
    _count("num_posinf", "+Inf"),
    _count("num_neginf", "-Inf"),
    _count("num_zero", "Zeros"),
    _count("num_tiny", "Underflows", "tiny"),
    _count("num_huge", "Overflows", "huge"),
)
"""Exact. Tiny: not zero, but under the dtype's smallest normal number. Huge: finite but over the limit (by default the dtype's
largest, so none; fp16's 65504 where fp16 is what the value is cast to)."""

VALUE_COLUMNS: Final = (
    Statistic("min", "Smallest", Across.SMALLEST),
    Statistic("max", "Largest", Across.LARGEST),
    Statistic("abs_max", "Largest |x|", Across.LARGEST, short="max |x|", is_size=True),
    Statistic("abs_min", "Smallest |x| but zeros", Across.SMALLEST, short="min |x|"),
    Statistic("mean", "Mean", Across.MERGED),
    Statistic("mean_abs", "Mean |x|", Across.MERGED, is_size=True),
    Statistic("norm", "L2 norm", Across.ROOT_SUM_SQUARES, short="L2", is_size=True),
    Statistic("std", "Spread (std)", Across.MERGED, short="std"),
    Statistic("skewness", "Skewness", Across.MERGED),
    Statistic("kurtosis", "Excess kurtosis", Across.MERGED, short="kurtosis"),
)
"""Over the finite values, NaN where there are none; std divides by n. `abs_max` stands behind `min` and `max` in every file."""

DERIVED: Final = (
    Statistic("num_nonfinite", "NaN and Inf", Across.SUM, "elements", inputs=_NONFINITE, formula=_nonfinite),
    Statistic(
        "rms",
        "Root mean square",
        Across.MERGED,
        short="RMS",
        is_size=True,
        inputs=("norm", "count", *_NONFINITE),
        formula=_rms,
    ),
    Statistic(
        "zero_fraction",
        "Share of zeros",
        Across.MERGED,
        "share",
        "zeros",
        inputs=("num_zero", "count"),
        formula=lambda of: of["num_zero"] / of["count"],
    ),
)

STATISTICS: Final = {one.name: one for one in (*COUNT_COLUMNS, *VALUE_COLUMNS, *DERIVED)}
"""By name."""


def statistic(name: str) -> Statistic:
    """The declaration of a statistic; KeyError with the known names where there is none such."""
    found = STATISTICS.get(name)
    if found is None:
        raise KeyError(f"unknown statistic {name!r}; known: {', '.join(STATISTICS)}")
    return found


def derive(name: str, columns: Mapping[str, Values]) -> Values:
    """A statistic's values from those of its columns."""
    declared = statistic(name)
    if declared.formula is None:
        return columns[name]
    with np.errstate(invalid="ignore", divide="ignore"):
        return declared.formula(columns)
