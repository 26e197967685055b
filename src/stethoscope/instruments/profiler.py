"""Profiler: how long layers and operations take, and what holds training up.

Timers measure with a clock that can be replaced; times are seconds. Bottlenecks come from what was recorded
and nothing else, each with its numbers and a suggestion. All memory is bounded: the latest events are kept,
totals are kept for all.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

from stethoscope.instruments.bottlenecks import Bottleneck, find_bottlenecks
from stethoscope.instruments.source import Source
from stethoscope.record import StethoscopeError

MAX_EVENTS: Final = 10_000
Function = TypeVar("Function", bound=Callable[..., Any])


class Category(StrEnum):
    """What kind of work a timer or event is about."""

    OPERATION = "operation"
    CPU = "cpu"
    GPU = "gpu"
    MEMORY = "memory"
    IO = "io"
    NETWORK = "network"
    DATA_LOADING = "data_loading"
    FORWARD = "forward"
    BACKWARD = "backward"
    PHASE = "phase"
    """A part of a whole training step, or the step itself: the work that is to be done, and no operation in its way."""


class TimerError(StethoscopeError, KeyError):
    """A timer was ended that is not running."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class ProfileEvent:
    """One thing that took time."""

    name: str
    category: Category
    start_s: float
    duration_s: float
    path: str
    """The names of the timers it ran inside, joined by "/"."""


@dataclass(slots=True)
class Totals:
    """All runs of one timer or one kind of event."""

    name: str
    category: Category
    count: int = 0
    total_s: float = 0.0
    self_s: float = 0.0
    """Time not spent in timers that ran inside this one."""
    longest_s: float = 0.0

    @property
    def mean_s(self) -> float:
        """Mean duration."""
        return self.total_s / self.count if self.count else 0.0

    def add(self, duration_s: float, self_s: float) -> None:
        """Takes in one run."""
        self.count += 1
        self.total_s += duration_s
        self.self_s += self_s
        self.longest_s = max(self.longest_s, duration_s)


@dataclass(slots=True)
class LayerProfile:
    """All executions of one layer."""

    name: str
    type: str
    count: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0
    num_backward: int = 0
    peak_memory_bytes: int = 0
    parameter_count: int = 0

    @property
    def mean_forward_s(self) -> float:
        """Mean time of a forward pass."""
        return self.forward_s / self.count if self.count else 0.0

    @property
    def mean_backward_s(self) -> float:
        """Mean time of a backward pass; 0 where none was recorded."""
        return self.backward_s / self.num_backward if self.num_backward else 0.0


@dataclass(slots=True)
class _Running:
    name: str
    category: Category
    start_s: float
    inside_s: float = 0.0


class Profiler:
    """Timers, layer executions and events, and the bottlenecks they show."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.perf_counter,
        max_events: int = MAX_EVENTS,
        enabled: bool = True,
        source: Callable[[Profiler], None] | None = None,
    ) -> None:
        """Where not `enabled`, timers still tell their time, and nothing is kept. `source` is asked before every question,
        and hands in what a session recorded since."""
        self.enabled = enabled
        self._source = Source(source)
        self._events: deque[ProfileEvent] = deque(maxlen=max_events)
        self._totals: dict[tuple[str, Category], Totals] = {}
        self._layers: dict[str, LayerProfile] = {}
        self._memory_used_bytes: int | None = None
        self._memory_total_bytes: int | None = None
        self._clock = clock
        self._stacks = threading.local()
        self._lock = threading.Lock()

    def _take_in(self) -> None:
        """What a session recorded since the last question."""
        self._source.into(self)

    @property
    def events(self) -> deque[ProfileEvent]:
        """The latest events, oldest first."""
        self._take_in()
        return self._events

    @property
    def totals(self) -> dict[tuple[str, Category], Totals]:
        """All runs of each timer and kind of event, by name and category."""
        self._take_in()
        return self._totals

    @property
    def layers(self) -> dict[str, LayerProfile]:
        """All executions of each layer, by its name."""
        self._take_in()
        return self._layers

    @property
    def memory_used_bytes(self) -> int | None:
        """The most memory that was in use when it was asked for."""
        self._take_in()
        return self._memory_used_bytes

    @property
    def memory_total_bytes(self) -> int | None:
        """How much there is, where it is known."""
        self._take_in()
        return self._memory_total_bytes

    def start_timer(self, name: str, category: Category | str = Category.OPERATION) -> None:
        """Starts a timer; timers that start inside it are part of it."""
        self._thread_stack().append(_Running(name, Category(category), self._clock()))

    def end_timer(self, name: str) -> float:
        """Ends the newest timer of this name and returns how long it ran, in seconds."""
        now, stack = self._clock(), self._thread_stack()
        index = next((i for i in range(len(stack) - 1, -1, -1) if stack[i].name == name), None)
        if index is None:
            raise TimerError("no such timer is running in this thread", where=name, do="Call start_timer first")
        running = stack.pop(index)
        duration = max(0.0, now - running.start_s)
        if index:
            stack[index - 1].inside_s += duration
        path = "/".join([*(outer.name for outer in stack[:index]), name])
        self._add_event(ProfileEvent(name, running.category, running.start_s, duration, path), running.inside_s)
        return duration

    @contextmanager
    def timer(self, name: str, category: Category | str = Category.OPERATION) -> Iterator[None]:
        """Times what runs inside the `with`, also where it raises."""
        self.start_timer(name, category)
        try:
            yield
        finally:
            self.end_timer(name)

    def timed(self, name: str = "", category: Category | str = Category.OPERATION) -> Callable[[Function], Function]:
        """A decorator that times every call of a function."""

        def decorate(function: Function) -> Function:
            title = name or getattr(function, "__qualname__", "function")

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self.timer(title, category):
                    return function(*args, **kwargs)

            return wrapper  # type: ignore[return-value]

        return decorate

    def record_event(
        self, name: str, duration: float | timedelta, category: Category | str = Category.OPERATION
    ) -> None:
        """Records something that was timed elsewhere; seconds or a timedelta."""
        duration_s = _checked_seconds(duration, name)
        path = "/".join([*(outer.name for outer in self._thread_stack()), name])
        self._add_event(ProfileEvent(name, Category(category), self._clock() - duration_s, duration_s, path), 0.0)

    def record_part(
        self,
        name: str,
        category: Category | str,
        start_s: float,
        duration_s: float,
        path: str,
        *,
        inside_s: float = 0.0,
    ) -> None:
        """Records something whose start and path are known: `path` names what it ran inside, `inside_s` is spent in its
        own parts."""
        where = f"{path}/{name}" if path else name
        self._add_event(
            ProfileEvent(name, Category(category), start_s, _checked_seconds(duration_s, name), where), inside_s
        )

    def record_layer_execution(
        self,
        name: str,
        type: str,  # noqa: A002 - the name the seeds gave it
        forward_time: float | timedelta,
        backward_time: float | timedelta | None = None,
        memory_usage: int = 0,
        parameter_count: int = 0,
    ) -> None:
        """Records one execution of a layer: times in seconds or as timedeltas, memory in bytes."""
        forward_s = _checked_seconds(forward_time, name)
        backward_s = None if backward_time is None else _checked_seconds(backward_time, name)
        if not self.enabled:
            return
        with self._lock:
            layer = self._layers.setdefault(name, LayerProfile(name, type))
            layer.type = type
            layer.count += 1
            layer.forward_s += forward_s
            if backward_s is not None:
                layer.num_backward += 1
                layer.backward_s += backward_s
            layer.peak_memory_bytes = max(layer.peak_memory_bytes, int(memory_usage))
            layer.parameter_count = int(parameter_count)

    def record_memory(self, used_bytes: int, total_bytes: int | None = None) -> None:
        """Records the memory in use; the largest is kept."""
        if not self.enabled:
            return
        self._memory_used_bytes = max(self._memory_used_bytes or 0, int(used_bytes))
        self._memory_total_bytes = total_bytes if total_bytes is not None else self._memory_total_bytes

    def bottlenecks(self) -> list[Bottleneck]:
        """What holds training up, the largest loss of time first."""
        self._take_in()
        with self._lock:
            return find_bottlenecks(
                layers=list(self._layers.values()),
                totals=list(self._totals.values()),
                memory_used_bytes=self._memory_used_bytes,
                memory_total_bytes=self._memory_total_bytes,
            )

    def suggestions(self) -> list[str]:
        """What to do about them, each advice once."""
        return list(dict.fromkeys(bottleneck.suggestion for bottleneck in self.bottlenecks()))

    def slowest(self, limit: int = 10) -> list[Totals]:
        """Timers and events by the time they took themselves."""
        return sorted(self.totals.values(), key=lambda totals: -totals.self_s)[:limit]

    def clear(self) -> None:
        """Forgets everything that was recorded; running timers go on."""
        self._take_in()
        with self._lock:
            self._events.clear()
            self._totals.clear()
            self._layers.clear()
            self._memory_used_bytes = self._memory_total_bytes = None

    def _thread_stack(self) -> list[_Running]:
        """The running timers of this thread, outermost first."""
        stack: list[_Running] | None = getattr(self._stacks, "running", None)
        if stack is None:
            stack = self._stacks.running = []
        return stack

    def _add_event(self, event: ProfileEvent, inside_s: float) -> None:
        if not self.enabled:
            return
        with self._lock:
            self._events.append(event)
            key = (event.name, event.category)
            totals = self._totals.setdefault(key, Totals(event.name, event.category))
            totals.add(event.duration_s, max(0.0, event.duration_s - inside_s))


def _checked_seconds(value: float | timedelta, name: str) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not math.isfinite(seconds) or seconds < 0:
        raise StethoscopeError(f"{seconds} is no duration", where=name, do="Give seconds, 0 or more")
    return seconds
