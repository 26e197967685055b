"""From whatever the user holds to numbers: NumPy, torch, JAX, lists, mappings, models, `.safetensors` files.

Promises: nothing is imported that the user did not hand in; a tensor is never changed; what cannot be read is
refused with its name and a way out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stethoscope.record import FloatArray, MissingExtraError, StethoscopeError


class ArrayError(StethoscopeError, TypeError):
    """Something was handed to an instrument that is no array of numbers."""


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Where a NaN or an infinity sits: the tensor, how many there are, and the index of the first."""

    name: str
    num_nan: int
    num_inf: int
    first_index: tuple[int, ...] | None
    """Index into the tensor's own shape; None where only the counts are known."""
    step: int | None = None

    @property
    def what(self) -> str:
        """ "3 NaN", "1 Inf" or "3 NaN and 1 Inf"."""
        parts = [f"{n:,} {word}" for n, word in ((self.num_nan, "NaN"), (self.num_inf, "Inf")) if n]
        return " and ".join(parts)

    def __str__(self) -> str:
        index = "" if self.first_index is None else f", the first at index {list(self.first_index)}"
        when = "" if self.step is None else f" at step {self.step:,}"
        return f"{self.name}: {self.what}{when}{index}"


def as_numpy(value: Any, name: str = "array") -> npt.NDArray[Any]:
    """The value as a real NumPy array that keeps its precision (bfloat16 and fp8 become float32)."""
    detach = getattr(value, "detach", None)
    if callable(detach):
        return _from_torch(detach(), name)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ArrayError(
            f"{name} is not an array of numbers ({error})",
            where=name,
            do="Give a NumPy array, a tensor or a flat list",
        ) from error
    if array.dtype.kind == "V" or (array.dtype.kind == "f" and array.dtype.name not in _PLAIN_FLOATS):
        array = array.astype(np.float32)
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    if array.dtype.kind not in "fiub":
        if array.size == 0:
            return np.zeros(array.shape, dtype=np.float64)
        raise ArrayError(f"{name} holds {array.dtype}, not numbers", where=name, do="Convert it to floats first")
    return array


_PLAIN_FLOATS = frozenset({"float16", "float32", "float64", "longdouble", "float128"})


def _from_torch(tensor: Any, name: str) -> npt.NDArray[Any]:
    if getattr(tensor, "is_meta", False):
        raise ArrayError(f"{name} has no data (meta device)", where=name, do="Materialise it first")
    if getattr(tensor, "is_quantized", False):
        tensor = tensor.dequantize()
    if hasattr(tensor, "to_dense") and str(getattr(tensor, "layout", "")) not in ("torch.strided", ""):
        tensor = tensor.to_dense()
    tensor = tensor.cpu()
    if getattr(tensor, "is_complex", lambda: False)():
        import torch

        tensor = torch.view_as_real(tensor.resolve_conj())
    try:
        array: npt.NDArray[Any] = tensor.numpy()
    except TypeError:  # bfloat16 and fp8 have no NumPy dtype
        array = tensor.float().numpy()
    return array


def as_floats(value: Any, name: str = "array") -> FloatArray:
    """The value's elements as one flat float64 array."""
    return np.ascontiguousarray(as_numpy(value, name), dtype=np.float64).reshape(-1)


def shape_of(value: Any) -> tuple[int, ...]:
    """The value's shape without reading its elements where it says so itself."""
    shape = getattr(value, "shape", None)
    return tuple(int(n) for n in shape) if shape is not None else np.shape(value)


def locate(value: Any, name: str, step: int | None = None) -> NonFinite | None:
    """Where the first non-finite element is and how many there are, or None where all are finite."""
    array = as_numpy(value, name)
    bad = ~np.isfinite(array)
    if not bad.any():
        return None
    first = np.unravel_index(int(np.argmax(bad)), array.shape)
    num_nan = int(np.isnan(array).sum())
    return NonFinite(name, num_nan, int(bad.sum()) - num_nan, tuple(int(i) for i in first), step)


def named_arrays(source: Any) -> tuple[list[str] | None, list[Any]]:
    """Names (None where there are none) and arrays of a sequence, mapping, model or `.safetensors` file.

    A model is anything with `state_dict()`; only its floating-point entries count as weights. One array alone
    is one layer.
    """
    if isinstance(source, str | Path):
        return _split_items(read_safetensors(Path(source)))
    if hasattr(source, "state_dict") and callable(source.state_dict):
        return _split_items({k: v for k, v in source.state_dict().items() if _is_floating(v)})
    if isinstance(source, Mapping):
        return _split_items(source)
    if hasattr(source, "dtype") and hasattr(source, "shape"):
        return None, [source]
    if isinstance(source, Sequence | Iterator) or hasattr(source, "__iter__"):
        items = list(source)
        if items and all(isinstance(i, tuple) and len(i) == 2 and isinstance(i[0], str) for i in items):
            return _split_items(dict(items))
        return None, items
    raise ArrayError(
        "no arrays here",
        where=type(source).__name__,
        do="Give a list, a dict, a model or a .safetensors path",
    )


def _split_items(items: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    return [str(name) for name in items], list(items.values())


def _is_floating(value: Any) -> bool:
    check = getattr(value, "is_floating_point", None)
    if callable(check):
        return bool(check())
    return getattr(getattr(value, "dtype", None), "kind", "") == "f"


def read_safetensors(path: Path) -> dict[str, Any]:
    """Every floating-point tensor of a `.safetensors` file; bfloat16 and fp8 widened without torch."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingExtraError("safetensors", "captures", "Reading checkpoints") from error
    if path.suffix != ".safetensors":
        raise ArrayError(
            "only .safetensors checkpoints are read: other formats can run code when opened",
            where=path,
            do="Convert it with safetensors.torch.save_file",
        )
    try:
        with safe_open(str(path), framework="np") as file:
            names = list(file.keys())
            out: dict[str, Any] = {}
            for name in names:
                tag = file.get_slice(name).get_dtype()
                out[name] = _widen_bf16(path, name) if tag == "BF16" else file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise ArrayError(f"cannot read the checkpoint ({error})", where=path, do="Check the path") from error
    return {name: value for name, value in out.items() if value.dtype.kind == "f"}


def _widen_bf16(path: Path, name: str) -> npt.NDArray[np.float32]:
    """A bfloat16 tensor as float32 straight from the file's bytes: NumPy has no bfloat16."""
    import json

    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(header_bytes))[name]
        begin, end = entry["data_offsets"]
        file.seek(8 + header_bytes + begin)
        raw = np.frombuffer(file.read(end - begin), dtype="<u2")
    return (raw.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
