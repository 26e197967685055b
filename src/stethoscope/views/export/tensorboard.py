"""An event file that TensorBoard reads, written by hand: metrics, one statistic of every site, histograms, findings.

The format is a few fields of two protobuf messages in checksummed records (tensorboard/compat/proto: event.proto,
summary.proto; TFRecord framing). Writing them takes this file; the package would take tensorboard, grpc and protobuf.
"""

from __future__ import annotations

import html
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels import histogram
from stethoscope.kernels.statistics import STATISTICS
from stethoscope.record import Finding, Series, Site, StethoscopeError, metrics, printable
from stethoscope.store import Run
from stethoscope.views.common.run_status import started_at

_POLYNOMIAL: Final = 0x82F63B78
"""CRC-32C (Castagnoli), reflected, as the TFRecord framing asks for."""
_CHUNK: Final = 4096
"""Records checksummed together."""


def write_events(run: Run, folder: Path, stats: Sequence[str] = ("norm",)) -> tuple[int, str]:
    """One event file in the folder; how many events, and its name."""
    for stat in stats:
        if stat not in STATISTICS:
            raise StethoscopeError("Unknown statistic", where=stat, do=f"Known: {', '.join(STATISTICS)}")
    begun = started_at(run) or 0.0
    name = f"events.out.tfevents.{int(begun):010d}.stethoscope"
    clock = Clock(run, begun)
    count = 0
    with (folder / name).open("wb") as file:
        kept: list[bytes] = [_encode_event(begun, 0, file_version=b"brain.Event:2")]
        for record in _all_records(run, clock, stats):
            kept.append(record)
            count += 1
            if len(kept) >= _CHUNK:
                _write(file, kept)
                kept = []
        _write(file, kept)
    return count, name


class Clock:
    """When a step was taken, by the durations of steps where they were recorded."""

    def __init__(self, run: Run, begun: float) -> None:
        self._begun = begun
        self._series = run.metric(metrics.STEP_MS)
        self._passed = np.cumsum(np.nan_to_num(self._series.values)) / 1000

    def at(self, step: int) -> float:
        """Seconds since 1970."""
        at = int(np.searchsorted(self._series.steps, step, side="right")) - 1
        return self._begun + (float(self._passed[at]) if at >= 0 else 0.0)


def _all_records(run: Run, clock: Clock, stats: Sequence[str]) -> Iterator[bytes]:
    for metric in run.metrics():
        yield from _scalar_events(_tag_bytes(metric), run.metric(metric), clock)
    for kind in dict.fromkeys(info.site.kind for info in run.sites):
        for stat in stats:
            for site, series in run.series("*", kind, stat).items():
                yield from _scalar_events(_tag_bytes(f"{kind}_{stat}/{site.path}"), series, clock)
    for info in run.sites:
        yield from _histogram_events(run, info.site, clock)
    for finding in run.findings():
        yield _text_event(finding, clock)


def _tag_bytes(name: str) -> bytes:
    return printable(name, 1000).encode("utf-8", "replace")


def _scalar_events(tag: bytes, series: Series, clock: Clock) -> Iterator[bytes]:
    with np.errstate(over="ignore"):
        values = series.values.astype(np.float32)
    for step, value in zip(series.steps.tolist(), values.tolist(), strict=True):
        yield _encode_event(
            clock.at(step), step, value=_encode_field(1, tag) + _field_key(2, 5) + struct.pack("<f", value)
        )


def _histogram_events(run: Run, site: Site, clock: Clock) -> Iterator[bytes]:
    """The exponent histograms, bin by bin as they are: only the edges of neighbors that hold anything."""
    steps, table = run.vectors("histogram", site)
    if not len(steps):
        return
    lows, highs = (np.clip(edge, -np.finfo(np.float64).max, np.finfo(np.float64).max) for edge in histogram.edges())
    tag = _tag_bytes(f"{site.kind}/{site.path}")
    for step, row in zip(steps.tolist(), np.asarray(table, dtype=np.float64), strict=True):
        used = np.flatnonzero(row)
        if not len(used):
            continue
        first, last = int(used[0]), int(used[-1])
        counts, ends = row[first : last + 1], highs[first : last + 1]
        middles = (lows[first : last + 1] + ends) / 2
        body = b"".join(
            _field_key(field, 1) + struct.pack("<d", value)
            for field, value in (
                (1, float(lows[first])),
                (2, float(highs[last])),
                (3, float(counts.sum())),
                (4, float((counts * middles).sum())),
                (5, float((counts * middles**2).sum())),
            )
        )
        # A bucket's limit must rise strictly: zero's own bin ends where the smallest positive one begins.
        body += _encode_field(6, np.maximum.accumulate(_rising_ends(ends)).astype("<f8").tobytes()) + _encode_field(
            7, counts.astype("<f8").tobytes()
        )
        yield _encode_event(clock.at(step), step, value=_encode_field(1, tag) + _encode_field(5, body))


def _rising_ends(ends: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    out = ends.copy()
    for at in range(1, len(out)):
        if out[at] <= out[at - 1]:
            out[at] = np.nextafter(out[at - 1], np.inf)
    return out


def _text_event(finding: Finding, clock: Clock) -> bytes:
    """A finding as text at the step where it began; names in it cannot become markup."""
    words = [f"{finding.severity}: {finding.message}"]
    words += [f"{e.label}: {e.before} to {e.value} {e.unit}".rstrip() for e in finding.evidence]
    words += [f"Try: {finding.remedy}"] if finding.remedy else []
    text = "  \n".join(html.escape(printable(word, 2000)) for word in words).encode("utf-8", "replace")
    tensor = (
        _field_key(1, 0)
        + _varint(7)
        + _encode_field(2, _encode_field(2, _field_key(1, 0) + _varint(1)))
        + _encode_field(8, text)
    )
    metadata = _encode_field(1, _encode_field(1, b"text"))
    value = (
        _encode_field(1, _tag_bytes(f"findings/{finding.code}")) + _encode_field(9, metadata) + _encode_field(8, tensor)
    )
    return _encode_event(clock.at(finding.first_step), finding.first_step, value=value)


# ---- protobuf, as far as it is needed ----


def _encode_event(time: float, step: int, *, value: bytes = b"", file_version: bytes = b"") -> bytes:
    out = _field_key(1, 1) + struct.pack("<d", time) + _field_key(2, 0) + _varint(step)
    return out + (_encode_field(3, file_version) if file_version else _encode_field(5, _encode_field(1, value)))


def _field_key(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _encode_field(field: int, body: bytes) -> bytes:
    return _field_key(field, 2) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# ---- records ----


def _write(file: BinaryIO, records: Sequence[bytes]) -> None:
    """Each as length, checksum of the length, bytes, checksum of the bytes."""
    lengths = [struct.pack("<Q", len(record)) for record in records]
    of_lengths, of_records = masked_crcs(lengths), masked_crcs(records)
    for length, length_crc, record, crc in zip(lengths, of_lengths, records, of_records, strict=True):
        file.write(length + struct.pack("<I", length_crc) + record + struct.pack("<I", crc))


def _crc_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


_TABLE: Final = _crc_table()


def masked_crcs(records: Sequence[bytes]) -> list[int]:
    """CRC-32C of each, rotated and offset as the framing asks. Side by side: a byte of every record at a time."""
    sizes = np.array([len(record) for record in records], dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    longest = int(sizes.max(initial=0))
    padded = np.zeros((longest, len(records)), dtype=np.uint8)
    for index, at in enumerate(order):
        padded[: sizes[at], index] = np.frombuffer(records[at], dtype=np.uint8)
    crc = np.full(len(records), 0xFFFFFFFF, dtype=np.uint32)
    # Sorted by length: at byte n the records that are longer than n are the first ones.
    num_longer = np.searchsorted(-sizes[order], -np.arange(longest), side="left")
    for byte in range(longest):
        n = int(num_longer[byte])
        part = crc[:n]
        crc[:n] = _TABLE[(part ^ padded[byte, :n]) & 0xFF] ^ (part >> np.uint32(8))
    crc ^= np.uint32(0xFFFFFFFF)
    masked = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    out = np.empty(len(records), dtype=np.uint32)
    out[order] = masked
    return [int(value) for value in out]
