"""LeakDetector: tensors that live on after their step, and the line that made them.

While a step is watched, every operator's new storage is noted with a weak reference and the line of the
user's code that ran it; nothing is kept alive. A line is reported when each of the last steps left memory
behind there and none of it was ever given back: what optimizers keep (made once) and buffers that let old
entries go are not leaks.
"""

from __future__ import annotations

import gc
import itertools
import linecache
import sys
import types
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from stethoscope.instruments.memory import num_bytes
from stethoscope.record import Severity, plural, printable

PATIENCE: Final = 5
GRACE: Final = 1
MAX_WATCHED: Final = 200_000
SMALL_BYTES: Final = 1024
"""A line that leaves less than this behind per step is Info: a list of losses, most often."""

_OWN_FOLDER: Final = str(Path(__file__).resolve().parents[1])

Location = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory that one line of code leaves behind step after step."""

    file: str
    line: int
    function: str
    source: str
    """The text of the line, where it can be read."""
    num_alive: int
    bytes_alive: int
    bytes_per_step: float
    first_step: int
    last_step: int
    severity: Severity
    keeps_graph: bool
    """Whether the newest of these tensors still has its autograd graph: `.detach()` or `.item()` would free
    it."""
    held_by: str
    """What refers to the newest of these tensors, where Python knows it; empty where only an autograd graph
    does."""

    def __str__(self) -> str:
        held = f", held by {self.held_by}" if self.held_by else ""
        held += ", with its autograd graph" if self.keeps_graph else ""
        return (
            f"{self.file}:{self.line} in {self.function}: {plural(self.num_alive, 'tensor')} "
            f"({plural(self.bytes_alive, 'byte')}) made since step {self.first_step:,} still {'lives' if self.num_alive == 1 else 'live'}, "
            f"{self.bytes_per_step:,.0f} bytes more each step{held}" + (f": {self.source}" if self.source else "")
        )


@dataclass(slots=True)
class _Kept:
    """One storage that was made in a watched step."""

    step: int
    size: int
    storage: Any
    """Says `expired()` when the memory is gone."""
    tensor: Any
    """Weak reference to the Python object; it may go before the memory does."""


@dataclass(slots=True)
class _Line:
    """What one line of code has left behind."""

    kept: list[_Kept] = field(default_factory=list)
    num_released: int = 0
    """Storages that had outlived their step and were given back later."""


class _Alive:
    """The same question as a weak storage reference, for an array that can only be weakly referenced
    itself."""

    def __init__(self, value: Any) -> None:
        self._reference = weakref.ref(value)

    def expired(self) -> bool:
        return self._reference() is None


class LeakDetector:
    """Watches steps and names the lines whose tensors pile up.

    `patience`: how many steps in a row a line must leave something behind. `grace`: how many steps a tensor
    may outlive its own, as gradients do until they are cleared.
    """

    def __init__(self, *, patience: int = PATIENCE, grace: int = GRACE, max_watched: int = MAX_WATCHED) -> None:
        self.patience = max(2, patience)
        self.grace = max(0, grace)
        self.max_watched = max_watched
        self.num_unwatched = 0
        """Storages that were not noted: beyond `max_watched`, or of a kind that cannot be."""
        self._numbers = itertools.count()
        self._step = -1
        self._steps: list[int] = []
        self._fresh: dict[int, tuple[Location, _Kept]] = {}
        self._lines: dict[Location, _Line] = {}
        self._open: ExitStack | None = None
        self._mode: Any = None

    @contextmanager
    def step(self, number: int | None = None) -> Iterator[None]:
        """Watches what is allocated inside: one training step."""
        self.begin_step(number)
        try:
            yield
        finally:
            self.end_step()

    def begin_step(self, number: int | None = None) -> None:
        """Starts to watch; for callers that cannot use a `with`."""
        self.end_step()
        self._step = next(self._numbers) if number is None else number
        self._steps.append(self._step)
        self._open = ExitStack()
        if "torch" in sys.modules:
            self._mode = self._open.enter_context(_torch_watch(self))

    def end_step(self) -> None:
        """Stops watching and looks at what is left of earlier steps."""
        if self._open is None:
            return
        self._open.close()
        self._open = None
        self._sort_out()

    @property
    def is_open(self) -> bool:
        """Whether a step is being watched right now."""
        return self._open is not None

    def is_mode(self, mode: Any) -> bool:
        """Whether this dispatch mode is the one that watches."""
        return mode is self._mode

    def abandon_step(self) -> None:
        """Stops watching a step that will not come to its end, and forgets it."""
        if self._open is None:
            return
        self._open.close()
        self._open = None
        self._steps.pop()
        self._fresh = {key: kept for key, kept in self._fresh.items() if kept[1].step != self._step}

    def track(self, value: Any) -> None:
        """Notes an array by hand, made at the caller's line: for arrays that are not torch's."""
        kept = _Kept(self._step, num_bytes(value), _Alive(value), weakref.ref(value))
        self._note_tensor(id(kept), _user_location(sys._getframe(1)), kept)

    def leaks(self) -> list[Leak]:
        """The lines that leak, most bytes first; empty for a clean loop."""
        self._sort_out()
        limit = len(self._steps) - self.grace
        judged = self._steps[max(0, limit - self.patience) : max(0, limit)]
        if len(judged) < self.patience:
            return []
        found = []
        for location, line in self._lines.items():
            left = {kept.step for kept in line.kept}
            if line.num_released == 0 and all(step in left for step in judged):
                found.append(self._make_leak(location, line))
        return sorted(found, key=lambda leak: -leak.bytes_alive)

    def saw(self, tensor: Any, frame: types.FrameType) -> None:
        """Notes a torch tensor that an operator just made; called by the watch."""
        try:
            storage = tensor.untyped_storage()
        except (
            RuntimeError,
            NotImplementedError,
        ):  # sparse, functional and other tensors without one storage
            return
        key = storage._cdata
        if key in self._fresh:
            return
        kept = _Kept(self._step, storage.nbytes(), _weak_storage(storage), weakref.ref(tensor))
        self._note_tensor(key, _user_location(frame), kept)

    def _note_tensor(self, key: int, location: Location, kept: _Kept) -> None:
        if len(self._fresh) >= self.max_watched:
            self.num_unwatched += 1
            return
        self._fresh[key] = (location, kept)

    def _sort_out(self) -> None:
        """Drops what is gone; moves what outlived its grace to its line; counts what was given back late."""
        for line in self._lines.values():
            before = len(line.kept)
            line.kept = [kept for kept in line.kept if not kept.storage.expired()]
            line.num_released += before - len(line.kept)
        old = set(self._steps[: len(self._steps) - self.grace]) if self._open is None else set(self._steps[:-1])
        for key, (location, kept) in list(self._fresh.items()):
            if kept.storage.expired():
                del self._fresh[key]
            elif kept.step in old:
                del self._fresh[key]
                self._lines.setdefault(location, _Line()).kept.append(kept)
        if len(self._steps) > 4 * (self.patience + self.grace):
            del self._steps[: -2 * (self.patience + self.grace)]

    def _make_leak(self, location: Location, line: _Line) -> Leak:
        file, number, function = location
        steps = {kept.step for kept in line.kept}
        total = sum(kept.size for kept in line.kept)
        each = total / len(steps)
        newest = line.kept[-1].tensor()
        keeps_graph = getattr(newest, "grad_fn", None) is not None
        return Leak(
            file=file,
            line=number,
            function=function,
            source=printable(linecache.getline(file, number).strip()),
            num_alive=len(line.kept),
            bytes_alive=total,
            bytes_per_step=each,
            first_step=min(steps),
            last_step=max(steps),
            severity=Severity.WARNING if each >= SMALL_BYTES or keeps_graph else Severity.INFO,
            keeps_graph=keeps_graph,
            held_by=_holder_text(newest),
        )


def _user_location(frame: types.FrameType | None) -> Location:
    """The innermost frame that is neither torch's nor ours."""
    last: types.FrameType | None = frame
    while frame is not None:
        if not _is_library(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        last, frame = frame, frame.f_back
    return (last.f_code.co_filename, last.f_lineno, last.f_code.co_name) if last else ("", 0, "")


@cache
def _is_library(file: str) -> bool:
    torch = sys.modules.get("torch")
    folders = [_OWN_FOLDER, *(getattr(torch, "__path__", None) or [])]
    return file.startswith("<frozen") or any(file.startswith(folder) for folder in folders)


@cache
def _makes_new(func: Any) -> bool:
    """Whether an operator's results are new memory: views and in-place operators say so in their schema."""
    return not any(result.alias_info is not None for result in func._schema.returns)


def _weak_storage(storage: Any) -> Any:
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(storage)


@cache
def _watch_class() -> Any:
    """The dispatch mode, made on first use so that nothing here imports torch by itself."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class AllocationWatch(TorchDispatchMode):
        """Shows every new tensor to a detector, and changes nothing."""

        def __init__(self, detector: LeakDetector) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self._detector = detector

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            try:
                if _makes_new(func):
                    frame = sys._getframe(1)
                    for item in result if isinstance(result, tuple | list) else (result,):
                        if isinstance(item, torch.Tensor):
                            self._detector.saw(item, frame)
            except Exception:  # training must not notice what we cannot read
                self._detector.num_unwatched += 1
            return result

    return AllocationWatch


def _torch_watch(detector: LeakDetector) -> AbstractContextManager[Any]:
    watch: AbstractContextManager[Any] = _watch_class()(detector)
    return watch


def _holder_text(value: Any) -> str:
    """What Python object refers to the value, in words; looked up once, for the report."""
    if value is None:
        return ""
    wanted = id(value)
    for owner in gc.get_referrers(value):
        if isinstance(owner, list | set | tuple) and type(owner) in (list, set, tuple):
            return f"a {type(owner).__name__} of {len(owner):,}"
        if isinstance(owner, dict):
            keys = [key for key, identity in zip(owner, map(id, owner.values()), strict=True) if identity == wanted]
            return f"{printable(repr(keys[0] if keys else None))} of a dict of {len(owner):,}"
        if not isinstance(owner, types.FrameType | types.FunctionType | types.CellType):
            return f"a {type(owner).__name__}"
    return ""
