"""Batches that nobody logs: what a DataLoader yields, what the model is called with, how long training waited.

A batch belongs to training when a backward pass follows the model's call with it, to validation when the model is called
without gradients or inside `evaluating()`. The user's own `log_batch` goes before: then nothing is told from here.
What looking costs is bounded by the schedule in training, and by a share of the time in validation.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

import torch

from stethoscope.capture.clock import Clock
from stethoscope.capture.loader_batches import LoaderBatch, has_shape, is_readable
from stethoscope.capture.ring import StepRows
from stethoscope.capture.sites import Names, Sink, SiteTable
from stethoscope.capture.taps import tensors_in
from stethoscope.record import events, metrics

MAX_INPUTS: Final = 8
MAX_RECENT: Final = 8
MAX_PENDING: Final = 64
MAX_SOURCES: Final = 64
VALIDATION_SHARE: Final = 0.005
VALIDATION_ALLOWANCE_SECONDS: Final = 0.05
MAX_VALIDATED: Final = 1024
"""Batches of validation that are looked at in a whole run: it comes back to the same ones."""
MAX_SUSPECTED: Final = 16
"""Batches that are looked at for a loss that is not finite: once it is lost, it stays so."""


class BatchTracker:
    """What goes into one watched model."""

    def __init__(self, names: Names, table: SiteTable, sink: Sink, clock: Clock, due: Callable[[], bool]) -> None:
        self._names, self._table, self._sink, self._clock, self._due = names, table, sink, clock, due
        self._pid = os.getpid()
        self.thread = threading.get_ident()
        """In which the model was called last."""
        self._began = time.perf_counter()
        self._sources: list[tuple[int, weakref.ref[Any] | None]] = []
        self._numbers: Counter[int] = Counter()
        self._recent: deque[LoaderBatch] = deque(maxlen=MAX_RECENT)
        self._pending: deque[LoaderBatch] = deque(maxlen=MAX_PENDING)
        self._confirmed: list[LoaderBatch] = []
        self._passed: tuple[int, list[tuple[str, weakref.ref[torch.Tensor]]]] | None = None
        """The last batch that a loader yielded and nobody looked at: the number of its data, its tensors."""
        self._num_suspected = 0
        self._waited_ms: float | None = None
        self._logged = {False: False, True: False}
        self._last_call: Callable[[], Any] = _nothing
        self._called_in = -1
        self._num_validated = 0
        self._validation_s = 0.0
        self.spent = 0.0
        """Seconds since the Step began, in training."""

    def logged(self, *, evaluating: bool) -> None:
        """The user logs batches: of this kind none is told from here any more."""
        self._logged[evaluating] = True

    def arrived(self, dataset: Any, batch: Any, seconds: float, *, evaluating: bool) -> bool:
        """A loader yielded a batch after so many seconds; says whether it was training that waited for it."""
        if os.getpid() != self._pid:
            return False
        began = time.perf_counter()
        training = any(root.training for root in self._names.roots.values())
        is_training = training and torch.is_grad_enabled() and not evaluating
        source = self._source(dataset)
        has_waited = is_training and threading.get_ident() == self.thread
        if is_training:
            self._numbers[source] += 1
            if has_waited:
                self._waited_ms = (self._waited_ms or 0.0) + seconds * 1e3
        wanted = self._due() if is_training else self._may_validate(began)
        if is_training:
            self._passed = None if wanted else (source, [(name, weakref.ref(t)) for name, t in tensors_in(batch)])
        if wanted and not self._logged[not is_training]:
            table = self._table if is_training else None
            arrival = LoaderBatch.of(batch, source, is_training=is_training, table=table)
            if arrival is not None:
                arrival.facts["number"] = self._numbers[source]
                self._recent.append(arrival)
            self._account(time.perf_counter() - began, is_training)
        return has_waited

    def wants_call(self, *, training: bool) -> bool:
        """Whether a call of a root is looked at, with gradients or without: a batch waits to be known again in its arguments, or
        no loader yields any and they are all that is known of the data."""
        self.thread = threading.get_ident()
        if self._recent:
            return True
        if not training or self._sources or self._called_in == self._clock.step:
            return False
        self._called_in = self._clock.step
        return len(self._names.roots) == 1 and not self._logged[False] and self._due()

    def called(self, values: Any, *, training: bool, mode: bool) -> None:
        """A root is called that `wants_call`: with gradients or without, in training mode or not."""
        began = time.perf_counter()
        inputs = [tensor for _, tensor in tensors_in(values) if has_shape(tensor)][:MAX_INPUTS]
        if not self._recent:
            self._take_call(inputs)
        else:
            scores = [arrival.closeness(inputs) for arrival in self._recent]
            if max(scores) > 0:
                arrival = self._recent[scores.index(max(scores))]
                self._recent.remove(arrival)
                self._take(arrival, inputs, training=training, mode=mode)
        self._account(time.perf_counter() - began, training)

    @property
    def holds_any(self) -> bool:
        """Whether a batch waits to be known as one that is trained on."""
        return bool(self._pending or self._recent)

    def backward(self) -> None:
        """What the model was called with is trained on."""
        last = self._pending[-1].source if self._pending else None
        counts = Counter(arrival.source for arrival in self._pending)
        for arrival in self._pending:
            if arrival.source == last or (counts[arrival.source] == 1 and not arrival.is_doubtful):
                self._confirmed.append(arrival)
            elif arrival.is_doubtful:
                self._tell_validation(arrival)
        self._confirmed += [arrival for arrival in self._recent if arrival.is_training]
        del self._confirmed[:-MAX_PENDING]
        self._pending.clear()
        self._recent.clear()

    def suspect(self, inputs: list[torch.Tensor]) -> None:
        """The loss is not finite: a batch that nobody looked at is looked at after all, sample by sample, its targets too."""
        self._num_suspected += 1
        if self._logged[False] or self._num_suspected > MAX_SUSPECTED:
            return
        known = [t for t in inputs if is_readable(t) and not t.requires_grad]
        if not self._confirmed:
            found = self._passed_batch(known) or (LoaderBatch.of_call(known, self._clock.step) if known else None)
            self._confirmed += [found] if found is not None else []
        for arrival in self._confirmed:
            arrival.suspect()

    def _passed_batch(self, inputs: list[torch.Tensor]) -> LoaderBatch | None:
        """What a loader yielded last, where it was let pass and is still there."""
        if self._passed is None:
            return None
        source, parts = self._passed
        alive = {name: tensor for name, kept in parts if (tensor := kept()) is not None}
        arrival = LoaderBatch.of(alive, source, is_training=True, table=self._table)
        if arrival is None or (inputs and not arrival.closeness(inputs)):
            return None
        arrival.facts["number"] = self._numbers[source]
        arrival.reach(inputs, self._clock.step)
        return arrival

    def close_step(self, rows: StepRows, *, measured: bool) -> None:
        """The Step is over: tell of its batches, with rows of their targets where the Step is measured at all."""
        self.tell_wait(rows.scalars)
        confirmed, self._confirmed = self._confirmed, []
        if self._logged[False]:
            return
        for arrival in confirmed:
            self._sink.tell(rows.step, events.Batch(**arrival.told()))
            if measured and arrival.target is not None and arrival.target.rows is not None:
                rows.batches.append(arrival.target.rows)

    def tell_wait(self, scalars: dict[str, float]) -> None:
        """How long training waited for a loader, where there is one."""
        if self._waited_ms is not None:
            scalars[metrics.DATA_MS] = scalars[metrics.LOADER_MS] = self._waited_ms
            self._waited_ms = None

    def _take(self, arrival: LoaderBatch, inputs: list[torch.Tensor], *, training: bool, mode: bool) -> None:
        if not training:
            self._tell_validation(arrival)
            return
        arrival.is_doubtful = not mode
        arrival.reach(inputs, self._clock.step)
        self._pending.append(arrival)

    def _take_call(self, inputs: list[torch.Tensor]) -> None:
        # What requires a gradient was computed, by another model perhaps: it is no data.
        known = [t for t in inputs if is_readable(t) and not t.requires_grad]
        if not known:
            return
        arrival = LoaderBatch.of_call(known, self._clock.step)
        arrival.facts["again"] = self._last_call() is known[0]
        self._last_call = weakref.ref(known[0])
        self._pending.append(arrival)

    def _tell_validation(self, arrival: LoaderBatch) -> None:
        if not self._logged[True] and arrival.source is not None:
            self._sink.tell(self._clock.step, events.EvalBatch(**arrival.told()))

    def _may_validate(self, now: float) -> bool:
        allowed = VALIDATION_ALLOWANCE_SECONDS + VALIDATION_SHARE * (now - self._began)
        return self._validation_s < allowed and self._num_validated < MAX_VALIDATED

    def _account(self, seconds: float, is_training: bool) -> None:
        if is_training:
            self.spent += seconds
        else:
            self._validation_s += seconds
            self._num_validated += 1

    def _source(self, dataset: Any) -> int:
        """The number of these data; the same object is the same data."""
        for number, (address, known) in enumerate(self._sources):
            if address == id(dataset) and (known is None or known() is dataset):
                return number
        if len(self._sources) < MAX_SOURCES:
            self._sources.append((id(dataset), _reference(dataset)))
        return len(self._sources) - 1


def _nothing() -> None:
    return None


def _reference(value: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(value)
    except TypeError:  # a list: known by its address alone, which may be used again
        return None
