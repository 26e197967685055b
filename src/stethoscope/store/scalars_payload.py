"""Named numbers of many steps as payload bytes, and back: one table, for the steps mostly have the same names."""

from __future__ import annotations

import dataclasses
import itertools
import json
import operator
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from stethoscope.store.encoding import shuffle, unshuffle
from stethoscope.store.json_payload import EncodingError, decode_json

_SCALARS_HEAD: Final = struct.Struct("<III")


@dataclasses.dataclass(frozen=True, slots=True)
class Scalars:
    """Named numbers of several steps, one at each position of `steps`, `codes` (into `names`) and `values`."""

    names: list[str]
    steps: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]

    def by_name(self) -> Iterator[tuple[str, npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """Each name that has numbers, with their steps and values in order of writing."""
        order = np.argsort(self.codes, kind="stable")
        ends = np.cumsum(np.bincount(self.codes, minlength=len(self.names)))
        begin = 0
        for name, end in zip(self.names, ends.tolist(), strict=True):
            if end > begin:
                yield name, self.steps[order[begin:end]], self.values[order[begin:end]]
            begin = end


_values_of: Final = operator.methodcaller("values")


def encode_scalars(told: Sequence[tuple[int, Mapping[str, float]]]) -> bytes:
    """Steps and their named numbers, exact to the last bit: one table for many steps, which mostly have the same names."""
    # Every loop runs inside the interpreter's own functions: what this thread takes of it, training waits for.
    mappings = [values for _, values in told]
    every_name = list(itertools.chain.from_iterable(mappings))
    codes = {name: code for code, name in enumerate(dict.fromkeys(every_name))}
    names = json.dumps(list(map(str, codes)), ensure_ascii=True).encode("ascii")
    numbers = list(itertools.chain.from_iterable(map(_values_of, mappings)))
    columns = (
        np.array([step for step, _ in told], "<i8"),
        np.array(list(map(len, mappings)), "<u4"),
        np.array(list(map(codes.__getitem__, every_name)), "<u4"),
        np.array(list(map(float, numbers)), "<f8"),
    )
    head = _SCALARS_HEAD.pack(len(told), len(numbers), len(names))
    return b"".join((head, names, *map(shuffle, columns)))


def decode_scalars(raw: bytes) -> Scalars:
    """The inverse of `encode_scalars`."""
    try:
        num_steps, num_values, name_bytes = _SCALARS_HEAD.unpack_from(raw)
        offset = _SCALARS_HEAD.size + name_bytes
        names = _scalar_names(raw[_SCALARS_HEAD.size : offset])
        if len(raw) != offset + 12 * (num_steps + num_values):
            raise EncodingError("the payload's size does not match its scalars")
        steps = unshuffle(raw, offset, num_steps, "<i8")
        counts = unshuffle(raw, offset + 8 * num_steps, num_steps, "<u4").astype(np.int64)
        codes = unshuffle(raw, offset + 12 * num_steps, num_values, "<u4").astype(np.int64)
        values = unshuffle(raw, offset + 12 * num_steps + 4 * num_values, num_values, "<f8")
    except (struct.error, ValueError) as error:
        raise EncodingError(f"these are not scalars: {error}") from error
    if int(counts.sum()) != num_values or (num_values and int(codes.max()) >= len(names)):
        raise EncodingError("scalars whose counts or names do not match")
    return Scalars(names, np.repeat(steps, counts), codes, values)


def decode_scalars_of_step(raw: bytes, step: int) -> Scalars:
    """The numbers of one step as format 1 wrote them."""
    try:
        count, name_bytes = struct.unpack_from("<II", raw)
        names = _scalar_names(raw[8 : 8 + name_bytes])
        values = np.frombuffer(raw, "<f8", count, 8 + name_bytes)
    except (struct.error, ValueError) as error:
        raise EncodingError(f"these are not scalars: {error}") from error
    if len(names) != count:
        raise EncodingError("scalars whose numbers and names do not match")
    return Scalars(names, np.full(count, step, np.int64), np.arange(count), values.astype(np.float64))


def _scalar_names(raw: bytes) -> list[str]:
    names = decode_json(raw)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise EncodingError("the scalars' names are not a list of names")
    return names
