"""Taps on modules: their outputs and the gradients of these.

A tap is a forward hook that returns at once unless this step is looked at. It leaves the output as it is,
survives deepcopy and pickling as something inert from the standard library, is traced by torch.compile into
nothing, and does not count forward passes that activation checkpointing runs again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

import numpy as np
import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling

from stethoscope.capture.collecting import Collector
from stethoscope.capture.graph_taps import TAPPED, GraphTaps, any_compiled, pass_through
from stethoscope.capture.guard import Guard, never_compiled, not_compiled_itself
from stethoscope.capture.part_hooks import PartHooks
from stethoscope.capture.ring import MeasuredGroup
from stethoscope.capture.sites import Ensemble, Names, SiteTable, wanted
from stethoscope.kernels import Pending, measure_async
from stethoscope.record import Kind, Site

if TYPE_CHECKING:
    from stethoscope.capture.plain_steps import PlainSteps

MAX_TENSORS_PER_OUTPUT: Final = 8
MAX_DEPTH: Final = 3


def tensors_in(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors inside a module's input or output, each with its position or key."""
    if issubclass(type(value), torch.Tensor):
        yield name, value
    elif depth < MAX_DEPTH:
        for key, item in _items(value):
            yield from tensors_in(item, f"{name}.{key}" if name else key, depth + 1)


def _items(value: Any) -> list[tuple[str, Any]]:
    """What a container holds; nothing where it does not let itself be looked into."""
    try:
        if isinstance(value, Mapping):
            return [(str(key), item) for key, item in value.items()]
        if isinstance(value, (tuple, list)):
            return [(str(position), item) for position, item in enumerate(value)]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    except Exception:
        return []
    return []


def has_fractions(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds floating-point or complex numbers; runs no code of a subclass."""
    if type(tensor) is Tensor:
        return tensor.is_floating_point() or tensor.is_complex()
    with torch._C.DisableTorchFunction():
        return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _is_transformed() -> bool:
    """Whether vmap, grad or a tracer is at work: values are not numbers that anybody could read, or would be recorded."""
    return torch._C._functorch.peek_interpreter_stack() is not None or torch._C._get_tracing_state() is not None


_ask_evaluator: Final = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: None)
"""What torch.compile does with every frame right now; None where it does not run the code around us."""


def _measurable(output: Any) -> list[tuple[str, torch.Tensor]]:
    """The first tensors of an output that hold numbers with a fraction."""
    if issubclass(type(output), torch.Tensor):
        return [("", output)] if has_fractions(output) else []
    return [(n, t) for n, t in tensors_in(output) if has_fractions(t)][:MAX_TENSORS_PER_OUTPUT]


class Inert:
    """Hooks that copies and pickles of a watched model carry in place of ours: they do nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        # nullcontext's __exit__ takes anything and returns None, and every Python can load it.
        return getattr, (contextlib.nullcontext(), "__exit__")

    def __deepcopy__(self, memo: Any) -> Any:
        return contextlib.nullcontext().__exit__


class OutputTap(Inert):
    """The forward hook of one module."""

    def __init__(self, taps: Taps, path: str, kind: Kind) -> None:
        self._taps, self.path, self._kind = taps, path, kind
        self._is_part = kind is Kind.ACTIVATION
        self._indices: dict[str, int] = {}
        self._gradient_taps: dict[str, GradientTap] = {}
        self._without_graph = False
        """Whether the last output came from a part of a training forward that keeps no graph."""
        self.positions: tuple[torch.Tensor, ...] = ()
        """What the output is known by inside of compiled graphs, where these are tapped."""

    def __call__(self, module: Any, args: Any, output: Any) -> Any:
        """Look at the output, where this step is looked at; else keep it for the case that the loss is not finite."""
        if is_compiling():
            if TAPPED.on and self.positions and is_grad_enabled():
                return pass_through(output, self.positions)
            return None
        taps = self._taps
        if taps.keeping and is_grad_enabled():
            # The way of nearly every call of nearly every step: nothing here that could wait until the loss is known.
            if type(output) is Tensor:
                taps.kept.append((self, "", ref(output)))
            else:
                taps.guard(self._keep, output)
            if not self._is_part:
                taps.inside.discard(get_ident())
            return None
        if taps.recording or taps.keeping:
            self._arrive(module, args, output)
        return None

    def _arrive(self, module: Any, args: Any, output: Any) -> None:
        is_inside = get_ident() in self._taps.inside
        if self._kind is Kind.OUTPUT:
            self._taps.inside.discard(get_ident())
        if _is_transformed():
            return
        if torch._C._current_graph_task_id() != -1:
            # Checkpointing computes again. The reentrant kind had no graph the first time: its gradients come now.
            if self._without_graph and self._taps.recording:
                self._taps.guard(self._tap_gradients, output)
            return
        if not torch.is_grad_enabled() and not is_inside:
            return
        self._without_graph = not torch.is_grad_enabled()
        if self._taps.recording:
            self._taps.guard(self._look, output)
            self._taps.guard(self._note, module, args, output)
        else:
            self._taps.guard(self._keep, output)

    def _note(self, module: Any, args: Any, output: Any) -> None:
        if self._taps.on_output is None:
            return
        began = time.perf_counter()
        found = [
            (name, tensor)
            for name, tensor in tensors_in(output)
            if type(tensor) is Tensor and tensor.is_floating_point()
        ]
        if found and found[0][0] in self._indices:
            self._taps.on_output(self.path, module, args, found, self._indices[found[0][0]])
        self._taps.spent += time.perf_counter() - began

    def _keep(self, output: Any) -> None:
        kept = self._taps.kept
        if type(output) is tuple and len(output) == 2 and type(output[0]) is Tensor and output[1] is None:
            kept.append((self, "0", ref(output[0])))  # what attention returns, time and again
            return
        kept += [(self, name, ref(tensor)) for name, tensor in tensors_in(output) if type(tensor) is Tensor]

    def _look(self, output: Any) -> None:
        began = time.perf_counter()
        found = _measurable(output)
        if not found:
            return
        for name, tensor in found:
            self._taps.waiting.add(self.index(name, tensor), tensor)
        self._tap(found)
        if self._kind is Kind.OUTPUT:
            self._taps.waiting.flush()
        self._taps.spent += time.perf_counter() - began

    def _tap_gradients(self, output: Any) -> None:
        self._tap(_measurable(output))

    def _tap(self, found: list[tuple[str, torch.Tensor]]) -> None:
        if self._kind is Kind.ACTIVATION:
            for name, tensor in found:
                with torch._C.DisableTorchFunction():
                    wanted = tensor.requires_grad
                if wanted:
                    tensor.register_hook(self._gradient_tap(name, tensor))

    def index(self, name: str, tensor: torch.Tensor) -> int:
        """The number of this output's site."""
        position = self._indices.get(name)
        if position is None:
            position = self._indices[name] = self._taps.table.index(Site(self.path, self._kind, name), tensor)
        return position

    def _gradient_tap(self, name: str, tensor: torch.Tensor) -> GradientTap:
        tap = self._gradient_taps.get(name)
        if tap is None:
            position = self._taps.table.index(Site(self.path, Kind.ACTIVATION_GRADIENT, name), tensor)
            tap = self._gradient_taps[name] = GradientTap(self._taps, position, self.path)
        return tap


class GradientTap(Inert):
    """The hook on one output's gradient."""

    def __init__(self, taps: Taps, position: int, path: str) -> None:
        self._taps, self._position, self.path = taps, position, path

    def __call__(self, gradient: Any) -> None:
        """Look at the gradient; it passes as it is."""
        self._taps.guard(self._look, gradient)

    def _look(self, gradient: Any) -> None:
        if not self._taps.open or not issubclass(type(gradient), torch.Tensor):
            return
        began = time.perf_counter()
        self._taps.waiting.add(self._position, gradient, self._taps.gradient_scale)
        self._taps.spent += time.perf_counter() - began


class InputTap(Inert):
    """The root's forward pre-hook: what goes into the model."""

    def __init__(self, taps: Taps, path: str, on_call: Callable[[Any, bool], None]) -> None:
        self._taps, self.path, self._on_call = taps, path, on_call
        self.parts = taps.parts

    def __call__(self, module: Any, args: Any, kwargs: Any = None) -> None:
        """Look at the inputs, where this step is looked at.

        The one place that asks who runs the code around us; nothing that it calls is shown to torch.compile.
        """
        if not is_compiling():
            taps, began, before = self._taps, time.perf_counter(), self._taps.spent
            self._hear(module, args, kwargs, _ask_evaluator() is not None)
            taps.guard.spent += time.perf_counter() - began - (taps.spent - before)

    def _hear(self, module: Any, args: Any, kwargs: Any, is_compiled: bool) -> None:
        plain = self._taps.plain
        if _is_transformed() or (
            plain is not None and plain.called(self, module, args, kwargs, is_compiled=is_compiled)
        ):
            return
        if is_compiled and (self._taps.can_make_way or self._taps.wants_graphs):
            self._taps.guard(self._taps.make_way if self._taps.can_make_way else self._taps.open_graphs)
        values = (*args, dict(kwargs)) if kwargs else args
        taps, is_training = self._taps, is_grad_enabled()
        if taps.on_evaluation is not None and (taps.evaluating or not is_training):
            taps.guard(taps.on_evaluation, values, module.training)
        if not is_training or torch._C._current_graph_task_id() != -1:
            return
        taps.inside.add(get_ident())
        taps.guard(self._on_call, values, module.training)
        if taps.recording or taps.inputs_due:
            taps.guard(self._look, values)
        elif taps.keeping:
            taps.guard(self.keep, values)

    def index(self, name: str, tensor: torch.Tensor) -> int:
        """The number of this input's site."""
        return self._taps.table.index(Site(self.path, Kind.INPUT, name), tensor)

    def keep(self, values: Any) -> None:
        """What goes in may be looked at when the loss is known."""
        kept = self._taps.kept
        if len(values) == 1 and type(values[0]) is Tensor:
            kept.append((self, "0", ref(values[0])))
            return
        found = [(name, tensor) for name, tensor in tensors_in(values) if type(tensor) is Tensor]
        kept += [(self, name, ref(tensor)) for name, tensor in found[:MAX_TENSORS_PER_OUTPUT]]

    def _look(self, values: Any) -> None:
        began = time.perf_counter()
        with torch._C.DisableTorchFunction():
            found = [
                (n, t)
                for n, t in tensors_in(values)
                if type(t) is not Tensor or t.layout is not torch.strided or t.numel()
            ]
            if not self._taps.recording:
                # Between the steps whose outputs are looked at, what goes in is worth a look where it costs no launch.
                found = [(n, t) for n, t in found if t.device.type == "cpu"]
        found = found[:MAX_TENSORS_PER_OUTPUT]
        if found:
            indices = [self.index(name, tensor) for name, tensor in found]
            pending = measure_async([tensor for _, tensor in found])
            self._taps.collect(MeasuredGroup(np.array(indices, dtype=np.uint32), pending))
        self._taps.spent += time.perf_counter() - began


# Compiled alone, a hook would believe for ever that it is only being traced, and never look again.
never_compiled(OutputTap.__call__)
not_compiled_itself(InputTap.__call__)
never_compiled(InputTap._hear)


class Taps:
    """All taps of one model."""

    def __init__(
        self,
        names: Names,
        table: SiteTable,
        *,
        layers: tuple[str, ...],
        limit: int,
        collect: Callable[[MeasuredGroup], None],
        guard: Guard,
        on_call: Callable[[Any, bool], None],
    ) -> None:
        self.table, self.collect, self.guard = table, collect, guard
        self.graphs: GraphTaps | None = None
        """Taps inside compiled graphs, where these were asked for."""
        self.recording = False
        """Whether module outputs are looked at right now; see `record`."""
        self.keeping = False
        """Whether outputs of a step that is not looked at are kept until its loss is known."""
        self.kept: list[tuple[OutputTap | InputTap, str, ref[torch.Tensor]]] = []
        """Inputs and outputs of such a step. Only known, not held: most live until the backward because autograd holds them,
        and memory that is free for the next layer is worth more than the rest."""
        self.on_output: Callable[..., None] | None = None
        """Told of every output that is looked at, for facts beyond the row."""
        self.on_evaluation: Callable[[Any, bool], None] | None = None
        """Told of every call of a root without gradients or in evaluation, its arguments and mode."""
        self.evaluating = False
        """Whether the user said that what runs now is validation."""
        self.inputs_due = False
        """Whether a root's arguments are looked at, even where outputs are not."""
        self.inside: set[int] = set()
        """Threads in which a root runs a forward pass to train on: parts of it may run without gradients."""
        self.open = True
        self.waiting = Collector(collect)
        """Outputs and gradients that will be measured together."""
        self.gradient_scale: Pending | None = None
        """What gradients of the backward pass under way are multiplied by."""
        self.spent = 0.0
        self.num_capped = 0
        self.plain: PlainSteps | None = None
        """Hears the calls of steps in which little is measured."""
        self.can_make_way = False
        """Whether the taps on modules come off when torch.compile turns out to run the model."""
        self._layers, self._limit, self._names, self._on_call = layers, limit, names, on_call
        self.made_way = False
        """Whether they did."""
        self._handles: list[Any] = []
        self.parts = PartHooks()
        """The hooks on the modules below the roots."""
        self._part_taps: list[OutputTap] = []
        self.wants_graphs = False
        """Whether outputs were asked for under torch.compile too, which has not shown itself yet."""
        self._tapped: dict[int, ref[torch.nn.Module]] = {}
        """Modules that have theirs, by address; a new one may come to stand where a replaced one stood."""

    def record(self, looked_at: bool) -> None:
        """Look at module outputs from now on, or no longer; compiled code runs another graph then."""
        self.recording = looked_at
        if self.graphs is not None:
            TAPPED.on = looked_at

    def attach(self, *, outputs: bool, compiled_too: bool = False, is_compiled: bool = False) -> None:
        """Put the taps on every module that has none yet; modules added later come with the next call."""
        self.wants_graphs = compiled_too and self.graphs is None
        if self.wants_graphs and (is_compiled or any_compiled(self._names.root)):
            self.open_graphs()
        self.can_make_way = outputs and not compiled_too
        for path, module in self._names.root.named_modules():
            if self._is_tapped(module) or isinstance(module, torch.jit.ScriptModule):
                continue
            is_root = path in self._names.roots
            if is_root:
                tap = InputTap(self, path, self._on_call)
                self._handles.append(module.register_forward_pre_hook(tap, with_kwargs=True))
            self._tapped[id(module)] = ref(module)
            if not outputs or not self._worth_tapping(path, module, is_root=is_root):
                continue
            if len(self._handles) + len(self.parts) > self._limit:
                self.num_capped += 1
                self.table.index(Site(path, Kind.ACTIVATION), None, "capped")
                continue
            kind = Kind.OUTPUT if is_root else Kind.ACTIVATION
            output_tap = OutputTap(self, path, kind)
            if not is_root:
                self._part_taps.append(output_tap)
                if self.graphs is not None:
                    output_tap.positions = self.graphs.positions(output_tap)
            if is_root:
                self._handles.append(module.register_forward_hook(output_tap))
            else:
                self.parts.add(module, output_tap)

    def _is_tapped(self, module: torch.nn.Module) -> bool:
        known = self._tapped.get(id(module))
        return known is not None and known() is module

    def open_graphs(self) -> None:
        """The model is compiled, and its outputs were asked for: from now on it has two graphs."""
        self.wants_graphs = False
        self.graphs = GraphTaps(self, self._names.root, self.guard)
        for tap in self._part_taps:
            tap.positions = self.graphs.positions(tap)
        self.guard(self.graphs.forget_graphs, self._names.root)
        self.record(self.recording)

    def make_way(self) -> None:
        """Take the taps on modules off before torch.compile sees them.

        Where it must leave a module to Python, a hook there changes which of the others it compiles, and so the last
        bits of what they compute.
        """
        self.can_make_way, self.made_way = False, True
        self.parts.remove()
        self._part_taps.clear()

    def forget(self) -> None:
        """The loss was finite, or another forward pass begins."""
        if self.waiting.holds_any:
            self.waiting.flush()
        if self.kept:
            self.kept.clear()

    def measure_kept(self) -> list[torch.Tensor]:
        """The loss was not finite: look at this step's outputs after all, to see who began it.

        Returns what went into the model, where that was not looked at before.
        """
        alive = [(tap, name, tensor) for tap, name, kept in self.kept if (tensor := kept()) is not None]
        found = [
            (tap.index(name, tensor), tensor.detach())
            for tap, name, tensor in alive
            if tensor.is_cpu
            and tensor.layout is torch.strided
            and tensor.is_floating_point()
            and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        ]
        if found:
            indices = [position for position, _ in found]
            pending = measure_async([tensor for _, tensor in found])
            self.collect(MeasuredGroup(np.array(indices, dtype=np.uint32), pending))
        self.forget()
        return [tensor for tap, _, tensor in alive if isinstance(tap, InputTap) and tensor.is_cpu]

    def _worth_tapping(self, path: str, module: torch.nn.Module, *, is_root: bool) -> bool:
        # A Sequential's output is its last child's: the same numbers twice would only cost twice.
        containers = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict, Ensemble)
        return wanted(path, self._layers) and (is_root or type(module) not in containers)

    def detach(self) -> None:
        """Take every tap off; hooks still waiting in a graph do nothing from now on."""
        self.record(False)
        self.keeping = self.open = False
        self.forget()
        if self.graphs is not None:
            self.graphs.close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.parts.remove()
        self._part_taps.clear()
        self._tapped.clear()
