"""RunWriter: the training process's end of the store.

Promises to the training thread: every method returns after copying what it was given, does no input or
output, and never raises. A thread of its own encodes and writes. Whatever is lost is counted in `counters`
and, when the disk can be written again, in the run itself. A forked child inherits an inert writer: no
thread, no lock, no bytes.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import zstandard

from stethoscope.kernels.columns import COLUMNS, NUM_COLUMNS, Table
from stethoscope.record import SiteInfo
from stethoscope.store import process
from stethoscope.store.budget import DiskBudget
from stethoscope.store.encoding import (
    EncodingError,
    U32Array,
    encode_json,
    encode_rows,
    encode_scalars,
    encode_vectors,
)
from stethoscope.store.folder import describe_run, make_folder
from stethoscope.store.frames import COMPRESSION_LEVEL, FORMAT_VERSION, Frame, FrameError, FrameKind, build
from stethoscope.store.locate import next_ordinal, rank_folder
from stethoscope.store.queue import ByteQueue, Item, joined_sites
from stethoscope.store.spool import Spool

_log: Final = logging.getLogger("stethoscope.store")
_POLL_S: Final = 0.05
_SYNC_S: Final = 1.0
_RETRY_S: Final = 1.0
_BATCH_BYTES: Final = 2 << 20
_MOST_UNSYNCED_BYTES: Final = 16 << 20
_COUNTERS: Final = (
    "queued",
    "written",
    "dropped_rows",
    "dropped_other",
    "dropped_bytes",
    "rejected",
    "write_errors",
    "fsync_errors",
    "bytes_written",
)
_LOSSES: Final = (
    "dropped_rows",
    "dropped_other",
    "dropped_bytes",
    "rejected",
    "write_errors",
    "fsync_errors",
)

_alive: weakref.WeakSet[RunWriter] = weakref.WeakSet()


class _Request:
    """Someone waits for everything handed in so far to be durable."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.done = threading.Event()
        self.succeeded = False

    def settle(self, succeeded: bool) -> None:
        self.succeeded = succeeded
        self.done.set()


class RunWriter:
    """Writes one process start of a run. Make one with `RunWriter.create`."""

    def __init__(
        self,
        folder: Path,
        spool: Spool,
        queue: ByteQueue,
        counters: dict[str, int],
        trouble: str,
        budget: DiskBudget,
    ) -> None:
        self.path = folder
        self.counters = counters
        self._spool = spool
        self._queue = queue
        self._budget = budget
        self._setup_trouble = trouble
        self._is_writing = not trouble
        self._is_closed = False
        self._is_inert = False
        self._num_sites = 0
        self._serial = 0
        self._requests: list[_Request] = []
        self._end: tuple[str, dict[str, Any]] | None = None
        self._wake = threading.Event()
        self._losses_said: tuple[int, ...] = (0,) * len(_LOSSES)
        self._compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
        _alive.add(self)
        self._thread = threading.Thread(target=self._work, name="stethoscope-writer", daemon=True)
        self._thread.start()

    @classmethod
    def create(
        cls,
        folder: Path,
        info: dict[str, Any],
        *,
        rank: int = 0,
        world_size: int = 1,
        disk_bytes: int = 2 << 30,
        queue_bytes: int = 64 << 20,
    ) -> RunWriter:
        """Begins a run, or a new process start of one. Never raises: see `state` and `trouble`."""
        folder = Path(folder)
        counters = dict.fromkeys(_COUNTERS, 0)
        token = secrets.token_hex(4)
        head = {
            "format_version": FORMAT_VERSION,
            "rank": rank,
            "world_size": world_size,
            "start": token,
            "started_at": time.time(),
            "columns": list(COLUMNS),
            "process": process.describe(),
            "disk_bytes": disk_bytes,
        }

        def prepare() -> int:
            make_folder(folder, rank)
            if rank == 0:
                describe_run(folder, info, world_size, disk_bytes)
            return next_ordinal(folder, rank)

        share = disk_bytes // max(world_size, 1)
        spool = Spool(rank_folder(folder, rank), token, head, counters, prepare, share_bytes=share)
        trouble = "" if spool.open() else spool.trouble
        budget = DiskBudget(folder, rank, share)
        writer = cls(folder, spool, ByteQueue(queue_bytes, counters), counters, trouble, budget)
        if spool.ordinal > 1:
            writer.event(0, "start", {"ordinal": spool.ordinal, "info": info})
        return writer

    @property
    def state(self) -> str:
        """ "writing", "memory" (nothing reaches the disk now) or "closed"."""
        if self._is_closed or self._is_inert:
            return "closed"
        return "writing" if self._is_writing else "memory"

    @property
    def trouble(self) -> str:
        """Why rows do not reach the disk, "" where all is well."""
        if self._is_writing and self._budget.is_over:
            return f"over its disk budget, rows are not recorded: {self.path}"
        return self._spool.trouble or ("" if self._is_writing else self._setup_trouble)

    def sites(self, infos: Sequence[SiteInfo]) -> None:
        """Registers sites; a site's index is its order of registration in this process start."""
        first, self._num_sites = self._num_sites, self._num_sites + len(infos)
        self._put(FrameKind.SITES, 0, (first, tuple(infos)), 200 * len(infos) + 100)

    def rows(self, step: int, index: U32Array, table: Table, calls: U32Array | None = None) -> None:
        """One row for each site in `index`, at this step."""
        try:
            places = np.array(index, np.uint32)
            values = np.array(table, np.float64)
            times = None if calls is None else np.array(calls, np.uint32)
        except (TypeError, ValueError, OverflowError) as error:
            self._reject(f"rows of step {step}: {error}")
            return
        if values.shape != (len(places), NUM_COLUMNS) or (times is not None and times.shape != places.shape):
            self._reject(f"rows of step {step}: a table {values.shape} for {places.shape} sites")
            return
        self._put(FrameKind.ROWS, step, (places, values, times), values.nbytes + 200, len(places))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Named numbers of this step."""
        try:
            numbers = {str(name): float(value) for name, value in values.items()}
        except (TypeError, ValueError) as error:
            self._reject(f"scalars of step {step}: {error}")
            return
        self._put(FrameKind.SCALARS, step, (numbers,), 100 * len(numbers) + 100)

    def vectors(self, step: int, name: str, index: U32Array, values: npt.NDArray[Any]) -> None:
        """One vector for each site in `index`, at this step."""
        try:
            places, matrix = np.array(index, np.uint32), np.array(values)
        except (TypeError, ValueError, OverflowError) as error:
            self._reject(f"{name} of step {step}: {error}")
            return
        if matrix.ndim != 2 or len(matrix) != len(places):
            self._reject(f"{name} of step {step}: values {matrix.shape} for {places.shape} sites")
            return
        self._put(FrameKind.VECTORS, step, (str(name), places, matrix), matrix.nbytes + 200, len(places))

    def event(self, step: int, kind: str, body: dict[str, Any]) -> None:
        """A discrete fact. The body is turned into JSON now, so the caller may change it after."""
        try:
            raw = encode_json({"kind": str(kind), "body": body})
        except (TypeError, ValueError, RecursionError) as error:
            self._reject(f"event {kind} of step {step}: {error}")
            return
        self._put(FrameKind.EVENT, step, (raw,), len(raw) + 100)

    def flush(self, timeout: float = 10.0) -> bool:
        """True when everything handed in before the call is on disk and fsynced."""
        if self._is_inert or self._is_closed:
            return False
        request = _Request(self._queue.num_put)
        self._requests.append(request)
        self._wake.set()
        request.done.wait(timeout)
        return request.succeeded

    def close(
        self, ended: str = "finished", body: dict[str, Any] | None = None, timeout: float = 5.0
    ) -> None:
        """Writes what is left and how the run ended; after it nothing is taken any more."""
        if self._is_inert or self._is_closed or self._end is not None:
            return
        self._end = (ended, dict(body or {}))
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        self._is_closed = True

    def _put(
        self, kind: FrameKind, step: int, content: tuple[Any, ...], num_bytes: int, num_rows: int = 0
    ) -> None:
        if self._is_inert or self._is_closed or self._end is not None:
            return
        try:
            place = int(step)
            if not -(2**63) <= place < 2**63:
                raise OverflowError("a step has 64 bits")
        except (TypeError, ValueError, OverflowError) as error:
            self._reject(f"step {step!r}: {error}")
            return
        self.counters["queued"] += 1
        self._queue.put(Item(kind, place, time.time(), content, num_bytes, num_rows))
        if self._queue.num_bytes > _BATCH_BYTES:
            self._wake.set()

    def _reject(self, why: str) -> None:
        self.counters["rejected"] += 1
        _log.warning("not recorded: %s", why)

    def _work(self) -> None:
        """The writer thread."""
        last_sync = time.monotonic()
        while not self._is_inert:
            self._wake.wait(_POLL_S if self._is_writing else _RETRY_S)
            self._wake.clear()
            try:
                last_sync = self._turn(last_sync)
            except Exception:
                _log.exception("the writer thread failed once and goes on")
                self.counters["write_errors"] += 1
                self._settle(list(self._requests), succeeded=False)
            if self._end is not None and (
                not self._is_writing or not self._queue.num_put - self._queue.num_taken
            ):
                self._finish()
                return

    def _turn(self, last_sync: float) -> float:
        """Takes, encodes and writes until the queue is empty; syncs when due. Returns when it last did."""
        succeeded = self._spool.drain()
        while succeeded and not self._is_inert:
            batch = self._queue.take(_BATCH_BYTES)
            for item in joined_sites(batch):
                self._encode(item)
            succeeded = self._spool.drain()
            if not batch or self._spool.unsynced_bytes > _MOST_UNSYNCED_BYTES:
                break
        self._budget.note(self.counters["bytes_written"])
        now = time.monotonic()
        # Taken before the sync: a request that comes in after it must wait for the next one.
        reached = [request for request in list(self._requests) if request.after <= self._queue.num_taken]
        is_due = now - last_sync >= _SYNC_S or self._spool.unsynced_bytes > _MOST_UNSYNCED_BYTES
        if succeeded and (reached or is_due):
            self._report_losses()
            succeeded = self._spool.sync()
            last_sync = now
        self._is_writing = succeeded
        self._settle(reached if succeeded else list(self._requests), succeeded)
        return last_sync

    def _encode(self, item: Item) -> None:
        content = item.content
        if content is None:
            return
        if self._budget.is_over and item.is_bulk:
            self._queue.count_dropped(item)
            return
        try:
            raw = _payload(item.kind, content)
            frame = build(
                item.kind, item.step, item.time, raw, serial=self._serial + 1, compressor=self._compressor
            )
        except (EncodingError, FrameError, TypeError, ValueError, RecursionError) as error:
            self._reject(f"{item.kind.name.lower()} of step {item.step}: {error}")
            return
        self._serial += 1
        self._spool.push(frame)
        self.counters["written"] += 1

    def _report_losses(self) -> None:
        losses = tuple(self.counters[name] for name in _LOSSES)
        if losses != self._losses_said:
            self._losses_said = losses
            self._spool.push(build(FrameKind.HEALTH, 0, time.time(), encode_json(self._losses())))

    def _losses(self) -> dict[str, int]:
        return {name: self.counters[name] for name in _LOSSES}

    def _settle(self, requests: list[_Request], succeeded: bool) -> None:
        for request in requests:
            self._requests.remove(request)
            request.settle(succeeded)

    def _finish(self) -> None:
        ended, body = self._end or ("finished", {})
        try:
            raw = encode_json(
                {"ended": ended, "body": body, "losses": self._losses(), "counters": self.counters}
            )
        except (TypeError, ValueError, RecursionError):
            raw = encode_json(
                {"ended": ended, "body": {}, "losses": self._losses(), "counters": self.counters}
            )
        frame: Frame = build(FrameKind.END, 0, time.time(), raw)
        self._is_writing = self._spool.finish(frame)
        self._settle(list(self._requests), self._is_writing)
        self._is_closed = True

    def _go_inert(self) -> None:
        """In a forked child: no thread runs here, and the locks may be held by one that does not exist."""
        self._is_inert = True
        self._spool.close()


def _payload(kind: FrameKind, content: tuple[Any, ...]) -> bytes:
    if kind == FrameKind.ROWS:
        return encode_rows(*content)
    if kind == FrameKind.SCALARS:
        return encode_scalars(*content)
    if kind == FrameKind.VECTORS:
        return encode_vectors(*content)
    if kind == FrameKind.SITES:
        first, infos = content
        return encode_json({"first": first, "sites": [info.to_json() for info in infos]})
    return bytes(content[0])


def _close_at_exit() -> None:
    for writer in list(_alive):
        writer.close("exit")


def _silence_children() -> None:
    for writer in list(_alive):
        writer._go_inert()


atexit.register(_close_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_silence_children)
