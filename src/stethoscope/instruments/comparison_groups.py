"""Dicts of arrays, models and checkpoints against each other, name by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from stethoscope.instruments.array_input import ArrayError, named_arrays
from stethoscope.instruments.comparison import TensorComparison, compare_arrays
from stethoscope.record import printable

MAX_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class GroupComparison:
    """How two sets of named arrays differ."""

    tensors: dict[str, TensorComparison]
    """What both have, in the order of the first."""
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether both have the same names, shapes and values."""
        return not self.only_first and not self.only_second and not self.different

    @property
    def different(self) -> dict[str, TensorComparison]:
        """The arrays that differ, the farthest apart first: other shapes, then by the norm of the difference."""
        found = {name: one for name, one in self.tensors.items() if not one.equal}
        return dict(sorted(found.items(), key=lambda item: -_sort_distance(item[1])))

    @property
    def max_abs_error(self) -> float | None:
        """The largest over all arrays; None where nothing could be compared element by element."""
        return max((one.max_abs_error for one in self.tensors.values() if one.max_abs_error is not None), default=None)

    def __getitem__(self, name: str) -> TensorComparison:
        return self.tensors[name]

    def __str__(self) -> str:
        different = self.different
        count = len(self.tensors)
        lines = [f"{len(different):,} of {count:,} {'array differs' if count == 1 else 'arrays differ'}"]
        lines += [f"  {printable(name)}: {one}" for name, one in list(different.items())[:MAX_SHOWN]]
        if len(different) > MAX_SHOWN:
            lines.append(f"  and {len(different) - MAX_SHOWN:,} more")
        for word, names in (("first", self.only_first), ("second", self.only_second)):
            if names:
                said = ", ".join(printable(name) for name in names[:MAX_SHOWN])
                lines.append(f"  only in the {word}: {said}" + (", …" if len(names) > MAX_SHOWN else ""))
        return "\n".join(lines)


def _sort_distance(one: TensorComparison) -> float:
    if one.equal is None or one.num_nonfinite_mismatches:
        return float("inf")
    if one.relative_error is not None:
        return one.relative_error
    return float("inf") if one.max_abs_error else 0.0


def kind_of(value: Any) -> Literal["array", "group", "run"]:
    """What a side of a comparison is."""
    if isinstance(value, str | Path):
        return "run" if (Path(value) / "run.json").is_file() else "group"
    if isinstance(value, Mapping) or callable(getattr(value, "state_dict", None)):
        return "group"
    return "run" if callable(getattr(value, "series", None)) and hasattr(value, "sites") else "array"


def compare_groups(first: Any, second: Any, *, num_worst: int) -> GroupComparison:
    """Every array that both have, and the names that only one has."""
    sides = [_named_arrays(value, word) for value, word in ((first, "first"), (second, "second"))]
    left, right = sides
    return GroupComparison(
        tensors={
            name: compare_arrays(value, right[name], num_worst=num_worst)
            for name, value in left.items()
            if name in right
        },
        only_first=tuple(name for name in left if name not in right),
        only_second=tuple(name for name in right if name not in left),
    )


def _named_arrays(value: Any, word: str) -> dict[str, Any]:
    if kind_of(value) != "group":
        raise ArrayError(
            f"the {word} side is a single array, the other one a set of named arrays",
            where=type(value).__name__,
            do="Give two arrays, or two of: dicts, models, .safetensors paths",
        )
    if isinstance(value, Mapping):
        return {str(name): one for name, one in value.items()}
    if not isinstance(value, str | Path):
        return {str(name): one for name, one in value.state_dict().items() if hasattr(one, "shape")}
    names, arrays = named_arrays(value)
    return dict(zip(names or [], arrays, strict=True))
