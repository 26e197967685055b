"""RunWriter: the training process's end of the store.

Promises to the training thread: every method returns after copying what it was given, does no input or
output, and never raises. A thread of its own encodes and writes. Whatever is lost is counted in `counters`,
by step in `unwritten`, and in the run itself, for which some room is held in reserve. What the user should hear at
once waits in `take_notices`. A forked child inherits an inert writer: no thread, no lock, no bytes.
"""

from __future__ import annotations

import atexit
import dataclasses
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
from stethoscope.record.events import Start
from stethoscope.record.wire import EventBody
from stethoscope.store import process
from stethoscope.store.budget import DiskBudget
from stethoscope.store.condition import Bell, Condition, FlushRequest
from stethoscope.store.encoding import U32Array
from stethoscope.store.folder import describe_run, make_folder
from stethoscope.store.frames import COMPRESSION_LEVEL, FORMAT_VERSION, FrameError, FrameKind, build
from stethoscope.store.json_payload import EncodingError, encode_json
from stethoscope.store.locate import next_ordinal, rank_folder
from stethoscope.store.losses import COUNTERS, UNWRITTEN_SINCE, Losses, lost_steps_text
from stethoscope.store.queue import ByteQueue, Item, joined, payload
from stethoscope.store.spool import Spool

_log: Final = logging.getLogger("stethoscope.store")
_POLL_S: Final = 0.05
_SYNC_S: Final = 1.0
_BATCH_BYTES: Final = 2 << 20
_MOST_UNSYNCED_BYTES: Final = 16 << 20

_alive: weakref.WeakSet[RunWriter] = weakref.WeakSet()


class RunWriter:
    """Writes one process start of a run. Make one with `RunWriter.create`."""

    def __init__(
        self,
        folder: Path,
        spool: Spool,
        queue: ByteQueue,
        counters: dict[str, int],
        losses: Losses,
        trouble: str,
        budget: DiskBudget,
    ) -> None:
        self.path = folder
        self.counters = counters
        self._losses = losses
        self._spool = spool
        self._queue = queue
        self._budget = budget
        self._setup_trouble = trouble
        self._is_closed = False
        self._is_inert = False
        self._num_sites = 0
        self._serial = 0
        self._requests: list[FlushRequest] = []
        self._end: tuple[str, dict[str, Any]] | None = None
        self._bell = Bell()
        self._losses_said = losses.numbers()
        self._condition = Condition(is_writing=not trouble)
        self._was_over_budget = False
        self.busy_s = 0.0
        """Seconds that the writer's thread has had the processor."""
        self._compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
        self._thread = threading.Thread(target=self._work, name="stethoscope-writer", daemon=True)
        self._thread.start()
        _alive.add(self)  # after the start: where no thread can be had there is nobody to wait for at exit

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
        counters = dict.fromkeys(COUNTERS, 0)
        losses = Losses(counters)
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
        writer = cls(folder, spool, ByteQueue(queue_bytes, losses), counters, losses, trouble, budget)
        if spool.ordinal > 1:
            writer.tell(0, Start(ordinal=spool.ordinal, info=info))
        return writer

    @property
    def state(self) -> str:
        """ "writing", "memory" (nothing reaches the disk now) or "closed"."""
        if self._is_closed or self._is_inert:
            return "closed"
        return "writing" if self._condition.is_writing else "memory"

    @property
    def is_on_disk(self) -> bool:
        """Whether the run was closed and its end is durable."""
        return self._is_closed and self._condition.is_writing

    @property
    def trouble(self) -> str:
        """Why rows do not reach the disk, "" where all is well."""
        if self._condition.is_writing and self._budget.is_over:
            return f"over its disk budget, rows are not recorded: {self.path}"
        if self._condition.hangs:
            return f"the disk does not answer: {self.path}"
        return self._spool.trouble or ("" if self._condition.is_writing else self._setup_trouble)

    @property
    def last_trouble(self) -> str:
        """Why rows did not reach the disk the last time that they did not, also where all is well again."""
        return self._condition.last_trouble or self.trouble

    def take_notices(self) -> list[str]:
        """What the user should hear now: that writing fails, or works again. Each is given once."""
        return self._condition.take_notices()

    def unwritten(self) -> dict[str, int]:
        """The losses so far, with everything that is in memory only counted as lost."""
        frames = self._spool.waiting + (self._spool.unsynced if self._thread.is_alive() else [])
        in_memory = [(frame.step, frame.num_rows) for frame in frames if frame.kind == FrameKind.ROWS]
        return self._losses.numbers([*in_memory, *self._queue.waiting_rows()])

    def sites(self, infos: Sequence[SiteInfo]) -> None:
        """Registers sites; a site's index is its order of registration in this process start."""
        first, self._num_sites = self._num_sites, self._num_sites + len(infos)
        self._put_item(FrameKind.SITES, 0, (first, tuple(infos)), 200 * len(infos) + 100)

    def rows(self, step: int, index: U32Array, table: Table, calls: U32Array | None = None) -> None:
        """One row for each site in `index`, at this step."""
        try:
            indices = np.array(index, np.uint32)
            values = np.array(table, np.float64)
            times = None if calls is None else np.array(calls, np.uint32)
        except (TypeError, ValueError, OverflowError) as error:
            self._reject_input(f"rows of step {step}: {error}")
            return
        if values.shape != (len(indices), NUM_COLUMNS) or (times is not None and times.shape != indices.shape):
            self._reject_input(f"rows of step {step}: a table {values.shape} for {indices.shape} sites")
            return
        self._put_item(FrameKind.ROWS, step, (indices, values, times), values.nbytes + 200, len(indices))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Named numbers of this step; the mapping is not changed by its giver from now on."""
        self._put_item(FrameKind.SCALARS, step, ((step, values),), 100 * len(values) + 100)

    def scalars_of_steps(self, told: list[tuple[int, dict[str, float]]]) -> None:
        """Named numbers of several steps at once."""
        num_bytes = 100 + sum(100 * len(values) + 100 for _, values in told)
        self._put_item(FrameKind.SCALARS, told[0][0], told, num_bytes)

    def vectors(self, step: int, name: str, index: U32Array, values: npt.NDArray[Any]) -> None:
        """One vector for each site in `index`, at this step."""
        try:
            indices, matrix = np.array(index, np.uint32), np.array(values)
        except (TypeError, ValueError, OverflowError) as error:
            self._reject_input(f"{name} of step {step}: {error}")
            return
        if matrix.ndim != 2 or len(matrix) != len(indices):
            self._reject_input(f"{name} of step {step}: values {matrix.shape} for {indices.shape} sites")
            return
        self._put_item(FrameKind.VECTORS, step, (str(name), indices, matrix), matrix.nbytes + 200, len(indices))

    def tell(self, step: int, said: EventBody) -> None:
        """A discrete fact, as `record.events` declares it."""
        try:
            body = said.to_body()
        except (TypeError, ValueError, AttributeError) as error:
            self._reject_input(f"event {said.KIND} of step {step}: {error}")
            return
        self.event(step, said.KIND, body)

    def event(self, step: int, kind: str, body: dict[str, Any]) -> None:
        """A fact of any kind. The body is turned into JSON now, so the caller may change it after."""
        try:
            raw = encode_json({"kind": str(kind), "body": body})
        except (TypeError, ValueError, RecursionError) as error:
            self._reject_input(f"event {kind} of step {step}: {error}")
            return
        self._put_item(FrameKind.EVENT, step, (raw,), len(raw) + 100)

    def flush(self, timeout: float = 10.0) -> bool:
        """True when everything handed in before the call is on disk and fsynced."""
        if self._is_inert or self._end is not None:
            return False
        request = FlushRequest(self._queue.num_put)
        self._requests.append(request)
        self._bell.ring()
        request.done.wait(timeout)
        return request.succeeded

    def close(self, ended: str = "finished", body: dict[str, Any] | None = None, timeout: float = 5.0) -> None:
        """Writes what is left and how the run ended; after it nothing is taken any more."""
        if self._is_inert:
            return
        if self._end is None:
            self._end = (ended, dict(body or {}))
            self._bell.ring()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _put_item(self, kind: FrameKind, step: int, content: Sequence[Any], num_bytes: int, num_rows: int = 0) -> None:
        if self._is_inert or self._is_closed or self._end is not None:
            return
        try:
            number = int(step)
            if not -(2**63) <= number < 2**63:
                raise OverflowError("a step has 64 bits")
        except (TypeError, ValueError, OverflowError) as error:
            self._reject_input(f"step {step!r}: {error}")
            return
        self.counters["queued"] += 1
        self._queue.put(Item(kind, number, time.time(), content, num_bytes, num_rows))
        if self._condition.is_writing and self._queue.num_bytes > _BATCH_BYTES:
            self._bell.ring()  # while writing fails its next try has its time

    def _reject_input(self, why: str) -> None:
        self.counters["rejected"] += 1
        _log.warning("not recorded: %s", why)

    def _work(self) -> None:
        """The writer thread."""
        last_sync = time.monotonic()
        while not self._is_inert:
            self._bell.wait(self._condition.wait_s(_POLL_S))
            self._condition.begin()
            asked = list(self._requests)  # who asks later has not been failed by this turn
            try:
                last_sync = self._write_queued(last_sync, asked)
            except Exception:
                _log.exception("the writer thread failed once and goes on")
                self.counters["write_errors"] += 1
                self._condition.note(False)
                self._settle_requests(asked, succeeded=False)
            self._condition.end()
            self.busy_s = time.thread_time()
            if self._end is not None and (
                not self._condition.is_writing or not self._queue.num_put - self._queue.num_taken
            ):
                self._finish_run()
                return

    def _write_queued(self, last_sync: float, asked: list[FlushRequest]) -> float:
        """Takes, encodes and writes until the queue is empty; syncs when due. Returns when it last did."""
        # After a failure a file has to be open: with nothing to write, nothing would show that writing still fails.
        succeeded = (self._condition.is_writing or self._spool.open()) and self._spool.drain()
        while succeeded and not self._is_inert:
            batch = self._queue.take(_BATCH_BYTES)
            for item in joined(batch):
                self._encode_item(item)
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
        self._note_state(succeeded)
        self._settle_requests(reached if succeeded else asked, succeeded)
        return last_sync

    def _note_state(self, succeeded: bool) -> None:
        """Tells the user once when writing begins to fail, or works again."""
        has_changed = self._condition.note(succeeded)
        is_newly_over, self._was_over_budget = self._budget.is_over > self._was_over_budget, self._budget.is_over
        if succeeded and is_newly_over:
            self._condition.last_trouble = self.trouble
            self._condition.notify(f"{self.trouble}. They are again when there is room; `disk` sets the budget")
        if has_changed and succeeded:
            lost = lost_steps_text(self._losses.numbers())
            self._condition.notify(f"the run can be written again; {f'{lost} lost' if lost else 'nothing was lost'}")
        elif has_changed:
            self._tell_failure()

    def _tell_failure(self) -> None:
        """To the user, and to the run itself out of the reserve: the process may be killed before there is room again."""
        self._condition.last_trouble = self._spool.trouble
        rows = [frame.step for frame in self._spool.waiting if frame.kind == FrameKind.ROWS]
        rows = rows or [step for step, _ in self._queue.waiting_rows()]
        if self.path.exists():
            since = f"steps from {min(rows):,} on" if rows else "what comes now"
            self._condition.notify(
                f"the run cannot be written ({self._spool.trouble}): {since} wait in memory, and of too many the oldest are lost. "
                "Training goes on"
            )
        else:
            self._condition.notify(
                f"{self._spool.trouble}. It is not made again: nothing of this run is kept. Training goes on"
            )
        last_word = self._losses.numbers() | ({UNWRITTEN_SINCE: min(rows)} if rows else {})
        self._losses_said = last_word
        self._spool.say_that_it_is_full(build(FrameKind.HEALTH, 0, time.time(), encode_json(last_word)))

    def _encode_item(self, item: Item) -> None:
        content = item.content
        if content is None:
            return
        if self._budget.is_over and item.is_bulk:
            self._queue.count_dropped(item)
            return
        try:
            raw = payload(item.kind, content)
            frame = build(
                item.kind,
                item.step,
                item.time,
                raw,
                serial=self._serial + 1,
                compressor=self._compressor,
                num_rows=item.num_rows,
            )
        except (EncodingError, FrameError, TypeError, ValueError, OverflowError, RecursionError) as error:
            if item.kind == FrameKind.SCALARS and len(content) > 1:  # only what is wrong is left out
                for one in content:
                    self._encode_item(dataclasses.replace(item, step=one[0], content=[one]))
                return
            self._reject_input(f"{item.kind.name.lower()} of step {item.step}: {error}")
            return
        self._serial += 1
        self._spool.push(frame)
        self.counters["written"] += 1

    def _report_losses(self) -> None:
        losses = self._losses.numbers()
        if losses != self._losses_said:
            self._losses_said = losses
            self._spool.push(build(FrameKind.HEALTH, 0, time.time(), encode_json(losses)))

    def _settle_requests(self, requests: list[FlushRequest], succeeded: bool) -> None:
        for request in requests:
            if request in self._requests:
                self._requests.remove(request)
                request.settle(succeeded)

    def _finish_run(self) -> None:
        """Everything that is left is written now or lost; the last frame says how much was, and how the run ended."""
        if not self._spool.sync():
            for frame in self._spool.waiting:
                if frame.serial:
                    num_bytes, is_rows = len(frame.payload), frame.kind == FrameKind.ROWS
                    self._losses.add(frame.step, frame.num_rows, num_bytes, is_rows=is_rows)
            self._queue.drop_all()
        ended, body = self._end or ("finished", {})
        said = {"losses": self._losses.numbers(), "counters": self.counters, "lost_steps": self._losses.ranges()}
        said["trouble"] = self.last_trouble
        try:
            raw = encode_json({"ended": ended, "body": body, **said})
        except (TypeError, ValueError, RecursionError):
            raw = encode_json({"ended": ended, "body": {}, **said})
        is_durable = self._spool.finish(build(FrameKind.END, 0, time.time(), raw))
        self._condition.note(is_durable)
        self._settle_requests(list(self._requests), is_durable)
        self._is_closed = True

    def _go_inert(self) -> None:
        """In a forked child: no thread runs here, and the locks may be held by one that does not exist."""
        self._is_inert = True
        self._spool.close()


def _close_at_exit() -> None:
    for writer in list(_alive):
        if writer._end is None:  # else whoever closed it has waited for it already
            writer.close("exit")


def _silence_children() -> None:
    for writer in list(_alive):
        writer._go_inert()


atexit.register(_close_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_silence_children)
