"""Where we touch the framework, and how each touch is put back.

One set of patches for the whole process, however many sessions listen. The first listener opens the seams, the
last one that leaves closes them, and after that every patched name holds the object it held before. Listeners
hear of: backward passes, clipping, the gradient scaler, learning-rate schedulers, optimizer steps, data loaders.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.amp import grad_scaler
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler, swa_utils
from torch.optim import optimizer as optimizer_module
from torch.utils.data import dataloader

from stethoscope.capture.guard import Guard, never_compiled

never_compiled(Guard.__call__)  # here, because the guard itself is used without torch, too

MARK = "__stethoscope_seam__"


class Listener(Protocol):
    """What hears the seams. Implementations must not raise: they guard themselves."""

    def backward_begins(self, loss: Any, *, retain: bool, create: bool) -> None:
        """A backward pass is about to start from these tensors."""

    def backward_ends(self) -> None:
        """The backward pass returned."""

    def gradient_asked(self) -> None:
        """torch.autograd.grad is about to run."""

    def step_begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer's step starts."""

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step returned."""

    def clipped_norm(self, gradients: Any, max_norm: Any, total_norm: torch.Tensor) -> None:
        """Gradients are about to be scaled to at most `max_norm`; `total_norm` is their norm before."""

    def clipped_value(self, gradients: Any, clip_value: float) -> None:
        """Gradients are about to be clamped to +-`clip_value`."""

    def loss_scaled(self, scaler: Any, scaled: Any) -> None:
        """A GradScaler multiplied a loss, or several."""

    def scaler_stepped(self, scaler: Any, optimizer: torch.optim.Optimizer, ran: bool) -> None:
        """A GradScaler asked an optimizer to step; `ran` is False where it skipped because of an Inf."""

    def scheduler_stepped(self, scheduler: Any) -> None:
        """A learning-rate scheduler advanced."""

    def average_made(self, average: Any) -> None:
        """An AveragedModel was made."""

    def batch_arrived(self, dataset: Any, batch: Any, seconds: float) -> None:
        """A DataLoader over these data yielded a batch, after somebody waited so long for it."""


class Patch:
    """One name of one owner replaced, and put back if it is still ours."""

    def __init__(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.owner, self.name = owner, name
        self.original = owner.__dict__[name]
        replacement = functools.wraps(self.original)(never_compiled(_unseen_by_warnings(make(self.original))))
        setattr(replacement, MARK, True)
        self.replacement = replacement
        setattr(owner, name, replacement)

    def restore(self) -> bool:
        """Put the original back; False where somebody patched over us, who then keeps what they have."""
        if self.owner.__dict__.get(self.name) is not self.replacement:
            return False
        setattr(self.owner, self.name, self.original)
        return True


def _unseen_by_warnings(function: Any) -> Any:
    """Let warnings count past the frame of this function, so that a `stacklevel` points where it does without us.

    Python passes over the frames of its import system, which it knows by these two words in the name of their file, in
    every way to warn; there is no other way to be left out. Tracebacks still show whose frame it is.
    """
    code = function.__code__
    function.__code__ = code.replace(co_filename=f"{code.co_filename} [as importlib._bootstrap]")
    return function


class Seams:
    """The process-wide patches and those who listen to them."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self._patches: list[Patch] = []
        self._handles: list[Any] = []
        self._lock = threading.RLock()

    def join(self, listener: Listener) -> None:
        """Start to listen; opens the seams for the first one."""
        with self._lock:
            if not self._patches:
                self._open()
            self.listeners = [*self.listeners, listener]

    def leave(self, listener: Listener) -> None:
        """Stop to listen; closes the seams after the last one."""
        with self._lock:
            self.listeners = [other for other in self.listeners if other is not listener]
            if not self.listeners:
                self._close()

    @property
    def num_open(self) -> int:
        """How many names are patched and hooks registered right now."""
        return len(self._patches) + len(self._handles)

    def _open(self) -> None:
        self._patches.append(Patch(torch.autograd, "backward", self._around_backward))
        self._patches.extend(Patch(owner, "script", self._around_script) for owner in (torch.jit, torch.jit._script))
        if "torch.export" in sys.modules:
            # The strict kind of an older torch bears no hook either.
            self._patches.append(Patch(torch.export, "export", self._around_script))
        self._patches.append(Patch(torch.autograd, "_engine_run_backward", self._around_engine))
        self._patches.append(Patch(clip_grad, "_group_tensors_by_device_and_dtype", self._around_grouping))
        scaler = grad_scaler.GradScaler
        self._patches.extend(Patch(kind, "scale", self._around_scale) for kind in _defining(scaler, "scale"))
        self._patches.extend(
            Patch(kind, "_maybe_opt_step", self._around_scaler_step) for kind in _defining(scaler, "_maybe_opt_step")
        )
        self._patches.extend(
            Patch(kind, "step", self._around_scheduler) for kind in _defining(lr_scheduler.LRScheduler, "step")
        )
        self._patches.append(Patch(swa_utils.AveragedModel, "__init__", self._around_average))
        self._patches.append(Patch(dataloader._BaseDataLoaderIter, "__next__", self._around_loader))
        self._handles.append(optimizer_module.register_optimizer_step_pre_hook(self._before_step))
        self._handles.append(optimizer_module.register_optimizer_step_post_hook(self._after_step))

    def _close(self) -> None:
        # In reverse, so that nested patches of one name come off in order.
        for patch in reversed(self._patches):
            patch.restore()
        for handle in self._handles:
            handle.remove()
        self._patches, self._handles = [], []

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: Any = None,
            create_graph: bool = False,
            *rest: Any,
            **more: Any,
        ) -> Any:
            # A backward inside a backward is reentrant checkpointing: not one of the user's.
            if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1 or not self.listeners:
                return original(tensors, grad_tensors, retain_graph, create_graph, *rest, **more)
            position = 0  # a list that may grow meanwhile: discovery makes listeners at this very moment
            while position < len(self.listeners):
                self.listeners[position].backward_begins(tensors, retain=bool(retain_graph), create=bool(create_graph))
                position += 1
            result = original(tensors, grad_tensors, retain_graph, create_graph, *rest, **more)
            for listener in self.listeners:
                listener.backward_ends()
            return result

        return backward

    def _around_script(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def script(*args: Any, **kwargs: Any) -> Any:
            model = args[0] if args else kwargs.get("obj", kwargs.get("mod"))
            if not isinstance(model, torch.nn.Module):
                return original(*args, **kwargs)
            from stethoscope.capture.pausing import without_hooks

            with without_hooks(model):
                return original(*args, **kwargs)

        return script

    def _around_engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # `backward` and `grad` both look this name up when they run, so `grad` is heard wherever it was bound.
        def run(*args: Any, **kwargs: Any) -> Any:
            is_grad = not kwargs.get("accumulate_grad", True)
            if is_grad and not torch.compiler.is_compiling() and torch._C._current_graph_task_id() == -1:
                for listener in self.listeners:
                    listener.gradient_asked()
            return original(*args, **kwargs)

        return run

    def _around_grouping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # Every way to clip groups the gradients first, by a name it looks up when it runs: so names that were
        # bound before `watch`, under whatever name, are heard too.
        def group(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            caller = sys._getframe(1)
            name, values = caller.f_code.co_name, caller.f_locals
            if name == "_clip_grads_with_norm_":
                for listener in self.listeners:
                    listener.clipped_norm(values["grads"], values["max_norm"], values["total_norm"])
            elif name == "clip_grad_value_":
                for listener in self.listeners:
                    listener.clipped_value(values["grads"], values["clip_value"])
            return original(*args, **kwargs)

        return group

    def _around_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if torch.compiler.is_compiling():
                return scaled
            for listener in self.listeners:
                listener.loss_scaled(scaler, scaled)
            return scaled

        return scale

    def _around_scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def maybe_step(scaler: Any, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
            before = _STEPS_SEEN.get(id(optimizer), 0)
            result = original(scaler, optimizer, optimizer_state, *args, **kwargs)
            ran = _STEPS_SEEN.get(id(optimizer), 0) != before
            for listener in self.listeners:
                listener.scaler_stepped(scaler, optimizer, ran)
            return result

        return maybe_step

    def _around_scheduler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(scheduler, *args, **kwargs)
            depth = getattr(_INSIDE, "scheduler", 0)
            _INSIDE.scheduler = depth + 1
            try:
                result = original(scheduler, *args, **kwargs)
            finally:
                _INSIDE.scheduler = depth
            # A scheduler of schedulers steps its children: one advance, not several.
            if depth == 0:
                for listener in self.listeners:
                    listener.scheduler_stepped(scheduler)
            return result

        return step

    def _around_average(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(average: Any, *args: Any, **kwargs: Any) -> None:
            original(average, *args, **kwargs)
            for listener in self.listeners:
                listener.average_made(average)

        return initialize

    def _around_loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # The iterator of every kind of DataLoader. Its constructor, where the workers' seed is drawn, stays as it is.
        def advance(iterator: Any) -> Any:
            began = time.perf_counter()
            batch = original(iterator)
            seconds = time.perf_counter() - began
            dataset = getattr(iterator, "_dataset", None)
            for listener in self.listeners:
                listener.batch_arrived(dataset, batch, seconds)
            return batch

        return advance

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # An optimizer that overrides `step` and calls its parent's runs the hooks twice: the outer one counts.
        depth = _DEPTH.get(id(optimizer), 0)
        if depth and not _is_inside_step(optimizer):
            depth = 0  # an earlier step raised, so its end was never heard
        _DEPTH[id(optimizer)] = depth + 1
        if depth:
            return
        position = 0
        while position < len(self.listeners):
            self.listeners[position].step_begins(optimizer, args, kwargs)
            position += 1

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - torch's
        depth = _DEPTH.get(id(optimizer), 0)
        if depth > 1:
            _DEPTH[id(optimizer)] = depth - 1
            return
        _DEPTH.pop(id(optimizer), None)
        _STEPS_SEEN[id(optimizer)] = _STEPS_SEEN.get(id(optimizer), 0) + 1
        for listener in self.listeners:
            listener.step_ends(optimizer)


def _is_inside_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a `step` of this optimizer is on the stack above the one that is about to run."""
    frame = sys._getframe(2)
    num_found = 0
    home = optimizer_module.__file__
    while frame is not None:
        if frame.f_code.co_filename == home and frame.f_locals.get("self") is optimizer:
            num_found += 1
        frame = frame.f_back  # type: ignore[assignment]
    return num_found > 1


# Dynamo must call these as plain Python: never traced into, and never compiled with what they call.
for _hook in (Seams._before_step, Seams._after_step):
    _hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    never_compiled(_hook)

_INSIDE = threading.local()
_STEPS_SEEN: dict[int, int] = {}
_DEPTH: dict[int, int] = {}


def _defining(base: type, name: str) -> list[type]:
    """Every class derived from this one that defines the method itself, the user's own included."""
    found: list[type] = []
    waiting: list[type] = [base]
    while waiting:
        kind = waiting.pop()
        if kind in found:
            continue
        if name in vars(kind):
            found.append(kind)
        waiting.extend(kind.__subclasses__())
    return found


SEAMS = Seams()
