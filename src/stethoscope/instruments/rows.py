"""One row of statistics per array, whatever the arrays are: the instruments' one door to the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stethoscope.instruments.intake import ArrayError
from stethoscope.kernels import Table, UnsupportedArrayError, measure


def measure_rows(arrays: Sequence[Any], names: Sequence[str]) -> Table:
    """Rows in the order given, one per array; where one cannot be read the error names it."""
    try:
        return measure(arrays)
    except UnsupportedArrayError:
        for array, name in zip(arrays, names, strict=True):
            try:
                measure([array])
            except UnsupportedArrayError as error:
                raise ArrayError(error.what, where=name, do=error.do) from error
        raise
