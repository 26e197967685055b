"""One forward pass, seen from the inside: which module was called within which, with whose data.

A call in whose course no other module was called is a leaf of the data-flow graph: it takes edges in and its
outputs are its own. Any other call is transparent: its children and the operations between them are what counts.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, Final

import torch
from torch.nn.modules import module as torch_module
from torch.nn.utils.parametrize import ParametrizationList
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

from stethoscope.capture.blame import Counting
from stethoscope.capture.guard import can_be_kept
from stethoscope.capture.lineage_mode import (
    DETACHED,
    FLOWS,
    INTEGER,
    MAX_OPERATIONS,
    NONE,
    Link,
    TagMode,
    Tags,
)
from stethoscope.capture.nested_tensors import tensors_in
from stethoscope.record import ROOT_NAME

INPUT: Final = "(input)"
OUTPUT: Final = "(output)"
PARAMETER_MARK: Final = "="
"""Before a parameter's full name: the key of a parameter as a producer."""


@dataclasses.dataclass(slots=True)
class Frame:
    """A module's forward that is running."""

    module: torch.nn.Module
    path: str
    links: list[Link]
    """Of its positional arguments, as they were when it was called."""
    began: int = 0
    num_children: int = 0
    quiet: bool = False
    """What runs in here (a parametrization) belongs to the module that asked for it."""
    plain: bool = False
    """One of torch's own leaves: what runs in here need not be looked at."""


@dataclasses.dataclass(slots=True)
class Stranger:
    """A module that was called without being a submodule."""

    module: torch.nn.Module
    path: str
    inside: str


class Trace:
    """Follows the calls of one forward pass on the thread that began it."""

    def __init__(self, root: torch.nn.Module) -> None:
        self.root = root
        self.modules: dict[str, torch.nn.Module] = {path or ROOT_NAME: module for path, module in root.named_modules()}
        """By path, each once; strangers are added when they are met."""
        self.paths: dict[int, str] = {id(module): path for path, module in self.modules.items()}
        self.tags = Tags(_parameter_keys(self.modules))
        self.mode = TagMode(self.tags)
        self.calls: dict[str, int] = {}
        self.first: dict[str, int] = {}
        """When each module was first called."""
        self.leaves: dict[str, int] = {}
        """Modules that were called as leaves, and when first."""
        self.strangers: dict[int, Stranger] = {}
        self.untraced: dict[str, None] = {}
        """Leaves that got a tensor with a history of which nothing was seen."""
        self._returned: list[Link] = []
        self._frames: list[Frame] = []
        self._handles: list[Any] = []
        self._counting: Counting | None = None
        self._thread = threading.get_ident()

    @property
    def error(self) -> BaseException | None:
        """What went wrong in here, if anything did."""
        return self.mode.error

    @property
    def truncated(self) -> bool:
        """Whether the pass was longer than what is followed."""
        return self.tags.num_operations > MAX_OPERATIONS

    def begin(self, args: Any, kwargs: Any) -> None:
        """The root is about to run."""
        self._take_in(args, kwargs)
        self._enter(self.root, ROOT_NAME, [link for t in tensors_in(args) if (link := self.tags.read(t))])
        self._put_on()

    def begin_part(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """A module of a root that is never called itself is about to run."""
        if not self._frames:
            self._enter(self.root, ROOT_NAME, [])
        self._take_in(args, kwargs)
        links = [link for tensor in tensors_in(args) if (link := self._reads(module, tensor)) is not None]
        self._enter(module, self._path(module), links)
        self._put_on()

    def end_part(self, output: Any) -> None:
        """That module returned; the next one may come."""
        with torch._C.DisableTorchFunction():
            links = [link for tensor in tensors_in(output) if (link := self.tags.read(tensor)) is not None]
        self._returned.extend(links)
        self._remove()

    def close_parts(self) -> None:
        """All parts ran: what none of them took in is the graph's output."""
        taken = {source for source, _ in self.tags.wires}
        for link in self._returned:
            if link.source not in taken:
                self.tags.wire(link.source, OUTPUT, link, added=False, held=False)

    def end(self) -> None:
        """Take everything off, whatever happened; doing it twice does nothing."""
        self._remove()
        self.mode.active = False

    def close(self, output: Any) -> None:
        """The root returned: what it returns is the graph's output."""
        with torch._C.DisableTorchFunction():
            frame = self._frames[0]
            if not frame.num_children:
                self._leave_leaf(frame, {}, output)
            for tensor in tensors_in(output):
                link = self.tags.read(tensor)
                if link is not None:
                    self.tags.wire(link.source, OUTPUT, link, added=False, held=False)

    def _take_in(self, args: Any, kwargs: Any) -> None:
        for tensor in tensors_in((args, kwargs)):
            # The root's own inputs come from outside by definition, also where another model made them.
            if not self._frames or self.tags.read(tensor) is None:
                self.tags.tag(tensor, Link(INPUT, FLOWS if tensor.requires_grad else NONE))

    def _put_on(self) -> None:
        self._handles.append(torch_module.register_module_forward_pre_hook(self._before))
        after = torch_module.register_module_forward_hook(self._after, with_kwargs=True, always_call=True)
        self._handles.append(after)
        self._counting = Counting(TagMode)
        _push_mode(self.mode)

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
            # torch's handle forgets this one table, and torch.compile warns of what is left in it.
            torch_module._global_forward_hooks_with_kwargs.pop(handle.id, None)
        self._handles.clear()
        if self._counting is not None:
            self._counting.remove()
        _take_off(self.mode)

    def _before(self, module: torch.nn.Module, args: Any) -> None:
        if threading.get_ident() != self._thread or not self.mode.active or module is self.root:
            return
        try:
            with torch._C.DisableTorchFunction():
                links = [link for tensor in tensors_in(args) if (link := self._reads(module, tensor)) is not None]
                self._enter(module, self._path(module), links)
        except BaseException as error:
            if not can_be_kept(error):
                raise
            self.mode.active, self.mode.error = False, error

    def _after(self, module: torch.nn.Module, args: Any, *rest: Any) -> None:  # noqa: ARG002 - torch's signature
        # After an exception torch leaves the keyword arguments out.
        if threading.get_ident() != self._thread or not self.mode.active or module is self.root:
            return
        try:
            with torch._C.DisableTorchFunction():
                self._leave(module, rest[0] if len(rest) > 1 else {}, rest[-1])
        except BaseException as error:
            if not can_be_kept(error):
                raise
            self.mode.active, self.mode.error = False, error

    def _enter(self, module: torch.nn.Module, path: str, links: list[Link]) -> None:
        above = self._frames[-1] if self._frames else None
        quiet = (above is not None and above.quiet) or isinstance(module, ParametrizationList)
        plain = not quiet and _is_plain(module)
        self._frames.append(Frame(module, path, links, self.tags.time, quiet=quiet, plain=plain))
        if quiet:
            return
        self.mode.asleep = plain
        if above is not None:
            above.num_children += 1
        self.tags.time += 1
        self.first.setdefault(path, self.tags.time)
        self.calls[path] = self.calls.get(path, 0) + 1
        self.tags.path = path

    def _leave(self, module: torch.nn.Module, kwargs: Any, output: Any) -> None:
        while len(self._frames) > 1:
            frame = self._frames.pop()
            if frame.module is module:
                break
        else:
            return
        self.mode.asleep = self._frames[-1].plain
        if not frame.quiet and not frame.num_children and output is not None:
            self._leave_leaf(frame, kwargs, output)
        self.tags.path = next(f.path for f in reversed(self._frames) if not f.quiet)

    def _leave_leaf(self, frame: Frame, kwargs: Any, output: Any) -> None:
        """Edges from whoever made its inputs, and its own name on its outputs."""
        named = [link for t in tensors_in(kwargs) if (link := self._reads(frame.module, t)) is not None]
        links = frame.links + named
        made = tensors_in(output)
        grads = torch.is_grad_enabled()
        self.leaves.setdefault(frame.path, self.first[frame.path])
        floating = [tensor for tensor in made if tensor.is_floating_point() or tensor.is_complex()]
        cut = FLOWS
        if grads and made and not any(tensor.requires_grad for tensor in made):
            cut = DETACHED if floating else INTEGER
        for link in links:
            if link.state == FLOWS and cut != FLOWS:
                link = link._replace(state=cut)
            self.tags.wire(link.source, frame.path, link, added=False, held=not grads)
        asks = not grads and _asks(frame.module, links)
        in_place = frame.plain and getattr(frame.module, "inplace", False) is True
        for tensor in made:
            known = tensor.is_floating_point() or tensor.is_complex()
            flows = known and (tensor.requires_grad if grads else asks)
            held = not grads and flows
            written = in_place or self.tags.written_since(tensor, frame.began)
            self.tags.tag(tensor, Link(frame.path, FLOWS if flows else NONE, held=held), in_place=written)
            self.tags.made(tensor, frame.path)

    def _reads(self, module: torch.nn.Module, tensor: torch.Tensor) -> Link | None:
        link = self.tags.read(tensor)
        if link is None and tensor.grad_fn is not None:
            self.untraced[self._path(module)] = None
        return link

    def _path(self, module: torch.nn.Module) -> str:
        known = self.paths.get(id(module))
        if known is not None:
            return known
        caller = next(f for f in reversed(self._frames) if not f.quiet)
        path = _path_in(caller, module, self.paths)
        self.strangers[id(module)] = Stranger(module, path, caller.path)
        # The stranger is kept, so its id and its children's stay theirs while this pass runs.
        for name, child in module.named_modules():
            known = self.paths.setdefault(id(child), f"{path}.{name}" if name else path)
            self.modules.setdefault(known, child)
        return path


def _is_plain(module: torch.nn.Module) -> bool:
    """Whether a module is a leaf of torch itself: it calls no other, and writes in place only if told to."""
    return not module._modules and type(module).__module__.startswith("torch.nn.modules.")


def _asks(module: torch.nn.Module, links: list[Link]) -> bool:
    """Whether a gradient is wanted of a module or of what goes into it."""
    return any(link.state == FLOWS for link in links) or any(p.requires_grad for p in module.parameters())


def _parameter_keys(modules: dict[str, torch.nn.Module]) -> dict[int, tuple[str, bool]]:
    keys: dict[int, tuple[str, bool]] = {}
    for path, module in modules.items():
        prefix = PARAMETER_MARK if path == ROOT_NAME else f"{PARAMETER_MARK}{path}."
        for name, parameter in module._parameters.items():
            if parameter is not None:
                keys.setdefault(id(parameter), (prefix + name, bool(parameter.requires_grad)))
    return keys


def _path_in(caller: Frame, module: torch.nn.Module, taken: dict[int, str]) -> str:
    """A stranger's name: the attribute of the caller that holds it, else its class."""
    prefix = "" if caller.path == ROOT_NAME else f"{caller.path}."
    for name, value in vars(caller.module).items():
        if value is module:
            return f"{prefix}{name}"
        if isinstance(value, dict) and name not in ("_modules", "_parameters", "_buffers"):
            for key, item in value.items():
                if item is module:
                    return f"{prefix}{name}[{key!r}]"
        elif isinstance(value, (list, tuple)):
            for number, item in enumerate(value):
                if item is module:
                    return f"{prefix}{name}[{number}]"
    base, names = f"{prefix}<{type(module).__name__}>", set(taken.values())
    return next(name for n in range(len(names) + 1) if (name := f"{base}{n}" if n else base) not in names)


def _take_off(mode: TagMode) -> None:
    """Remove the mode from this thread's stack, also from under modes that were entered later."""
    if not any(other is mode for other in _get_current_function_mode_stack()):
        return
    above = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _push_mode(other)
