"""Rows, scalars and vectors as payload bytes, and back.

Promises of the round trip: counts are exact; `mean` keeps all 64 bits; every other statistic keeps a 24-bit
mantissa (relative error at most 2**-24) over the whole range of float64; NaN, Inf and the sign of zero stay.

Each column gets the narrowest form that holds it: one constant, unsigned integers of one to eight bytes,
float32, float64. `abs_max` costs nothing where it follows from min and max. Bytes are shuffled (all first
bytes, then all second ones) because that is what makes exponents compress.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import struct
import threading
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import INDEX, NUM_COLUMNS, NUM_COUNTS, Table
from stethoscope.store.json_payload import EncodingError, decode_json

U32Array = npt.NDArray[np.uint32]

_CONSTANT, _RANGE, _U8, _U16, _U32, _U64, _F32, _F64, _ABS_MAX = range(9)
_UNSIGNED: Final = {_U8: "<u1", _U16: "<u2", _U32: "<u4", _U64: "<u8"}
_DTYPES: Final = {**_UNSIGNED, _F32: "<f4", _F64: "<f8"}
_ROWS_HEAD: Final = struct.Struct("<IHBB")
_VECTORS_HEAD: Final = struct.Struct("<IIII")
_VECTOR_DTYPES: Final = frozenset({"|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"})
_MEAN: Final = INDEX["mean"]
_MIN, _MAX, _MAX_ABS = INDEX["min"], INDEX["max"], INDEX["abs_max"]
_ROUNDED: Final = [j for j in range(NUM_COUNTS, NUM_COLUMNS) if j != _MEAN]
_NUM_BEFORE_MEAN: Final = _MEAN - NUM_COUNTS
_MIN_MAX_ABS_MAX: Final = [_ROUNDED.index(number) for number in (_MIN, _MAX, _MAX_ABS)]
_TAGS_OF_SINGLES: Final = bytes(_F64 if j == _MEAN else _F32 for j in range(NUM_COUNTS, NUM_COLUMNS))
_TAGS_WITHOUT_ABS_MAX: Final = bytes(
    _ABS_MAX if j == _MAX_ABS else _F64 if j == _MEAN else _F32 for j in range(NUM_COUNTS, NUM_COLUMNS)
)
_LARGEST_EXACT: Final = 2.0**63
_SMALLEST_SINGLE: Final = float(np.finfo(np.float32).tiny)
_LARGEST_SINGLE: Final = float(np.finfo(np.float32).max)
_HALF_DROPPED_BIT: Final = np.uint64(1 << 28)
_KEPT_BITS: Final = np.uint64(0xFFFF_FFFF_E000_0000)
_per_thread: Final = threading.local()


_MOST_ROWS: Final = 1 << 18
"""Rows in one frame beyond one for each byte: constant columns need no bytes, so the payload's size does not bound them."""


def shuffle(values: npt.NDArray[Any]) -> bytes:
    """All first bytes, then all second bytes, and so on."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, flat.itemsize).T.tobytes()


def unshuffle(raw: bytes | memoryview, offset: int, count: int, dtype: str) -> npt.NDArray[Any]:
    """The inverse of `shuffle`."""
    kind = np.dtype(dtype)
    if offset + count * kind.itemsize > len(raw):
        raise EncodingError("the payload is too short for its columns")
    planes = np.frombuffer(raw, np.uint8, count * kind.itemsize, offset).reshape(kind.itemsize, count)
    return np.ascontiguousarray(planes.T).view(kind).reshape(count)


def round_to_24_bits(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Each value with a 24-bit mantissa, at float64's range. Finite values stay finite."""
    bits = np.ascontiguousarray(values, np.float64).view(np.uint64)
    rounded = ((bits + _HALF_DROPPED_BIT) & _KEPT_BITS).view(np.float64)
    cut = (bits & _KEPT_BITS).view(np.float64)
    finite = np.isfinite(values)
    return np.where(finite, np.where(np.isfinite(rounded), rounded, cut), values)


def stored_floats(table: Table) -> Table:
    """The table as a reader will get it back: what storing changes, and nothing else."""
    out = np.array(table, np.float64)
    for column in _ROUNDED:
        out[:, column] = _narrow_float(out[:, column])[1].astype(np.float64)
    return out


def _to_singles(block: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Columns [k, n] as float32, and which of them lose no more than 24 bits' worth by it."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        singles = block.astype(np.float32)
        size = np.abs(block)
        fits = (size >= _SMALLEST_SINGLE) & (size <= _LARGEST_SINGLE)
        if not fits.all():  # zeros, NaN, Inf and what float32 holds exactly below its normal range
            fits |= (singles.astype(np.float64) == block) | np.isnan(block)
    return singles, np.asarray(fits.all(axis=1))


def _narrow_float(column: npt.NDArray[np.float64]) -> tuple[int, npt.NDArray[Any]]:
    singles, fits = _to_singles(column[None])
    return (_F32, singles[0]) if fits[0] else (_F64, round_to_24_bits(column))


def narrow_unsigned(column: npt.NDArray[Any]) -> tuple[int, npt.NDArray[Any]]:
    """The narrowest unsigned form of whole numbers, with its tag."""
    num_bits = int(column.max(initial=0)).bit_length()
    for tag, dtype in _UNSIGNED.items():
        if num_bits <= 8 * int(dtype[-1]):
            return tag, column.astype(dtype)
    raise EncodingError("not an unsigned integer")  # pragma: no cover - uint64 always fits the last


def encode_rows(index: U32Array, table: Table, calls: U32Array | None = None) -> bytes:
    """The rows of one step as payload bytes."""
    num_rows = len(index)
    columns = np.ascontiguousarray(table.T)
    site_tags, sites = _encode_sites(index, calls)
    count_tags, counts = _encode_counts(columns[:NUM_COUNTS])
    tags, head = site_tags + count_tags, sites + counts
    # All float columns at once: a step of a small model has few rows, and every call takes longer than they do.
    singles, fits = _to_singles(columns[_ROUNDED])
    mean = shuffle(columns[_MEAN])
    if fits.all():
        planes = singles.view(np.uint8).reshape(len(singles), num_rows, 4).transpose(0, 2, 1)
        before, after = planes[:_NUM_BEFORE_MEAN].tobytes(), planes[_NUM_BEFORE_MEAN:].tobytes()
        if _abs_max_follows(*singles[_MIN_MAX_ABS_MAX]):
            left_out = 4 * num_rows * _MIN_MAX_ABS_MAX[2]
            before = before[:left_out] + before[left_out + 4 * num_rows :]
            tags += _TAGS_WITHOUT_ABS_MAX
        else:
            tags += _TAGS_OF_SINGLES
        return b"".join([_ROWS_HEAD.pack(num_rows, len(columns), 1, 0), tags, head, before, mean, after])
    parts = [head]
    for number in range(NUM_COUNTS, NUM_COLUMNS):
        k = _ROUNDED.index(number) if number != _MEAN else None
        tags += bytes([_F32 if k is not None and fits[k] else _F64])
        parts.append(mean if k is None else shuffle(singles[k] if fits[k] else round_to_24_bits(columns[number])))
    return b"".join([_ROWS_HEAD.pack(num_rows, len(columns), 1, 0), tags, *parts])


def _encode_sites(index: U32Array, calls: U32Array | None) -> tuple[bytes, bytes]:
    """Tags and bytes of which sites there are, and how often they fired: mostly the same in step after step."""
    key = index.tobytes(), None if calls is None else calls.tobytes()
    known = getattr(_per_thread, "sites", None)
    if known is None or known[0] != key:
        (index_tag, index_bytes), (calls_tag, calls_bytes) = _encode_index(index), _encode_calls(calls)
        known = _per_thread.sites = key, (bytes([index_tag, calls_tag]), index_bytes + calls_bytes)
    found: tuple[bytes, bytes] = known[1]
    return found


def _encode_counts(counts: npt.NDArray[np.float64]) -> tuple[bytes, bytes]:
    """Tags and bytes of columns that mostly hold whole numbers, and of these mostly the same one."""
    if not counts.size:
        return bytes([_U8] * len(counts)), b""
    bits = counts.view(np.int64)
    is_constant = (bits == bits[:, :1]).all(axis=1)
    narrowed = iter(_narrow_counts(counts[~is_constant]))
    tags = bytearray()
    parts: list[bytes] = []
    for first, same in zip(counts[:, 0].tolist(), is_constant.tolist(), strict=True):
        tag, data = (_CONSTANT, struct.pack("<d", first)) if same else next(narrowed)
        tags.append(tag)
        parts.append(data)
    return bytes(tags), b"".join(parts)


def _narrow_counts(counts: npt.NDArray[np.float64]) -> list[tuple[int, bytes]]:
    """Each column in the narrowest form that holds all its numbers."""
    # NaN is in no range. Zero with a sign has the highest bit set, and is the smallest of whole numbers then.
    if not counts.size or not (counts.view(np.int64).min() >= 0 and counts.max() < _LARGEST_EXACT):
        return [(_F64, shuffle(column)) for column in counts]
    whole = counts.astype(np.uint64)
    is_whole = (whole == counts).all(axis=1).tolist()
    found: list[tuple[int, bytes]] = []
    for fits, column, numbers in zip(is_whole, counts, whole, strict=True):
        tag, values = narrow_unsigned(numbers) if fits else (_F64, column)
        found.append((tag, values.tobytes() if tag == _U8 else shuffle(values)))
    return found


def _encode_index(index: U32Array) -> tuple[int, bytes]:
    if len(index) == 0:
        return _RANGE, np.zeros(1, "<u4").tobytes()
    steps = np.diff(index)
    if bool((steps == 1).all()):
        return _RANGE, np.asarray(index[:1], "<u4").tobytes()
    return _U32, shuffle(np.concatenate([index[:1], steps]).astype("<u4"))


def _encode_calls(calls: U32Array | None) -> tuple[int, bytes]:
    if calls is None or not len(calls) or bool((calls == calls[0]).all()):
        value = 1.0 if calls is None or not len(calls) else float(calls[0])
        return _CONSTANT, np.full(1, value, "<f8").tobytes()
    tag, values = narrow_unsigned(calls)
    return tag, shuffle(values)


def _abs_max_follows(
    low: npt.NDArray[np.float32], high: npt.NDArray[np.float32], stored: npt.NDArray[np.float32]
) -> bool:
    """Whether a reader gets abs_max back, to the last bit, from min and max as they are stored."""
    larger = np.maximum(np.abs(low), np.abs(high))
    same = (larger == stored) & ~np.signbit(stored)
    return bool((same | (np.isnan(larger) & np.isnan(stored))).all())


@dataclasses.dataclass(slots=True)
class Rows:
    """The decoded rows of one frame; columns are unpacked when asked for."""

    num_rows: int
    num_columns: int
    _raw: bytes
    _tags: bytes
    _offsets: tuple[int, ...]

    def __len__(self) -> int:
        return self.num_rows

    @property
    def index(self) -> U32Array:
        """The site of each row, as its number in the process start."""
        return _decode_index(self._raw, self._tags[0], self._offsets[0], self.num_rows)

    @property
    def index_bytes(self) -> bytes:
        """The index as it is stored: equal bytes mean equal sites."""
        return self._raw[: _ROWS_HEAD.size] + self._raw[self._offsets[0] : self._offsets[1]] + self._tags[:1]

    @property
    def calls(self) -> U32Array:
        """How often each site fired."""
        return _decode_column(self._raw, self._tags[1], self._offsets[1], self.num_rows).astype(np.uint32)

    def column(self, index: int) -> npt.NDArray[np.float64]:
        """One statistic of every row."""
        tag, offset = self._tags[index + 2], self._offsets[index + 2]
        if tag == _ABS_MAX:
            # Of min and max, which stand before it in every file, whatever other columns it has.
            low, high = self.column(index - 2), self.column(index - 1)
            larger: npt.NDArray[np.float64] = np.maximum(np.abs(low), np.abs(high))
            return larger
        return _decode_column(self._raw, tag, offset, self.num_rows)

    def table(self) -> Table:
        """All statistics of every row."""
        out = np.empty((self.num_rows, self.num_columns))
        for column in range(self.num_columns):
            out[:, column] = self.column(column)
        return out


def _decode_column(raw: bytes, tag: int, offset: int, count: int) -> npt.NDArray[np.float64]:
    if tag == _CONSTANT:
        return np.full(count, struct.unpack_from("<d", raw, offset)[0])
    narrow = unshuffle(raw, offset, count, _DTYPES[tag])
    if narrow.dtype.kind != "f":
        return narrow.astype(np.float64)
    with np.errstate(invalid="ignore"):  # a NaN that signals, which nothing of ours writes, is one all the same
        return narrow.astype(np.float64)


def decode_rows(raw: bytes) -> Rows:
    """The inverse of `encode_rows`; EncodingError where the payload does not have its form."""
    try:
        num_rows, num_columns, version, _ = _ROWS_HEAD.unpack_from(raw)
        if num_rows > max(_MOST_ROWS, len(raw)):
            raise EncodingError(f"a frame of {num_rows} rows in {len(raw)} bytes is over the limit of {_MOST_ROWS}")
        if version != 1:
            raise EncodingError(f"rows of form {version} are not known here")
        tags = raw[_ROWS_HEAD.size : _ROWS_HEAD.size + num_columns + 2]
        if len(tags) != num_columns + 2 or not num_columns:
            raise EncodingError("these are not rows")
        _check_tags(tags)
        *offsets, end = _column_offsets(tags, num_rows)
    except (struct.error, KeyError) as error:
        raise EncodingError(f"these are not rows: {error}") from error
    if end != len(raw):
        raise EncodingError("the payload's size does not match its columns")
    if tags[1] == _CONSTANT and not 0 <= struct.unpack_from("<d", raw, offsets[1])[0] < 2**32:
        raise EncodingError("a number of calls that cannot be counted")
    return Rows(num_rows, num_columns, raw, tags, tuple(offsets))


@functools.lru_cache(maxsize=512)
def _check_tags(tags: bytes) -> None:
    """EncodingError for a form that a column cannot have at its position: columns are unpacked long after this."""
    if tags[0] not in (_RANGE, _U32) or tags[1] not in (_CONSTANT, _U8, _U16, _U32):
        raise EncodingError("these are not rows")
    for column, tag in enumerate(tags[2:]):
        follows = tag == _ABS_MAX and column >= 2 and _ABS_MAX not in tags[column : column + 2]
        if tag != _CONSTANT and tag not in _DTYPES and not follows:
            raise EncodingError(f"a column of form {tag} is not known here")


@functools.lru_cache(maxsize=512)
def _column_offsets(tags: bytes, num_rows: int) -> tuple[int, ...]:
    """Where each column begins, and where the last one ends: the same for most frames of a run."""
    offsets = [_ROWS_HEAD.size + len(tags)]
    for tag in tags:
        offsets.append(offsets[-1] + _column_bytes(tag, num_rows))
    return tuple(offsets)


def _column_bytes(tag: int, num_rows: int) -> int:
    if tag == _CONSTANT:
        return 8
    if tag == _RANGE:
        return 4
    return 0 if tag == _ABS_MAX else np.dtype(_DTYPES[tag]).itemsize * num_rows


def _decode_index(raw: bytes, tag: int, offset: int, count: int) -> U32Array:
    if tag == _RANGE:
        first = struct.unpack_from("<I", raw, offset)[0]
        if count > max(_MOST_ROWS, len(raw)) or first + count > 2**32:
            raise EncodingError(f"{count} sites from number {first} on are over the limit")
        return np.arange(first, first + count, dtype=np.int64).astype(np.uint32)
    steps: U32Array = unshuffle(raw, offset, count, "<u4")
    return np.cumsum(steps, dtype=np.uint32)


def encode_vectors(name: str, index: U32Array, values: npt.NDArray[Any]) -> bytes:
    """One vector per site, all of one length and dtype."""
    dtype = values.dtype.newbyteorder("<").str
    if dtype not in _VECTOR_DTYPES:
        raise EncodingError(f"vectors of dtype {values.dtype} cannot be stored")
    label = json.dumps([name, dtype], ensure_ascii=True).encode("ascii")
    tag, packed = _encode_index(index)
    head = _VECTORS_HEAD.pack(len(index), values.shape[1], len(label), tag)
    return head + label + packed + shuffle(values.astype(dtype))


def decode_vectors(raw: bytes) -> tuple[str, U32Array, npt.NDArray[Any]]:
    """The inverse of `encode_vectors`: name, site indices, values [n, k]."""
    try:
        count, width, tag, name, dtype, column = _vectors_layout(raw)
        index = _decode_index(raw, tag, column, count)
        values = unshuffle(raw, column + _column_bytes(tag, count), count * width, dtype)
        return name, index, values.reshape(count, width)
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise EncodingError(f"these are not vectors: {error}") from error


def vectors_name(raw: bytes) -> str:
    """The name alone of what `decode_vectors` takes apart; EncodingError where sizes do not match."""
    try:
        return _vectors_layout(raw)[3]
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise EncodingError(f"these are not vectors: {error}") from error


def _vectors_layout(raw: bytes) -> tuple[int, int, int, str, str, int]:
    """Count, width, tag of the index, name, dtype and where the index begins, tested against the payload's size."""
    count, width, label_bytes, tag = _VECTORS_HEAD.unpack_from(raw)
    column = _VECTORS_HEAD.size + label_bytes
    name, dtype = decode_json(raw[_VECTORS_HEAD.size : column])
    if dtype not in _VECTOR_DTYPES or not isinstance(name, str):
        raise EncodingError(f"vectors {name!r:.40} of dtype {dtype!r:.40} are not known here")
    if tag not in (_RANGE, _U32):
        raise EncodingError(f"an index of form {tag} is not known here")
    end = column + _column_bytes(tag, count) + count * width * np.dtype(dtype).itemsize
    if end != len(raw):
        raise EncodingError("the payload's size does not match its vectors")
    if not width and count:
        raise EncodingError("vectors without elements")
    return count, width, tag, name, dtype, column
