"""Who made which tensor: one link per tensor while a forward pass runs.

Every tensor that an operation makes while `TagMode` is on the stack carries a Link to its producer: a module, the
model's input, a parameter, or a Join where the data of several producers meet. Operations are only looked at,
after they ran; nothing is called, copied, kept alive or changed. A value written in place is known under its
storage, so that views of it tell the new producer.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from stethoscope.capture.guard import can_be_kept
from stethoscope.capture.nested_tensors import tensors_in
from stethoscope.capture.operations import ADDITIVE, FRESH, QUIET, bare_name
from stethoscope.kernels.frameless import call_and_show

# How much of the gradient comes back along a link; of several ways the best one counts.
NONE: Final = 0
"""Nothing upstream asks for a gradient: inputs, frozen parts."""
INTEGER: Final = 1
"""Only as indices or a mask."""
DETACHED: Final = 2
"""Cut on purpose or by a slip: detach, .data, no_grad."""
FLOWS: Final = 3

MAX_OPERATIONS: Final = 60_000
MAX_NAMED_OPERATIONS: Final = 6
MAX_BRIDGE: Final = 256
"""Nodes of autograd's graph to look through for the makers of a tensor that came from out of sight."""
MAX_JOINS_EACH: Final = 64
"""Joins of one operation in one module before a loop in Python is taken for what it is."""


class Link(NamedTuple):
    """Where a tensor comes from, and what happened on the way."""

    source: str | int
    """A module path, INPUT, a parameter's key, or the number of a Join."""
    state: int
    operations: tuple[str, ...] = ()
    inside: str | None = None
    """The module in whose forward these operations ran."""
    held: bool = False
    """Made while gradients were off: whether it was cut shows when they are on again."""
    time: int = 0


@dataclasses.dataclass(slots=True)
class Wire:
    """An edge as it is collected."""

    state: int
    added: bool = False
    held: bool = False
    operations: tuple[str, ...] = ()
    inside: str | None = None
    uses: int = 1
    gated: bool = False
    """Meets another way from the same producer in a product or the like: no way around for the gradient."""


class Join(NamedTuple):
    """Where an operation outside of any leaf module brings several producers together."""

    path: str
    operation: str
    time: int


class Tags:
    """Links of tensors, joins, and the edges between producers."""

    def __init__(self, parameters: Mapping[int, tuple[str, bool]]) -> None:
        """`parameters`: from a parameter's id to its key and whether it is trained."""
        self.wires: dict[tuple[str | int, str | int], Wire] = {}
        self.joins: list[Join] = []
        self.seen_parameters: set[str] = set()
        self.num_operations = 0
        self.time = 0
        self.path = ""
        """The module whose forward runs now."""
        self._makers: dict[int, str] = {}
        """From the number of a node of autograd's graph to the leaf module whose output it made."""
        self._parameters = parameters
        self._links: dict[int, tuple[weakref.ref[torch.Tensor], Link]] = {}
        self._written: dict[int, tuple[StorageWeakRef, Link]] = {}
        self._known_joins: dict[tuple[str, str, frozenset[str | int]], int] = {}
        self._num_joins: dict[tuple[str, str], int] = {}

    def read(self, tensor: torch.Tensor) -> Link | None:
        """The link of a tensor that is about to be used."""
        link = self._last(tensor)
        if link is None and tensor.grad_fn is not None:
            return self._bridge(tensor)
        if link is not None and link.held and torch.is_grad_enabled():
            came_through = tensor.requires_grad and tensor.grad_fn is not None
            state = FLOWS if came_through else DETACHED
            link = Link(link.source, state, link.operations, link.inside, False, link.time)
        return link

    def _last(self, tensor: torch.Tensor) -> Link | None:
        known = self._links.get(id(tensor))
        link = known[1] if known is not None and known[0]() is tensor else None
        if self._written:
            written = self._written.get(_storage(tensor))
            if written is not None and (link is None or written[1].time > link.time):
                return written[1]
        if link is None:
            parameter = self._parameters.get(id(tensor))
            if parameter is not None:
                self.seen_parameters.add(parameter[0])
                return Link(parameter[0], FLOWS if parameter[1] else NONE)
        return link

    def _bridge(self, tensor: torch.Tensor) -> Link | None:
        """The link of a tensor made out of sight (vmap, an extension): autograd knows what it was made of."""
        sources: dict[str, Link] = {}
        ahead: list[Any] = [tensor.grad_fn]
        seen = {ahead[0]._sequence_nr()}
        for number, node in enumerate(ahead):
            if number >= MAX_BRIDGE:
                break
            key = self._makers.get(node._sequence_nr())
            if key is None and (variable := getattr(node, "variable", None)) is not None:
                key = self._parameters.get(id(variable), ("", False))[0]
            if key:
                sources[key] = Link(key, FLOWS, ("unseen",), self.path)
                continue
            for after, _ in node.next_functions:
                # Parameters' nodes all bear the same number: they are told apart when they are looked at.
                if after is not None and (hasattr(after, "variable") or after._sequence_nr() not in seen):
                    seen.add(after._sequence_nr())
                    ahead.append(after)
        if not sources:
            return None
        links = list(sources.values())
        if len(links) > 1:
            links = [Link(self.join(self.path, "unseen", links, grads=True), FLOWS)]
        self.tag(tensor, links[0])
        return links[0]

    def made(self, tensor: torch.Tensor, path: str) -> None:
        """Note that a leaf module made this, where autograd can tell of it later."""
        if tensor.grad_fn is not None:
            self._makers[tensor.grad_fn._sequence_nr()] = path

    def tag(self, tensor: torch.Tensor, link: Link | None, *, in_place: bool = False) -> None:
        """Give a tensor its link; None takes away what a dead tensor of the same id may have left."""
        if link is None:
            self._links.pop(id(tensor), None)
            return
        self.time += 1
        link = Link(link.source, link.state, link.operations, link.inside, link.held, self.time)
        self._links[id(tensor)] = weakref.ref(tensor), link
        if in_place:
            key = _storage(tensor)
            if key:
                # The weak reference keeps the key from being given to another storage, not the memory.
                self._written[key] = StorageWeakRef(tensor.untyped_storage()), link

    def written_since(self, tensor: torch.Tensor, time: int) -> bool:
        """Whether an operation wrote into this tensor's memory after a moment."""
        written = self._written.get(_storage(tensor)) if self._written else None
        return written is not None and written[1].time > time

    def wire(self, source: str | int, target: str | int, link: Link, *, added: bool, held: bool) -> None:
        """Note that `target` used what `source` made."""
        known = self.wires.get((source, target))
        if known is None:
            self.wires[source, target] = Wire(link.state, added, held, link.operations, link.inside)
            return
        known.state = max(known.state, link.state)
        known.added = known.added or added
        known.held = known.held and held
        known.uses += 1

    def join(self, path: str, operation: str, links: list[Link], grads: bool) -> int:
        """The join of these producers by this operation in this module's forward."""
        sources = frozenset(link.source for link in links)
        position = (path, operation)
        if self._num_joins.get(position, 0) >= MAX_JOINS_EACH:
            sources = frozenset(source for source in sources if isinstance(source, str))
        number = self._known_joins.get((path, operation, sources))
        if number is None:
            number = self._known_joins[path, operation, sources] = len(self.joins)
            self._num_joins[position] = self._num_joins.get(position, 0) + 1
            self.time += 1
            self.joins.append(Join(path, operation, self.time))
        for link in links:
            added = operation in ADDITIVE and link.state != INTEGER
            self.wire(link.source, number, link, added=added, held=not grads)
        return number


class TagMode(TorchFunctionMode):
    """Sees every operation of the forward pass, after it ran."""

    def __init__(self, tags: Tags) -> None:
        super().__init__()
        self.tags = tags
        self.active = True
        self.asleep = False
        """Whether what runs now is of no interest."""
        self.error: BaseException | None = None
        frameless = call_and_show(self)
        if frameless is not None:
            # In place of the method below: a warning of C++ blames the innermost frame, which must be the user's.
            self.__torch_function__ = frameless  # type: ignore[method-assign]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it; then note what came of what."""
        kwargs = kwargs or {}
        return self.show(func, args, kwargs, func(*args, **kwargs))

    def show(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> Any:
        """It ran: note what came of what, and hand the result on."""
        if not self.active or self.asleep:
            return result
        try:
            if getattr(func, "__name__", "") == "__iter__":
                items = tuple(result)
                result = iter(items)
            else:
                items = result
            # What we ask of tensors is not for a mode of the user's that lies below this one.
            with torch._C.DisableTorchFunction():
                self._note(func, args, kwargs, items)
        except BaseException as error:
            if not can_be_kept(error):
                raise
            self.active, self.error = False, error
        return result

    def _note(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        if isinstance(result, torch.Tensor):
            made = [result]
        else:
            made = tensors_in(result) if isinstance(result, (tuple, list)) else []
        name = getattr(func, "__name__", "")
        if name == "__setitem__":
            made = [args[0]]
        if not made:
            return
        self.tags.num_operations += 1
        if self.tags.num_operations > MAX_OPERATIONS:
            self.active = False
            return
        operation, in_place = bare_name(name)
        if operation in FRESH:
            for tensor in made:
                self.tags.tag(tensor, None)
            return
        used = tensors_in((args, kwargs)) if kwargs else tensors_in(args)
        in_place = in_place or "out" in kwargs or kwargs.get("inplace") is True
        if "out" in kwargs:
            written = {id(tensor) for tensor in tensors_in(kwargs["out"])}
            used = [tensor for tensor in used if id(tensor) not in written]
        self._link(operation, used, made, in_place)

    def _link(self, operation: str, used: list[torch.Tensor], made: list[torch.Tensor], in_place: bool) -> None:
        links: dict[str | int, Link] = {}
        for tensor in used:
            link = self.tags.read(tensor)
            if link is None:
                continue
            other = links.get(link.source)
            if other is None or link.state > other.state:
                links[link.source] = link
        grads = torch.is_grad_enabled()
        if len(links) <= 1:
            for link in links.values():
                for tensor in made:
                    self.tags.tag(tensor, self._onward(link, operation, tensor, grads), in_place=in_place)
            if not links:
                for tensor in made:
                    self.tags.tag(tensor, None)
            return
        first = next((tensor for tensor in made if tensor.is_floating_point()), made[0])
        kept = [self._onward(link, "", first, grads) for link in links.values()]
        number = self.tags.join(self.tags.path, operation, kept, grads)
        # The join carries on what its best part carries; whether a part was cut is on that part's wire.
        best = Link(number, max(link.state for link in kept), held=any(link.held for link in kept))
        for tensor in made:
            self.tags.tag(tensor, self._onward(best, "", tensor, grads), in_place=in_place)

    def _onward(self, link: Link, operation: str, made: torch.Tensor, grads: bool) -> Link:
        state, held = link.state, link.held
        if state == FLOWS:
            if not (made.is_floating_point() or made.is_complex()):
                state, held = INTEGER, False
            elif not grads:
                held = True
            elif not made.requires_grad:
                state = DETACHED
        if not operation or operation in QUIET:
            return Link(link.source, state, link.operations, link.inside, held)
        names = link.operations if len(link.operations) >= MAX_NAMED_OPERATIONS else (*link.operations, operation)
        return Link(link.source, state, names, self.tags.path, held)


def _storage(tensor: torch.Tensor) -> int:
    """The storage's address, 0 for tensors without one."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0
