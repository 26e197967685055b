"""The event that holds a model's data-flow graph: nodes, edges and what could not be followed, as one forward pass showed them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from stethoscope.record.wire import EventBody, WireRecord, declared

VERSION: Final = 1
READABLE: Final = ("traced", "copy", "parts")
"""The states of a graph that was followed."""

EdgeKind = Literal["data", "residual"]
Gradient = Literal["none", "integer", "detached", "flows"]
Role = Literal["module", "parameter", "join", "input", "output"]


@declared
class Node(WireRecord):
    """A module, or one of the few other things that data passes."""

    path: str
    type: str = ""
    """The module's class; a join's operation."""
    role: Role = "module"
    num_parameters: int = 0
    num_trainable: int = 0
    calls: int = 0
    """How often it was called in the forward pass."""
    order: int = -1
    """Its position in the order of execution; -1 where it never ran."""


@declared
class Edge(WireRecord):
    """`target` takes what `source` made."""

    source: str
    target: str
    kind: EdgeKind = "data"
    """"residual": a way around, which meets a longer way between the same two in a sum or concatenation."""
    gradient: Gradient = "flows"
    """"none": nothing upstream asks for one; "integer": only indices or a mask go this way."""
    operations: tuple[str, ...] = ()
    """Functions that ran on the way, outside of any leaf module."""
    inside: str = ""
    """The module in whose forward they ran."""
    uses: int = 1

    @property
    def detached(self) -> bool:
        """Whether the gradient is cut here, by detach, `.data` or no_grad."""
        return self.gradient == "detached"


@declared
class Unregistered(WireRecord):
    """A module that was called but is no submodule: its parameters are in no optimizer and no checkpoint."""

    path: str
    type: str
    num_parameters: int = 0
    num_trainable: int = 0
    inside: str = ""
    """The module in whose forward it was called."""


@declared
class DataFlow(EventBody):
    """The model's data-flow graph, from the first forward pass of training that could be followed."""

    KIND: ClassVar[str] = "graph"
    version: int
    status: str
    """"traced"; "copy": from a copy without data, because torch.compile runs the model; "parts": the model is never called
    as a whole, and what ran between its parts is known from autograd alone; "unknown"."""
    reason: str = ""
    """Of "unknown": why there is no graph."""
    truncated: bool = False
    """Whether the forward pass was longer than what is followed."""
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    containers: tuple[Node, ...] = ()
    """Modules that only call others, with the parameters of all that is in them."""
    unused: tuple[str, ...] = ()
    """Modules that were not called."""
    absorbed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """From a module that another one uses without calling it to that other one."""
    unregistered: tuple[Unregistered, ...] = ()
    untraced: tuple[str, ...] = ()
    """Modules that took a tensor from somewhere that could not be seen."""
    tied: tuple[tuple[str, ...], ...] = ()
    """Names of one and the same parameter."""
    took_ms: float | None = None

    @property
    def is_readable(self) -> bool:
        """Whether it holds a graph of a form that is known here."""
        return self.status in READABLE and self.version <= VERSION
