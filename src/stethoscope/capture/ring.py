"""From measurements under way to the sink, off the training thread.

A step's measurements are handed over whole. Where all of them are there already (everything on a CPU) they are
held for a few short steps and go to the sink together, which costs a third of handing them over one by one, for
the processor has forgotten by then how that goes; where a device still works on them, a thread waits for them. The
number of steps in flight is bounded: past it the oldest is dropped and counted, and training never waits.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from stethoscope.capture.deferred_reads import StepReads
from stethoscope.capture.phases import PARTS
from stethoscope.capture.sites import Sink
from stethoscope.kernels import Measured, Pending, measure_async, merge
from stethoscope.kernels.columns import INDEX, NUM_COUNTS
from stethoscope.record import events, metrics

MAX_IN_FLIGHT: Final = 64
MAX_HELD: Final = 32
"""Steps that are handed over together,"""
HOLD_SECONDS: Final = 0.05
"""and for how long the first of them may wait for the others."""
POLL_SECONDS: Final = 0.002
MOST_POLL_SECONDS: Final = 0.032
"""For how long a thread looks away that waits for a device: every look takes the interpreter from the training."""
FEW_WAITING: Final = 8
"""Steps in flight up to which it looks away for longer and longer."""
SCALED: Final = [
    position for name, position in INDEX.items() if position >= NUM_COUNTS and name not in ("skewness", "kurtosis")
]


@dataclasses.dataclass(slots=True)
class MeasuredGroup:
    """Sites measured together: their numbers, their rows, and a factor to divide the rows by, where there is one."""

    index: npt.NDArray[np.uint32]
    pending: Pending
    scale: Pending | None = None
    part: str = ""
    """Of the schedule, that this belongs to."""
    optional: bool = False
    """Whether sites without a row are left out: a captured graph that did not run leaves none."""
    distinct: bool = False
    """Whether no site comes twice in it, for certain."""
    _measured: Measured | None = None

    def measured(self) -> Measured:
        """What the kernel gave, fetched once."""
        if self._measured is None:
            self._measured = self.pending.result()
        return self._measured

    def ready(self) -> bool:
        """Whether the rows can be had without waiting."""
        return self.pending.ready() and (self.scale is None or self.scale.ready())

    def sited(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]]:
        """Sites and their rows, unscaled."""
        index, table = self.index, self.table()
        if self.optional and self.measured().unsupported:
            there = np.ones(len(index), dtype=bool)
            there[list(self.measured().unsupported)] = False
            return index[there], table[there]
        return index, table

    def table(self) -> npt.NDArray[np.float64]:
        """The rows, unscaled."""
        rows = self.measured().rows
        if self.scale is None:
            return rows
        factor = self.scale.result().rows[0, INDEX["mean"]]
        if np.isfinite(factor) and factor != 0:
            rows = rows.copy()
            rows[:, SCALED] /= factor
        return rows


@dataclasses.dataclass(slots=True)
class NotedLoss:
    """A loss that a backward began from."""

    name: str
    value: float | Pending
    divisor: float
    """By what it was divided right before its backward."""

    def ready(self) -> bool:
        """Whether its number can be had without waiting."""
        return isinstance(self.value, float) or self.value.ready()

    def number(self) -> float:
        """Its number; waits for the device where it is not there yet."""
        return self.value if isinstance(self.value, float) else scalar_of(self.value)


@dataclasses.dataclass(slots=True)
class StepRows:
    """Everything measured in one step."""

    step: int
    batches: list[MeasuredGroup] = dataclasses.field(default_factory=list)
    scalars: dict[str, float] = dataclasses.field(default_factory=dict)
    pending_scalars: list[tuple[str, Pending]] = dataclasses.field(default_factory=list)
    losses: list[NotedLoss] = dataclasses.field(default_factory=list)
    accounts: dict[str, float] = dataclasses.field(default_factory=dict)
    """What the ledger says, summed over the optimizers."""
    factors: dict[str, float] = dataclasses.field(default_factory=dict)
    """By what losses are multiplied when they are told."""
    num_backwards: int = 0
    reads: StepReads | None = None
    """What was looked at closely in this step."""
    timed: bool = False
    """Whether the device's own time was asked for."""
    has_vectors: bool = True
    """Whether histograms or sketches may be among what was measured."""
    _numbers: dict[str, float] | None = None

    def account(self, accounts: dict[str, float]) -> None:
        """Add what one optimizer's ledger says."""
        if not self.accounts:
            self.accounts = accounts
            return
        for key, value in accounts.items():
            self.accounts[key] = self.accounts.get(key, 0.0) + value

    def own_losses(self, number: int, before: StepRows | None) -> None:
        """Losses since the last optimizer's step belong to the one that steps now, by its number; averaged they would be no curve.

        Where there is none since then, both step for the same loss, which is then the first one's.
        """
        if any(loss.name == metrics.LOSS for loss in self.losses):
            for loss in self.losses if number else ():
                loss.name = metrics.loss_of(number) if loss.name == metrics.LOSS else loss.name
        elif not number and before is not None:
            names = [loss.name for loss in before.losses]
            if names and metrics.LOSS not in names:
                for loss in before.losses:
                    loss.name = metrics.LOSS if loss.name == names[-1] else loss.name

    def absorb(self, later: StepRows) -> StepRows:
        """This and what came after it in the same Step, as one."""
        self.batches += later.batches
        self.has_vectors |= later.has_vectors
        waited, asked = self.scalars.get(metrics.DATA_MS), self.scalars.get(metrics.NUM_GRADS, 0.0)
        took = {part: self.scalars[part] + later.scalars.get(part, 0.0) for part in PARTS if part in self.scalars}
        self.scalars |= later.scalars | took
        if waited is not None:
            self.scalars[metrics.DATA_MS] = waited
        if asked:
            self.scalars[metrics.NUM_GRADS] = asked + later.scalars.get(metrics.NUM_GRADS, 0.0)
        self.pending_scalars += later.pending_scalars
        self.losses += later.losses
        self.account(later.accounts)
        self.num_backwards += later.num_backwards
        return self

    def ready(self) -> bool:
        """Whether everything can be had without waiting."""
        if self.reads is not None and not self.reads.ready():
            return False
        for group in self.batches:
            if not (group.pending.is_here and group.scale is None) and not group.ready():
                return False
        for loss in self.losses:
            if type(loss.value) is not float and not loss.ready():
                return False
        return not self.pending_scalars or all(pending.ready() for _, pending in self.pending_scalars)

    def device_ms(self) -> dict[str, float]:
        """What the device spent, by part; only what was timed."""
        found: dict[str, float] = {}
        for batch in self.batches:
            spent = batch.pending.device_ms()
            if spent is not None:
                found[batch.part] = found.get(batch.part, 0.0) + spent
        looking = self.reads.device_ms() if self.reads is not None else None
        return found if looking is None else found | {"units": looking}

    def emit(self, sink: Sink) -> None:
        """Hand what was measured to the sink."""
        if not self.batches:
            return
        first = self.batches[0]
        if len(self.batches) == 1 and first.distinct and not first.optional:
            sink.rows(self.step, first.index, first.table())
        else:
            sink.rows(self.step, *combine([group.sited() for group in self.batches]))
        if self.has_vectors:
            self._emit_vectors(sink)

    def numbers(self) -> dict[str, float]:
        """The step's named numbers; what was looked at closely is told with them, when they are asked for first."""
        if self._numbers is not None:
            return self._numbers
        values = self._numbers = self.scalars
        if len(self.losses) == 1 and not self.factors:
            values[self.losses[0].name] = self.losses[0].number()
        elif self.losses:
            values.update(self._loss_values())
        if self.pending_scalars:
            values.update(_means((name, scalar_of(pending)) for name, pending in self.pending_scalars))
        if self.reads is not None:
            values.update(self.reads.open())
        return values

    def _loss_values(self) -> dict[str, float]:
        """The losses as they were before accumulation divided them."""
        found = _means((loss.name, loss.number()) for loss in self.losses)
        return {name: value * self.factors.get(name, 1.0) for name, value in found.items()}

    def _emit_vectors(self, sink: Sink) -> None:
        for name, key in (("histogram", "histograms"), ("sketch", "sketches")):
            found = [(g.index, vectors) for g in self.batches if (vectors := getattr(g.measured(), key)) is not None]
            if found:
                index, vectors = (np.concatenate(column) for column in zip(*found, strict=True))
                sink.vectors(self.step, name, index, vectors)


def _means(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The mean of the numbers of each name."""
    found: dict[str, list[float]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def number_of(tensor: torch.Tensor) -> float | Pending:
    """A tensor's value: at once where that is one plain number on the CPU, else on its way."""
    if type(tensor) is torch.Tensor and tensor.is_cpu and tensor.numel() == 1 and tensor.is_floating_point():
        return float(tensor)
    return measure_async([tensor])


def scalar_of(pending: Pending) -> float:
    """A tensor's value: the mean where it holds several; NaN and Inf as they are, never a number made of the rest."""
    row = pending.result().rows[0]
    if row[INDEX["num_nan"]] > 0 or (row[INDEX["num_posinf"]] > 0 and row[INDEX["num_neginf"]] > 0):
        return float("nan")
    if row[INDEX["num_posinf"]] > 0:
        return float("inf")
    if row[INDEX["num_neginf"]] > 0:
        return float("-inf")
    return float(row[INDEX["mean"]])


def combine(
    parts: list[tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]]], *, is_distinct: bool = False
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64], npt.NDArray[np.uint32] | None]:
    """One row per site: a site that was measured several times in the step merges, with its number of calls (None: each once)."""
    if len(parts) == 1:
        index, table = parts[0]
    else:
        index, table = (np.concatenate(column) for column in zip(*parts, strict=True))
    if is_distinct or _are_distinct(index):
        return index, table, None
    unique, first, counts = np.unique(index, return_index=True, return_counts=True)
    out = table[first].copy()
    order = np.argsort(index, kind="stable")
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    for turn in range(1, int(counts.max())):
        again = np.flatnonzero(counts > turn)
        out[again] = merge(out[again], table[order[starts[again] + turn]])
    return unique.astype(np.uint32), out, counts.astype(np.uint32)


def _are_distinct(index: npt.NDArray[np.uint32]) -> bool:
    """Whether no site comes twice; takes a small part of the time that sorting would."""
    if not len(index):
        return True
    order = np.arange(len(index))
    last = np.empty(int(index.max()) + 1, dtype=np.int64)
    last[index] = order
    return bool((last[index] == order).all())


class Ring:
    """Steps on their way to the sink, in order."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        """Where Steps go; see `send_to`."""
        self._holds = True
        self._held: deque[StepRows] = deque()
        """Steps whose numbers are there, on their way together."""
        self._released = time.monotonic()
        self._waiting: deque[StepRows] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.num_dropped = 0
        """Steps that were dropped because too many were in flight."""
        self.num_skipped = 0
        """Steps in which a fused optimizer skipped."""
        self.latest: dict[str, float] = {}
        """The named numbers of the last step that arrived."""
        self.on_cost: Callable[[int, dict[str, float]], None] | None = None
        """Told what a step's measurements took on the device, by part, where that was timed."""

    def put(self, rows: StepRows, *, is_ready: bool = False) -> None:
        """Hand over a step; returns at once."""
        if not self._waiting and (is_ready or rows.ready()):
            self._held.append(rows)
            if not self._holds or len(self._held) >= MAX_HELD or time.monotonic() - self._released > HOLD_SECONDS:
                self.release()
            return
        self.release()
        with self._lock:
            self._waiting.append(rows)
            self._idle.clear()
            if len(self._waiting) > MAX_IN_FLIGHT:
                dropped = self._waiting.popleft()
                dropped.batches.clear()
                self.num_dropped += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._drain, name="stethoscope-ring", daemon=True)
            self._thread.start()
        self._wake.set()

    def release(self) -> None:
        """Hand over what is held; may be called from any thread."""
        held: list[StepRows] = []
        while self._held:
            try:
                held.append(self._held.popleft())
            except IndexError:  # another thread was quicker
                break
        if len(held) > 1:
            # Their numbers first: a reader takes a step to be complete when it sees rows of a later one.
            told = [(rows.step, rows.numbers()) for rows in held if rows.numbers()]
            if told:
                self.sink.scalars_of_steps(told)
            for rows in held:
                rows.emit(self.sink)
                self._arrived(rows)
        elif held:
            self._hand_over(held[0])
        self._released = time.monotonic()

    def send_to(self, sink: Sink, *, at_once: bool) -> None:
        """Steps go to this sink from now on, each at once or several together."""
        self.release()
        self.sink, self._holds = sink, not at_once

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is in flight; for `flush` and `stop`, never for a step."""
        self.release()
        return self._idle.wait(timeout)

    def stop(self, timeout: float = 5.0) -> None:
        """Let what is in flight arrive, then end the thread."""
        until = time.monotonic() + timeout
        self.drain(timeout)
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(max(until - time.monotonic(), 0.1))

    def _hand_over(self, rows: StepRows) -> None:
        rows.emit(self.sink)
        if values := rows.numbers():
            self.sink.scalars(rows.step, values)
        self._arrived(rows)

    def _arrived(self, rows: StepRows) -> None:
        values = self.latest = rows.numbers()
        if rows.timed and self.on_cost is not None and (cost := rows.device_ms()):
            self.on_cost(rows.step, cost)
        if values.get(metrics.FOUND_INF, 0.0) > 0:
            # A fused optimizer skips on the device: its hooks ran, and only now it can be known.
            self.num_skipped += 1
            self.sink.tell(rows.step, events.SkippedStep(times=self.num_skipped, fused=True))

    def _emit(self, rows: StepRows) -> None:
        try:
            self._hand_over(rows)
        except Exception as error:  # a device error must not end the thread: the step counts as dropped
            self.num_dropped += 1
            self.sink.tell(rows.step, events.CaptureError(error=repr(error)))

    def _drain(self) -> None:
        away = POLL_SECONDS
        while not self._stopping:
            with self._lock:
                head = self._waiting[0] if self._waiting else None
                if head is None:
                    self._idle.set()
                    self._wake.clear()
            if head is None:
                self._wake.wait(1.0)
            elif head.ready():
                away = POLL_SECONDS
                self._emit(head)
                with self._lock:
                    if self._waiting and self._waiting[0] is head:
                        self._waiting.popleft()
            else:
                time.sleep(away)
                away = min(2 * away, MOST_POLL_SECONDS) if len(self._waiting) <= FEW_WAITING else POLL_SECONDS
