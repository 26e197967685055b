"""The model's data-flow graph, from one real forward pass of the user's training.

Promises: the first training forward after `attach` is followed once, by a torch function mode and temporary module
hooks that come off with it; outputs, gradients and the RNG are what they would have been; a model that torch.compile
runs is followed on a copy without data instead; whatever goes wrong leaves no graph and no harm.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import torch

from stethoscope.capture import lineage_copy
from stethoscope.capture.guard import can_be_kept, in_words, never_compiled
from stethoscope.capture.lineage_build import VERSION, build
from stethoscope.capture.lineage_trace import Trace
from stethoscope.capture.modes import alone, only_asks
from stethoscope.capture.taps import Inert

MAX_MODULES: Final = 4096
"""Modules of a model that is followed: each takes 110 microseconds of the first step, and nobody reads a graph of more."""
MAX_TRIES: Final = 3
"""Forward passes that ended in the user's own exception before we stop to try."""


class Before(Inert):
    """The root's forward pre-hook."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage

    def __call__(self, module: Any, args: Any, kwargs: Any = None) -> None:
        """The root is about to run."""
        # A thread that called the model at the same moment may find the hook half taken off: then without keywords.
        if kwargs is not None:
            self._lineage.forward_begins(module, args, kwargs)


class After(Inert):
    """The root's forward hook, called after exceptions too."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage

    def __call__(self, module: Any, args: Any, output: Any) -> None:  # noqa: ARG002 - torch's signature
        """The root returned, or raised."""
        self._lineage.forward_ends(module, output)


class PartBefore(Inert):
    """The forward pre-hook of a module under a root that is never called itself."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage

    def __call__(self, module: Any, args: Any, kwargs: Any = None) -> None:
        """A part is about to run."""
        if kwargs is not None:
            self._lineage.part_begins(module, args, kwargs)


class PartAfter(Inert):
    """Its forward hook, called after exceptions too."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage

    def __call__(self, module: Any, args: Any, output: Any) -> None:  # noqa: ARG002 - torch's signature
        """A part returned, or raised."""
        self._lineage.part_ends(module, output)


for _hook in (Before, After, PartBefore, PartAfter):
    never_compiled(_hook.__call__)


class FirstCall(Inert):
    """Stands in for a compiled call once: shows its arguments, puts the original back, and calls it."""

    def __init__(self, lineage: Lineage, original: Callable[..., Any]) -> None:
        self._lineage, self.original = lineage, original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Show the arguments and go on."""
        self._lineage.compiled_call(args, kwargs)
        return self.original(*args, **kwargs)


class Lineage:
    """Waits for the first training forward of a model, follows it, and hands the graph over."""

    def __init__(
        self,
        root: torch.nn.Module,
        emit: Callable[[dict[str, Any]], None],
        *,
        model: torch.nn.Module | None = None,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`model`: the root in its wrappers. `emit` gets the graph; `ready` is asked before every forward."""
        self.done = False
        self._root, self._emit, self._ready = root, emit, ready
        self._model = model if model is not None else root
        self._handles: list[Any] = []
        self._first_call: FirstCall | None = None
        self._trace: Trace | None = None
        self._num_tries = 0
        self._began = 0.0
        self._thread = 0
        self._outer_error: BaseException | None = None
        """What was being handled when the forward began: another one at its end is its own."""
        self._was_called = False
        """Whether anybody calls the root: of some models only parts are."""
        self._in_parts = False
        self._attached = False
        self._part: torch.nn.Module | None = None

    def attach(self) -> None:
        """Wait at the root; does nothing for models that cannot be followed."""
        self._attached = True
        if isinstance(self._root, torch.jit.ScriptModule):
            self._give_up("a scripted model has no Python forward to follow")
            return
        num_modules = sum(1 for _ in self._root.modules())
        if num_modules > MAX_MODULES:
            self._give_up(
                f"the model has {num_modules:,} modules, and the graph of at most {MAX_MODULES:,} is recorded"
            )
            return
        compiled = self._root.__dict__.get("_compiled_call_impl")
        if compiled is not None:
            self._first_call = FirstCall(self, compiled)
            self._root._compiled_call_impl = self._first_call
            return
        outermost = self._model if type(self._model).__name__ == "OptimizedModule" else self._root
        self._handles.append(outermost.register_forward_pre_hook(Before(self), with_kwargs=True))
        if outermost is self._root:
            self._handles.append(outermost.register_forward_hook(After(self), always_call=True))

    def detach(self) -> None:
        """Take everything off; a pass that is under way is forgotten."""
        self.done = True
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.end()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._first_call is not None:
            original = self._first_call.original
            if self._root.__dict__.get("_compiled_call_impl") is self._first_call:
                self._root._compiled_call_impl = original
        self._first_call = None

    @only_asks
    def settle(self) -> None:
        """A backward begins: no forward can be under way now, and a root that nobody called is not the way in."""
        if self.done or not self._attached:
            return
        if self._trace is not None and threading.get_ident() == self._thread:
            if self._in_parts and self._part is None:
                self._finish_parts(self._trace)
            else:
                self._drop()
        elif not self._was_called and not self._in_parts and self._first_call is None:
            self._in_parts = True
            for module in _entrances(self._root):
                self._handles.append(module.register_forward_pre_hook(PartBefore(self), with_kwargs=True))
                self._handles.append(module.register_forward_hook(PartAfter(self), always_call=True))

    # ---- the root's hooks; nothing here may raise ----

    @only_asks
    def forward_begins(self, module: Any, args: Any, kwargs: Any) -> None:
        """Begin to follow, if this is a training forward of the root on an uncompiled path."""
        if torch.compiler.is_compiling() or self.done:
            return
        self._was_called = True
        if not _training():
            return
        try:
            if self._trace is not None:
                if threading.get_ident() != self._thread or module is not self._root:
                    return
                self._drop()
            if not self._ready():
                return
            self._began = time.perf_counter()
            if module is not self._root or _uses_compile(self._root):
                self._follow_copy(args, kwargs)
                return
            self._num_tries += 1
            self._thread, self._outer_error = threading.get_ident(), sys.exc_info()[1]
            self._trace = Trace(self._root)
            self._trace.begin(args, kwargs)
        except BaseException as error:
            if not can_be_kept(error):
                raise
            self._give_up(in_words(error))

    @only_asks
    def forward_ends(self, module: Any, output: Any) -> None:
        """Stop to follow, and hand the graph over if the forward came to its end."""
        trace = self._trace
        if trace is None or module is not self._root or threading.get_ident() != self._thread:
            return
        try:
            failed = sys.exc_info()[1] is not self._outer_error or output is None
            if trace.mode.active and not failed:
                trace.close(output)
            error = trace.error
            trace.end()
            self._trace = None
            if error is not None:
                self._give_up(in_words(error))
            elif not failed:
                self._finish(build(trace))
            elif self._num_tries >= MAX_TRIES:
                self._give_up("the forward passes that were followed ended in exceptions")
        except BaseException as error:
            if not can_be_kept(error):
                raise
            self._give_up(in_words(error))

    @only_asks
    def part_begins(self, module: Any, args: Any, kwargs: Any) -> None:
        """Follow a part, unless it runs inside of another one."""
        if torch.compiler.is_compiling() or self.done or self._was_called or self._part is not None:
            return
        if not _training():
            return
        try:
            if not self._ready() or (self._trace is not None and threading.get_ident() != self._thread):
                return
            if self._trace is None:
                if _uses_compile(self._root):
                    self._give_up("torch.compile runs parts of a model that is never called as a whole")
                    return
                self._num_tries += 1
                self._thread, self._began = threading.get_ident(), time.perf_counter()
                self._trace = Trace(self._root)
            self._part, self._outer_error = module, sys.exc_info()[1]
            self._trace.begin_part(module, args, kwargs)
        except BaseException as error:
            if not can_be_kept(error):
                raise
            self._give_up(in_words(error))

    @only_asks
    def part_ends(self, module: Any, output: Any) -> None:
        """Wait for the next part, or for the backward."""
        trace = self._trace
        if trace is None or module is not self._part or threading.get_ident() != self._thread:
            return
        try:
            self._part = None
            if sys.exc_info()[1] is not self._outer_error:
                self._drop()
            else:
                trace.end_part(output)
        except BaseException as error:
            if not can_be_kept(error):
                raise
            self._give_up(in_words(error))

    def _finish_parts(self, trace: Trace) -> None:
        trace.close_parts()
        error = trace.error
        trace.end()
        if error is not None:
            self._give_up(in_words(error))
        else:
            self._finish(build(trace) | {"status": "parts"})

    def compiled_call(self, args: Any, kwargs: Any) -> None:
        """A compiled model is about to be called with these."""
        if self.done or not _training():
            return
        try:
            if self._ready():
                self._began = time.perf_counter()
                self._follow_copy(args, kwargs)
        except BaseException as error:
            if not can_be_kept(error):
                raise
            self._give_up(in_words(error))

    # ---- ends ----

    def _follow_copy(self, args: Any, kwargs: Any) -> None:
        try:
            with alone():
                trace = lineage_copy.follow(self._root, args, kwargs)
        except Exception as error:
            self._give_up(f"the compiled model cannot be followed on a copy: {error!r}")
            return
        self._finish(build(trace) | {"status": "copy"})

    def _finish(self, body: dict[str, Any]) -> None:
        body["took_ms"] = round((time.perf_counter() - self._began) * 1e3, 3)
        self.detach()
        self._emit(body)

    def _drop(self) -> None:
        trace, self._trace, self._part = self._trace, None, None
        if trace is not None:
            trace.end()
        if self._num_tries >= MAX_TRIES:
            self._give_up("the forward passes that were followed did not come to an end")

    def _give_up(self, reason: str) -> None:
        """No graph, and the reason for it in its place."""
        try:
            self.detach()
        finally:
            self._emit({"version": VERSION, "status": "unknown", "reason": reason[:500]})


def _entrances(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules through which a forward may come that does not come through this one."""
    found: list[torch.nn.Module] = []
    for child in module.children():
        if isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            found.extend(_entrances(child))
        elif not isinstance(child, torch.jit.ScriptModule):
            found.append(child)
    return found


def _training() -> bool:
    """Whether this is a forward pass to train on: not checkpointing's second one, not a torch.jit.trace."""
    if torch._C._get_tracing_state() is not None:
        return False
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1


def _uses_compile(root: torch.nn.Module) -> bool:
    """Whether torch.compile may run inside: following a pass through it would make it compile twice."""
    for module in root.modules():
        if type(module).__name__ == "OptimizedModule" or module.__dict__.get("_compiled_call_impl") is not None:
            return True
    evaluation = sys.modules.get("torch._dynamo.eval_frame")
    # Functions that are kept out of compilation leave a None in this table.
    return any(backend is not None for backend in dict(getattr(evaluation, "cached_backends", {})).values())
