"""How long each layer takes, on a few steps: the others carry nothing of this.

On a step that is due every module gets a hook before and one after its forward pass, and its output a hook that tells when
its gradient arrives; all of them come off when the step ends. A module's forward time is its own code's, without what its
children take; a backward pass is cut where the gradients of outputs arrive, so that a layer's time runs from the arrival
of its output's gradient to the next arrival. On a CUDA device events are put into the stream and read when the device has
passed them: nothing is ever waited for. Models that torch.compile runs are left alone: a hook would change what it makes.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from stethoscope.capture.guard import never_compiled
from stethoscope.capture.sites import is_compiled
from stethoscope.capture.taps import Inert, tensors_in
from stethoscope.instruments.reading import LayerTime
from stethoscope.record import ROOT_NAME, metrics

if TYPE_CHECKING:
    from stethoscope.capture.watcher import Watcher

OFTEN: Final = 64
"""Steps between two that are timed, once training runs; before that at powers of two."""
WARM_UP: Final = 4
MAX_MODULES: Final = 2000
MAX_CALLS: Final = 20_000
"""Forward passes of modules in one step that are timed: an unrolled recurrence may have any number."""
MAX_WAITING: Final = 4


def due(step: int) -> bool:
    """Whether the layers of this step are timed."""
    return step >= WARM_UP and (step % OFTEN == 0 or (step < OFTEN and step & (step - 1) == 0))


@dataclass(slots=True)
class _Call:
    """One forward pass of one module."""

    name: str
    module_type: str
    parameter_count: int
    parent: int
    began: Any
    ended: Any = None
    output_bytes: int = 0


class _Marks:
    """The marks of one step: the host's clock, or events in a device's stream."""

    def __init__(self, on_device: bool, ours: Callable[[], float]) -> None:
        self.on_device, self._ours = on_device, ours
        self.calls: list[_Call] = []
        self.arrivals: list[tuple[int | None, Any]] = []
        """In the order of time: which call's gradient arrived; None where the backward pass ended."""

    def now(self) -> Any:
        if not self.on_device:
            return time.perf_counter() - self._ours()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ready(self) -> bool:
        last = [mark for _, mark in self.arrivals[-1:]] + [
            call.ended for call in self.calls[-1:] if call.ended is not None
        ]
        return not self.on_device or all(mark.query() for mark in last)

    def seconds(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second)) / 1e3 if self.on_device else float(second - first)

    def times(self) -> list[LayerTime]:
        """What each call took by itself."""
        whole = [0.0 if c.ended is None else max(self.seconds(c.began, c.ended), 0.0) for c in self.calls]
        own = list(whole)
        for place, call in enumerate(self.calls):
            if call.parent >= 0:
                own[call.parent] -= whole[place]
        backward: dict[int, float] = {}
        for (whose, began), (_, ended) in itertools.pairwise(self.arrivals):
            if whose is not None:
                backward[whose] = backward.get(whose, 0.0) + max(self.seconds(began, ended), 0.0)
        return [
            LayerTime(c.name, c.module_type, max(own[i], 0.0), backward.get(i), c.output_bytes, c.parameter_count)
            for i, c in enumerate(self.calls)
            if c.ended is not None
        ]


class LayerTimes:
    """The layer clock of one watched model."""

    def __init__(self, watcher: Watcher, model: Any) -> None:
        self._watcher, self._model = watcher, model
        self._handles: list[Any] = []
        self._marks: _Marks | None = None
        self._open: list[int] = []
        self._thread = 0
        self._last_output: Callable[[], Any] = lambda: None
        self._waiting: deque[_Marks] = deque(maxlen=MAX_WAITING)
        self.arrived: deque[list[LayerTime]] = deque(maxlen=64)
        """Steps that were timed, for the Profiler to take."""

    def step_ends(self, next_step: int) -> None:
        """A step is complete: take the hooks off, or put them on for the next one."""
        if self._marks is not None:
            self._waiting.append(self._marks)
            self.close()
        while self._waiting and self._waiting[0].ready():
            self.arrived.append(self._waiting.popleft().times())
        if due(next_step):
            self._begin()

    def finish(self) -> None:
        """Take everything off; what a device has not passed by now is left out."""
        self.close()
        while self._waiting and self._waiting[0].ready():
            self.arrived.append(self._waiting.popleft().times())

    def close(self) -> None:
        """Take the hooks off."""
        self._marks = self._watcher.phases.on_end = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._open.clear()

    def part_ended(self, part: str) -> None:
        """After a backward pass: the last gradient has arrived some time ago."""
        if part == metrics.BACKWARD_MS and self._marks is not None and self._marks.arrivals:
            self._marks.arrivals.append((None, self._marks.now()))

    def _begin(self) -> None:
        root = self._watcher.names.root
        modules = list(root.named_modules())
        if len(modules) > MAX_MODULES or self._watcher.taps.made_way or is_compiled(self._model):
            return
        if any(
            "_compiled_call_impl" in m.__dict__ and m.__dict__["_compiled_call_impl"] is not None for _, m in modules
        ):
            return
        kinds = {p.device.type for p in root.parameters()}
        if not kinds <= {"cpu"} and kinds != {"cuda"}:
            return
        self._marks, self._thread = _Marks(kinds == {"cuda"}, lambda: self._watcher.taps.spent), threading.get_ident()
        self._watcher.phases.on_end = self.part_ended
        for path, module in modules:
            if not isinstance(module, torch.jit.ScriptModule) and type(module).forward is not torch.nn.Module.forward:
                facts = (
                    path or ROOT_NAME,
                    type(module).__name__,
                    sum(p.numel() for p in module.parameters(recurse=False)),
                )
                self._handles.append(module.register_forward_pre_hook(Before(self, facts)))
                self._handles.append(module.register_forward_hook(After(self, facts), prepend=True))

    @property
    def guard(self) -> Callable[..., None]:
        """The wall around everything that the framework calls."""
        return self._watcher.guard

    def hears(self) -> bool:
        """Whether this is a forward pass of training, on the thread that trains, and not one that is run again."""
        return (
            self._marks is not None
            and threading.get_ident() == self._thread
            and not self._watcher.evaluating
            and torch.is_grad_enabled()
            and torch._C._current_graph_task_id() == -1
            and torch._C._functorch.peek_interpreter_stack() is None
            and torch._C._get_tracing_state() is None
            and not (self._marks.on_device and torch.cuda.is_current_stream_capturing())
        )

    def begins(self, facts: tuple[str, str, int]) -> None:
        """A module is called."""
        marks = self._marks
        if marks is None or len(marks.calls) >= MAX_CALLS:
            return
        parent = self._open[-1] if self._open else -1
        self._open.append(len(marks.calls))
        marks.calls.append(_Call(*facts, parent, marks.now()))

    def ends(self, facts: tuple[str, str, int], output: Any) -> None:
        """It returned; a child that raised never did, and is forgotten."""
        marks = self._marks
        if marks is None:
            return
        ended = marks.now()
        while self._open:
            place = self._open.pop()
            if marks.calls[place].name == facts[0]:
                break
        else:
            return
        call = marks.calls[place]
        call.ended = ended
        tensors = [tensor for _, tensor in tensors_in(output)]
        call.output_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        for tensor in tensors[:1]:
            # A module that returns what its last child returned: the gradient arrives at the child.
            if tensor.requires_grad and tensor is not self._last_output():
                self._last_output = weakref.ref(tensor)
                tensor.register_hook(GradientArrival(self, marks, place))


class Before(Inert):
    """The hook before one module's forward pass."""

    def __init__(self, times: LayerTimes, facts: tuple[str, str, int]) -> None:
        self._times, self.facts = times, facts

    def __call__(self, module: Any, args: Any) -> None:  # noqa: ARG002 - torch's signature
        """Note the moment."""
        if not torch.compiler.is_compiling() and self._times.hears():
            self._times.guard(self._times.begins, self.facts)


class After(Inert):
    """The hook after it."""

    def __init__(self, times: LayerTimes, facts: tuple[str, str, int]) -> None:
        self._times, self._facts = times, facts

    def __call__(self, module: Any, args: Any, output: Any) -> None:  # noqa: ARG002 - torch's signature
        """Note the moment, and listen for the gradient."""
        if not torch.compiler.is_compiling() and self._times.hears():
            self._times.guard(self._times.ends, self._facts, output)


class GradientArrival(Inert):
    """The hook on one output's gradient."""

    def __init__(self, times: LayerTimes, marks: _Marks, place: int) -> None:
        self._times, self._marks, self._place = times, marks, place

    def __call__(self, gradient: Any) -> None:  # noqa: ARG002 - torch's signature
        """Note the moment; the gradient passes as it is."""
        self._times.guard(self._note)

    def _note(self) -> None:
        self._marks.arrivals.append((self._place, self._marks.now()))


for _hook in (Before, After, GradientArrival):
    never_compiled(_hook.__call__)
