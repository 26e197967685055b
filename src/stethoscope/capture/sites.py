"""Site numbers, and the names of a model's tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parameter import is_lazy

from stethoscope.capture.shards import Shards, is_shard, own_parameters, unsharded_now
from stethoscope.kernels.tensors import plain
from stethoscope.record import ROOT_NAME, Kind, Site, SiteInfo
from stethoscope.record.wire import EventBody

PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
WRAPPERS = ("_orig_mod", "module")
"""Attributes under which torch.compile and the data-parallel wrappers keep the model that the user wrote."""


class Sink(Protocol):
    """Where capture puts what it saw. Must not raise and must not block."""

    def sites(self, infos: list[SiteInfo]) -> None:
        """New sites, numbered in the order they come."""

    def rows(
        self,
        step: int,
        index: npt.NDArray[np.uint32],
        table: npt.NDArray[np.float64],
        calls: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        """Rows of one step."""

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Named numbers of one step."""

    def scalars_of_steps(self, told: list[tuple[int, dict[str, float]]]) -> None:
        """Named numbers of several steps at once, which takes a fraction of the time."""

    def vectors(self, step: int, name: str, index: npt.NDArray[np.uint32], values: npt.NDArray[Any]) -> None:
        """Histograms, sketches, per-unit values of one step."""

    def tell(self, step: int, said: EventBody) -> None:
        """A discrete fact, as `record.events` declares it."""


Key = tuple[str, str, str]
"""A site as plain words: of tuples of strings the garbage collector takes no notice, of 70,000 objects it does."""


def _key(site: Site) -> Key:
    return site.module, site.kind.value, site.name


class SiteTable:
    """Gives every site its number and tells the sink of new ones."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._index: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._index)

    def kinds_from(self, first: int) -> list[str]:
        """The kinds of the sites from this number on; may be asked from any thread."""
        return [kind for _, kind, _ in list(self._index)[first:]]

    def index(self, site: Site, tensor: Any = None, measured: str = "all") -> int:
        """The site's number; registers it on first sight with what is fixed about the tensor."""
        key = _key(site)
        found = self._index.get(key)
        if found is not None:
            return found
        self._sink.sites([_info(site, tensor, measured)])
        position = self._index[key] = len(self._index)
        return position

    def indices(self, sites: Sequence[Site], tensors: Sequence[Any], measured: Sequence[str]) -> list[int]:
        """The numbers of many sites; the sink is told of all new ones in one call."""
        known, keys = self._index, list(map(_key, sites))
        new = {
            key: _info(site, tensor, how)
            for key, site, tensor, how in zip(keys, sites, tensors, measured, strict=True)
            if key not in known
        }
        if new:
            self._sink.sites(list(new.values()))
            known.update(zip(new, itertools.count(len(known))))
        return [known[key] for key in keys]


def _info(site: Site, tensor: Any, measured: str) -> SiteInfo:
    """What is fixed about a tensor; one whose numbers cannot be read is said to be unsupported."""
    if tensor is None:
        return SiteInfo(site=site, shape=(), dtype="", num_elements=0, measured=measured)
    shape: tuple[int, ...] = ()
    with torch._C.DisableTorchFunction():
        dtype = str(tensor.dtype).removeprefix("torch.")
        num_elements = 0
        try:
            shape = tuple(map(int, tensor.shape))
            num_elements = math.prod(shape)
        except Exception:
            # A nested tensor has no one shape, and a subclass may answer anything.
            found = plain(tensor)
            num_elements = 0 if found is None else found.tensor.numel()
        if measured == "all":
            measured = "shard" if is_shard(tensor) else _how(tensor)
    return SiteInfo(site=site, shape=shape, dtype=dtype, num_elements=num_elements, measured=measured)


def _how(tensor: Any) -> str:
    """Whether the numbers of a tensor can be read. Sparse ones can; to try would wait for a device."""
    if tensor.is_meta:
        return "meta"
    if type(tensor) in PLAIN and not tensor.is_quantized:
        return "all"
    return "all" if plain(tensor) is not None else "unsupported"


class Ensemble(torch.nn.Module):
    """Several models under one run, each under its own name. It only holds them; nobody calls it."""

    def __init__(self, models: Mapping[str, torch.nn.Module]) -> None:
        super().__init__()
        for name, model in models.items():
            self.add_module(name, unwrap(model))


class Names:
    """What a model calls its parameters, buffers and modules, under the wrappers around it."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.root = unwrap(model)
        self.roots: dict[str, torch.nn.Module] = (
            dict(self.root.named_children()) if isinstance(self.root, Ensemble) else {"": self.root}
        )
        """The models that the user calls, by their paths: one without a path, or several with theirs."""
        self.parameters: dict[int, tuple[str, str]] = {}
        self.tensors: list[torch.nn.Parameter] = []
        self._shards: Shards = {}
        self._buffer_owners: list[tuple[torch.nn.Module, str, Site]] = []
        self.lazy: list[torch.Tensor] = []
        """Parameters of lazy modules that have no shape yet: they are the model's once its first forward gave them one."""
        self.refresh()

    def refresh(self) -> bool:
        """Read the model again; True where its parameters are not the ones known before."""
        before = set(self.parameters)
        self.parameters, self.tensors, self.lazy, self._buffer_owners = {}, [], [], []
        self._shards = unsharded_now(self.root.modules())
        for path, module in self.root.named_modules():
            for name, parameter in self.own(module):
                if is_lazy(parameter):
                    self.lazy.append(parameter)
                elif id(parameter) not in self.parameters:
                    self.parameters[id(parameter)] = (path, name)
                    self.tensors.append(parameter)
            self._buffer_owners += [(module, name, Site(path, Kind.BUFFER, name)) for name in module._buffers]
        return set(self.parameters) != before

    def own(self, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """A module's own parameters by name, as the optimizer holds them when the model was last read."""
        return own_parameters(module, self._shards)

    @property
    def has_materialised(self) -> bool:
        """Whether a lazy parameter got its shape since the model was read."""
        return bool(self.lazy) and not all(map(is_lazy, self.lazy))

    def site(self, parameter: Any, kind: Kind, suffix: str = "") -> Site | None:
        """The site of something measured on this parameter, None where it is not the model's."""
        known = self.parameters.get(id(parameter))
        if known is None:
            return None
        return Site(known[0], kind, f"{known[1]}.{suffix}" if suffix else known[1])

    def buffers(self) -> Iterator[tuple[Site, torch.Tensor]]:
        """Floating-point buffers, each once."""
        seen: set[int] = set()
        for module, name, site in self._buffer_owners:
            buffer = module._buffers.get(name)
            if buffer is not None and not is_lazy(buffer) and buffer.is_floating_point() and id(buffer) not in seen:
                seen.add(id(buffer))
                yield site, buffer


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The model the user wrote, under torch.compile and the data-parallel wrappers."""
    while True:
        kind = type(model).__name__
        if kind == "OptimizedModule":
            model = model._orig_mod  # type: ignore[assignment]
        elif kind in ("DistributedDataParallel", "DataParallel"):
            model = model.module  # type: ignore[assignment]
        else:
            return model


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether calls of this model, as it was handed over, go through torch.compile."""
    return type(model).__name__ == "OptimizedModule" or unwrap(model).__dict__.get("_compiled_call_impl") is not None


def wanted(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether a module path is among the layers that the user asked for."""
    return any(pattern == "*" or fnmatchcase(path or ROOT_NAME, pattern) for pattern in patterns)
