"""compare(a, b): how two arrays differ, element by element and as distributions.

Works across dtypes (units in the last place are counted in the coarser of the two), devices and frameworks; dicts, models
and checkpoints are compared name by name, runs by what they recorded. Arrays of different shapes are compared as
distributions only, and the note says so. A NaN equals a NaN here, and an infinity the same infinity: two runs that fail
alike are alike. Complex numbers are compared as such: errors are moduli, the rest is over both parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.instruments.array_input import as_numpy, shape_of
from stethoscope.instruments.distribution import index_of
from stethoscope.record import FloatArray, plural

if TYPE_CHECKING:
    from stethoscope.instruments.comparison_groups import GroupComparison
    from stethoscope.instruments.comparison_runs import RunComparison

NUM_WORST: Final = 5
MANTISSA_BITS: Final = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}
PART_OF: Final = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_WORD: Final[dict[str, type[np.signedinteger[Any]]]] = {
    "float16": np.int16,
    "float32": np.int32,
    "float64": np.int64,
}


@dataclass(frozen=True, slots=True)
class ElementDifference:
    """One element in both arrays."""

    index: tuple[int, ...]
    first: float | complex
    second: float | complex
    abs_error: float
    ulps: int | None


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """How two arrays differ. Fields that need elements to stand opposite each other are None where shapes
    differ."""

    shape_first: tuple[int, ...]
    shape_second: tuple[int, ...]
    dtype_first: str
    dtype_second: str
    note: str
    """What kept the comparison from being exact: shapes or dtypes that differ; empty where nothing did."""
    ks_distance: float | None
    """Largest distance between the two cumulative distributions (Kolmogorov and Smirnov) of the finite
    values."""
    equal: bool | None = None
    num_different: int | None = None
    num_nonfinite_mismatches: int | None = None
    """Elements of which exactly one is finite, or that are infinite with different signs."""
    max_abs_error: float | None = None
    mean_abs_error: float | None = None
    max_relative_error: float | None = None
    """Largest |a - b| / |b| over elements where b is not zero."""
    relative_error: float | None = None
    """Norm of the difference over the norm of the second array."""
    max_ulps: int | None = None
    ulp_dtype: str | None = None
    cosine: float | None = None
    worst: tuple[ElementDifference, ...] = ()
    """The elements that differ most, largest first."""

    def __str__(self) -> str:
        if self.equal is None:
            return f"{self.note}; KS distance {_number_text(self.ks_distance)}"
        if self.equal:
            return "equal" + (f" ({self.note})" if self.note else "")
        finite = [one for one in self.worst if np.isfinite(one.abs_error)]
        where_largest = f" at {list(finite[0].index)}" if finite else ""
        broken = ""
        if self.num_nonfinite_mismatches:
            where = next((f", first {list(one.index)}" for one in self.worst if not np.isfinite(one.abs_error)), "")
            broken = f"; {self.num_nonfinite_mismatches:,} of them NaN or Inf on one side only{where}"
        ulps = "" if self.max_ulps is None else f", {self.max_ulps:,} ULPs of {self.ulp_dtype}"
        largest = f"{_number_text(self.max_abs_error)}{where_largest} (relative {_number_text(self.max_relative_error)}{ulps})"
        return (
            f"{plural(self.num_different or 0, 'element differs', 'elements differ')}, finite ones by at most {largest}{broken}, "
            f"cosine {_number_text(self.cosine)}, KS distance {_number_text(self.ks_distance)}"
            + (f"; {self.note}" if self.note else "")
        )


def _number_text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def compare(
    first: Any, second: Any, *, num_worst: int = NUM_WORST
) -> TensorComparison | GroupComparison | RunComparison:
    """Compares two arrays of any framework, two sets of named ones, or two runs.

    Arrays give a `TensorComparison`. Dicts of arrays, models and `.safetensors` paths, in any pairing, give a
    `GroupComparison`, name by name. Runs, or paths of run folders, give a `RunComparison` of what both recorded.
    """
    from stethoscope.instruments import comparison_groups as groups

    kinds = groups.kind_of(first), groups.kind_of(second)
    if "run" in kinds:
        from stethoscope.instruments.comparison_runs import compare_runs

        return compare_runs(first, second)
    if "group" in kinds:
        return groups.compare_groups(first, second, num_worst=num_worst)
    return compare_arrays(first, second, num_worst=num_worst)


def compare_arrays(first: Any, second: Any, *, num_worst: int = NUM_WORST) -> TensorComparison:
    """Compares two arrays of any framework; see `TensorComparison`."""
    a, b = as_numpy(first, "first array"), as_numpy(second, "second array")
    dtypes = _dtype_name(first, a), _dtype_name(second, b)
    shapes = shape_of(first), shape_of(second)
    whether = tuple(name.startswith("complex") for name in dtypes)
    parts_a, parts_b = (_real_parts(x, pairs, any(whether)) for x, pairs in zip((a, b), whether, strict=True))
    ks = ks_distance(parts_a.reshape(-1), parts_b.reshape(-1))
    if shapes[0] != shapes[1]:
        note = f"shapes differ, {list(shapes[0])} against {list(shapes[1])}: compared as distributions only"
        return TensorComparison(*shapes, *dtypes, note=note, ks_distance=ks)
    note = "" if dtypes[0] == dtypes[1] else f"dtypes differ, {dtypes[0]} against {dtypes[1]}"
    return _compare_elements(parts_a, parts_b, shapes, dtypes, note, ks, num_worst)


def _real_parts(array: npt.NDArray[Any], pairs: bool, wanted: bool) -> FloatArray:
    """One row an element: its value, or its real and imaginary part where either side is complex."""
    flat = np.asarray(array, dtype=np.float64).reshape(-1, 2 if pairs else 1)
    return np.pad(flat, ((0, 0), (0, 1))) if wanted and not pairs else flat


def _compare_elements(
    a: FloatArray,
    b: FloatArray,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    dtypes: tuple[str, str],
    note: str,
    ks: float | None,
    num_worst: int,
) -> TensorComparison:
    same = ((a == b) | (np.isnan(a) & np.isnan(b))).all(1)
    both = (np.isfinite(a) & np.isfinite(b)).all(1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.where(both, _magnitudes(a - b), np.where(same, 0.0, np.inf))
        size = _magnitudes(b)
        relative = np.where(both & (size != 0), error / size, 0.0)
    measured = error[both]
    ulp_dtype = coarser(*(PART_OF.get(name, name) for name in dtypes))
    ulps = None if ulp_dtype is None else ulp_distance(a, b, ulp_dtype).max(1, initial=0)
    counted = None if ulps is None else ulps[both]
    norm_b = float(np.linalg.norm(b[both]))
    return TensorComparison(
        *shapes,
        *dtypes,
        note=note,
        ks_distance=ks,
        equal=bool(same.all()),
        num_different=int((~same).sum()),
        num_nonfinite_mismatches=int((~same & ~both).sum()),
        max_abs_error=float(measured.max()) if measured.size else None,
        mean_abs_error=float(measured.mean()) if measured.size else None,
        max_relative_error=float(relative.max()) if measured.size else None,
        relative_error=float(np.linalg.norm(measured)) / norm_b if norm_b > 0 else None,
        max_ulps=int(counted.max()) if counted is not None and counted.size else None,
        ulp_dtype=ulp_dtype,
        cosine=cosine(a[both], b[both]),
        worst=_worst_elements(a, b, error, ulps, shapes[0], num_worst),
    )


def _magnitudes(parts: FloatArray) -> FloatArray:
    return np.abs(parts[:, 0]) if parts.shape[1] == 1 else np.hypot(parts[:, 0], parts[:, 1])


def _worst_elements(
    a: FloatArray,
    b: FloatArray,
    error: FloatArray,
    ulps: npt.NDArray[Any] | None,
    shape: tuple[int, ...],
    num: int,
) -> tuple[ElementDifference, ...]:
    num = min(num, error.size)
    if not num:
        return ()
    indices = np.argpartition(-error, num - 1)[:num]
    indices = indices[np.lexsort((indices, -error[indices]))]
    return tuple(
        ElementDifference(
            index_of(int(p), shape),
            _element_value(a[p]),
            _element_value(b[p]),
            float(error[p]),
            int(ulps[p]) if ulps is not None and np.isfinite(error[p]) else None,
        )
        for p in indices
        if error[p] > 0
    )


def _element_value(parts: FloatArray) -> float | complex:
    return float(parts[0]) if len(parts) == 1 else complex(*parts.tolist())


def cosine(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float | None:
    """The cosine of the angle between two vectors; None where one of them is zero or empty."""
    x, y = (np.asarray(v, dtype=np.float64).reshape(-1) for v in (a, b))
    scale_x, scale_y = (float(np.abs(v).max()) if v.size else 0.0 for v in (x, y))
    if not (0 < scale_x < np.inf and 0 < scale_y < np.inf):
        return None
    x, y = x / scale_x, y / scale_y
    return float(np.clip(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)), -1.0, 1.0))


def ks_distance(a: FloatArray, b: FloatArray) -> float | None:
    """The two-sample Kolmogorov-Smirnov statistic of the finite values; None where one side has none."""
    x, y = np.sort(a[np.isfinite(a)]), np.sort(b[np.isfinite(b)])
    if not x.size or not y.size:
        return None
    values = np.concatenate([x, y])
    below_x = np.searchsorted(x, values, side="right") / x.size
    below_y = np.searchsorted(y, values, side="right") / y.size
    return float(np.abs(below_x - below_y).max())


def histogram_ks(
    counts_a: npt.NDArray[Any], edges_a: FloatArray, counts_b: npt.NDArray[Any], edges_b: FloatArray
) -> float:
    """The Kolmogorov-Smirnov distance of two histograms, values taken as spread evenly over their bins."""
    indices = np.union1d(edges_a, edges_b)
    share = [
        np.interp(indices, edges, np.concatenate([[0.0], np.cumsum(counts) / counts.sum()]), left=0.0, right=1.0)
        for counts, edges in ((counts_a, edges_a), (counts_b, edges_b))
    ]
    return float(np.abs(share[0] - share[1]).max())


def coarser(first: str, second: str) -> str | None:
    """The dtype with fewer digits of the two; None where one of them is no ordinary float."""
    if first not in MANTISSA_BITS or second not in MANTISSA_BITS:
        return None
    return min(first, second, key=lambda name: MANTISSA_BITS[name])


def ulp_distance(a: npt.NDArray[Any], b: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.uint64]:
    """How many numbers of `dtype` lie between the elements, after both are rounded to it.

    Neighbouring floats have neighbouring bit patterns, so the distance is a difference of integers once the
    negative half is mirrored; +0 and -0 are the same number.
    """
    x, y = _ordered_integers(np.asarray(a), dtype), _ordered_integers(np.asarray(b), dtype)
    low, high = np.minimum(x, y), np.maximum(x, y)
    return high.astype(np.uint64) - low.astype(np.uint64)  # modulo 2**64, so the whole range of float64 fits


def _ordered_integers(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.int64]:
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "bfloat16":
            bits = values.astype(np.float32).view(np.uint32).astype(np.int64)
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # round to nearest, ties to even
            word, sign = bits & 0x7FFF, bits >> 15 & 1
        else:
            wide = values.astype(dtype).view(_WORD[dtype])
            sign = (wide < 0).astype(np.int64)
            word = (wide & np.iinfo(_WORD[dtype]).max).astype(np.int64)
    return np.where(sign == 1, -word, word)


def _dtype_name(value: Any, array: npt.NDArray[Any]) -> str:
    known = getattr(value, "dtype", None)
    if known is None:  # a list: its numbers may be complex, which `array` holds as pairs
        known = np.result_type(array.dtype, np.complex64) if np.iscomplexobj(value) else array.dtype
    return str(known).removeprefix("torch.")
