"""From a CUDA device to the host without waiting: pinned memory, a side stream, an event that says when.

Whoever launches hands over tables that lie on the device. What is kept here keeps them, and the pinned memory
they are copied to, alive until the copy is done or nobody asks for it any more.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.pending import Measured

MAX_TABLES: Final = 64
MAX_TABLE_BYTES: Final = 1 << 18
"""Tables larger than this are uploaded each time: keeping many of them would cost device memory."""

_T = TypeVar("_T")
_streams: dict[Any, Any] = {}
_tables: OrderedDict[tuple[Any, ...], Any] = OrderedDict()


def upload(values: npt.NDArray[Any], device: Any) -> Any:
    """To the device from pinned memory; torch keeps the pinned block until the copy is done."""
    torch = sys.modules["torch"]
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cpu":  # triton's interpreter
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def upload_once(values: npt.NDArray[Any], device: Any, stream: int) -> Any:
    """As `upload`, but the same values on the same stream are uploaded once: most tensors stay where they are."""
    if values.nbytes > MAX_TABLE_BYTES:
        return upload(values, device)
    key = (device, stream, values.dtype.char, values.tobytes())
    found = _tables.get(key)
    if found is None:
        found = _tables[key] = upload(values, device)
        if len(_tables) > MAX_TABLES:
            _tables.popitem(last=False)
    else:
        _tables.move_to_end(key)
    return found


def stream_number(device: Any) -> int:
    """Which stream is current: tables uploaded on one are not there yet for another."""
    torch = sys.modules["torch"]
    return 0 if device.type == "cpu" else int(torch._C._cuda_getCurrentRawStream(device.index))


class Stopwatch:
    """The device's own time between two places on the current stream, read when it is over."""

    __slots__ = ("_begin", "_end")

    def __init__(self, device: Any) -> None:
        torch = sys.modules["torch"]
        self._begin = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._begin.record(torch.cuda.current_stream(device))

    def stop(self, device: Any) -> None:
        """The work ends here."""
        self._end.record(sys.modules["torch"].cuda.current_stream(device))

    def milliseconds(self) -> float | None:
        """How long it took; None while it is under way."""
        return float(self._begin.elapsed_time(self._end)) if self._end.query() else None


class Fetched(Generic[_T]):
    """Tables on their way to the host, and what to make of them there."""

    def __init__(
        self, tables: Sequence[Any], finish: Callable[[list[Any]], _T], watch: Stopwatch | None = None
    ) -> None:
        """`tables` are tensors of one device, written on its current stream."""
        self._finish, self._watch = finish, watch
        self._event: Any = None
        self._sources: Sequence[Any] | None = tables
        device = tables[0].device
        if watch is not None:
            watch.stop(device)
        if device.type == "cpu":
            self._values = list(tables)
            return
        torch = sys.modules["torch"]
        side = _streams.get(device)
        if side is None:
            side = _streams[device] = torch.cuda.Stream(device)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(device))
        side.wait_event(self._event)
        with torch.cuda.stream(side):
            self._values = [_to_host(torch, table) for table in tables]
            self._event.record(side)
        # Dropped before its copy ran, a table must not be given to somebody who writes to it.
        for table in tables:
            table.record_stream(side)

    def ready(self) -> bool:
        """Whether the values have arrived."""
        return self._event is None or bool(self._event.query())

    def result(self) -> _T:
        """What was made of the tables; waits for their values."""
        if self._event is not None:
            self._event.synchronize()
        self._sources = None
        return self._finish([value.numpy() for value in self._values])

    def device_ms(self) -> float | None:
        """What the device spent, where it was timed and is done."""
        return None if self._watch is None else self._watch.milliseconds()


class FewNumbers:
    """Tensors of a few elements, copied as they are and measured on the host: a launch would cost more."""

    MAX_ELEMENTS: Final = 64

    def __init__(self, tensors: Sequence[Any], finish: Callable[[list[Any]], Measured]) -> None:
        torch = sys.modules["torch"]
        self._finish = finish
        self._values = [_to_host(torch, tensor.detach()) for tensor in tensors]
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(tensors[0].device))

    def ready(self) -> bool:
        """Whether the numbers have arrived."""
        return bool(self._event.query())

    def result(self) -> Measured:
        """The rows; waits for the numbers."""
        self._event.synchronize()
        return self._finish(self._values)


def _to_host(torch: Any, tensor: Any) -> Any:
    # Said outright: torch.set_default_device may name another.
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    return host
