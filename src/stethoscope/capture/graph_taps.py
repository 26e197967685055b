"""Taps inside compiled graphs: two graphs of a model, a plain one and one that shows its outputs.

torch.compile keeps what it compiled under a guard on one Python attribute: `TAPPED.on`. In steps that are not
looked at the plain graph runs, in which nothing of ours is left. The other one passes every output, and on the way
back its gradient, through an operator of ours that measures it and hands on a copy: so the compiler can neither drop
the operator nor give the memory away before it was read, and what changes the output in place afterwards may.

Where a CUDA graph was captured no Python runs when it is replayed: then the device writes the rows to a table of their
own, which is fetched when the backward pass is over.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from stethoscope.capture.guard import never_compiled
from stethoscope.capture.ring import MeasuredGroup
from stethoscope.kernels import Slots
from stethoscope.record import Kind, Site

if TYPE_CHECKING:
    from stethoscope.capture.taps import OutputTap, Taps

MAX_PLACES: Final = 4
"""Tensors of one output that are looked at, where it holds several."""
APART: Final = 4
"""Numbers between two places: compiled code copies what is not aligned to 16 bytes, and a copy has another address."""


class Switch:
    """Which of the two graphs runs; the one thing that compiled code is guarded on."""

    on = False


TAPPED: Final = Switch()
_targets: dict[int, Target] = {}
"""By the address of a place: reading its value would wait for the device, and captured graphs keep addresses."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Target:
    """What a place stands for: one tensor of one module's output."""

    owner: GraphTaps
    tap: OutputTap
    name: str


def pass_through(output: Any, positions: tuple[Any, ...]) -> Any:
    """The output as it is, by way of our operator. torch.compile traces this; nothing else calls it."""
    # Not `is_exporting()`: torch 2.11's torch.compile takes that for true wherever it traces.
    if torch.compiler._is_exporting_flag:
        return output
    if isinstance(output, torch.Tensor):
        return _passed(output, positions[0])
    if type(output) is tuple or type(output) is list:
        passed = [
            _passed(value, positions[number + 1]) if number < MAX_PLACES and isinstance(value, torch.Tensor) else value
            for number, value in enumerate(output)
        ]
        return tuple(passed) if type(output) is tuple else passed
    return output


def _passed(tensor: Any, position: Any) -> Any:
    return torch.ops.stethoscope.through(tensor, position) if tensor.is_floating_point() else tensor


def _through(tensor: Any, position: Any) -> Any:
    _seen(tensor, position, Kind.ACTIVATION)
    return tensor.clone()


def _back(gradient: Any, position: Any) -> Any:
    _seen(gradient, position, Kind.ACTIVATION_GRADIENT)
    return gradient.clone()


def _seen(tensor: Any, position: Any, kind: Kind) -> None:
    target = _targets.get(position.data_ptr())
    if target is not None:
        target.owner.guard(target.owner.look, target, tensor.detach(), kind)


never_compiled(_through)
never_compiled(_back)


def _keep_place(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001 - torch names the arguments
    ctx.save_for_backward(inputs[1])


def _way_back(ctx: Any, gradient: Any) -> tuple[Any, None]:
    return torch.ops.stethoscope.back(gradient, ctx.saved_tensors[0]), None


def _same_shape(tensor: Any, _place: Any) -> Any:
    return torch.empty_like(tensor)


@functools.cache
def _operators() -> Any:
    """Our two operators, made when they are first needed."""
    library = torch.library.Library("stethoscope", "DEF")
    for name, implementation in (("through", _through), ("back", _back)):
        library.define(f"{name}(Tensor value, Tensor place) -> Tensor")
        library.impl(name, implementation, "CompositeExplicitAutograd")
        torch.library.register_fake(f"stethoscope::{name}", _same_shape, lib=library)
    torch.library.register_autograd("stethoscope::through", _way_back, setup_context=_keep_place, lib=library)
    return library


def any_compiled(root: torch.nn.Module) -> bool:
    """Whether a part of the model, or all of it, is known to be compiled before it is called."""
    return any(
        module.__dict__.get("_compiled_call_impl") is not None or type(module).__name__ == "OptimizedModule"
        for module in root.modules()
    )


class GraphTaps:
    """The taps of one model's compiled graphs."""

    def __init__(self, taps: Taps, root: torch.nn.Module, guard: Callable[..., None]) -> None:
        _operators()
        self.guard = guard
        self._taps = taps
        first = next(root.parameters(), None)
        self._device = torch.device("cpu") if first is None or first.is_meta else first.device
        self._blocks: list[torch.Tensor] = []
        self._known: list[int] = []
        kinds = (Kind.ACTIVATION, Kind.ACTIVATION_GRADIENT) if self._device.type == "cuda" else ()
        self._slots = {kind: Slots(self._device) for kind in kinds}
        self.num_unread = 0
        """Outputs that a graph on a device could not measure."""

    def positions(self, tap: OutputTap) -> tuple[torch.Tensor, ...]:
        """What a module's outputs are known by inside of graphs: itself, or each of its first few tensors."""
        block = torch.zeros(1 + MAX_PLACES, APART, device=self._device)
        self._blocks.append(block)
        found = tuple(block[number, 0] for number in range(1 + MAX_PLACES))
        for number, position in enumerate(found):
            torch._dynamo.mark_static_address(position, guard=False)
            _targets[position.data_ptr()] = Target(self, tap, str(number - 1) if number else "")
            self._known.append(position.data_ptr())
        return found

    def forget_graphs(self, root: torch.nn.Module) -> None:
        """Graphs from before we were there do not know of the switch: they are compiled again when next called."""
        codes = {code for module in root.modules() if (code := getattr(type(module).forward, "__code__", None))}
        evaluator = torch._C._dynamo.eval_frame
        for code in codes:
            if evaluator._debug_get_cache_entry_list(code):
                evaluator.reset_code(code)

    def look(self, target: Target, tensor: torch.Tensor, kind: Kind) -> None:
        """An output or a gradient passes by."""
        if kind is Kind.ACTIVATION and torch._C._current_graph_task_id() != -1:
            return  # checkpointing computes again
        if not self._taps.open:
            return
        began = time.perf_counter()
        index = self._taps.table.index(Site(target.tap.path, kind, target.name), tensor)
        if tensor.is_cuda:
            slots, captured = self._slots.get(kind), torch.cuda.is_current_stream_capturing()
            if slots is None or not slots.record(tensor, index, captured=captured):
                self.num_unread += 1
        else:
            scale = self._taps.gradient_scale if kind is Kind.ACTIVATION_GRADIENT else None
            self._taps.waiting.measure(index, tensor, scale)
        self._taps.spent += time.perf_counter() - began

    def collect(self) -> None:
        """The backward pass is over: what captured graphs wrote is on its way."""
        if not self._taps.recording:
            return
        for kind, slots in self._slots.items():
            if len(slots):
                scale = self._taps.gradient_scale if kind is Kind.ACTIVATION_GRADIENT else None
                sites, pending = slots.fetch()
                index = np.array(sites, dtype=np.uint32)
                self._taps.collect(MeasuredGroup(index, pending, scale, part="modules", optional=True))

    def close(self) -> None:
        """Nothing in a graph reaches us any more."""
        TAPPED.on = False
        for address in self._known:
            _targets.pop(address, None)
        self._known.clear()
