"""Which module is a router: one whose output has a number for each of several modules beside it, and these then get what it says.

A name proves nothing: gates of gated units are called gate, routers are called anything. What proves it is the call: the
modules of a list as long as the output's last dimension are called afterwards, each with the rows for which its number was
among the largest, or all with the very input that the router had. Experts stacked into one tensor are not called; there a
router's name and a tensor with one matrix an expert beside it have to do.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Final

import torch

MAX_EXPERTS: Final = 256
MOST_CHOSEN: Final = 4
"""Experts a row is sent to, at most, that are looked for."""
LEVELS: Final = 2
"""A router may be wrapped: its experts are looked for beside it and beside what holds it."""


@dataclasses.dataclass(slots=True)
class Candidate:
    """A module that may be a router, in one step."""

    experts: tuple[str, ...]
    given: weakref.ref[torch.Tensor] | None
    num_rows: int
    best: torch.Tensor
    """The most likely experts of each row, best first."""
    called: dict[str, tuple[int, bool]] = dataclasses.field(default_factory=dict)
    """From an expert to the rows it got, and whether its input was the router's own."""

    def count(self) -> torch.Tensor:
        """How many rows have each expert as their first, second … choice, [choices, experts], on the device."""
        positions = torch.arange(len(self.experts), device=self.best.device)
        ordered = self.best.T.contiguous().sort(dim=1).values
        wanted = positions.expand(len(ordered), -1).contiguous()
        return torch.searchsorted(ordered, wanted, right=True) - torch.searchsorted(ordered, wanted)

    def is_router(self, counts: list[list[int]]) -> bool:
        """Whether the experts got what it said; `counts` are those of `count`."""
        if not self.called:
            return not self.experts[0]
        if all(same for _, same in self.called.values()):
            return len(self.called) == len(self.experts)
        got = [self.called.get(expert, (0, False))[0] for expert in self.experts]
        if all(rows <= wanted for rows, wanted in zip(got, counts[0], strict=True)):
            return True  # fewer where an expert's capacity is limited
        chosen, rest = divmod(sum(got), max(self.num_rows, 1))
        if rest or not 1 < chosen < len(got) or chosen > len(counts):
            return False
        return got == [sum(column) for column in zip(*counts[:chosen], strict=True)]


class Routing:
    """Follows the calls of one step."""

    def __init__(self, root: torch.nn.Module) -> None:
        self._root = root
        self._groups: dict[str, dict[int, tuple[str, ...]]] = {}
        self._lists_in: dict[str, dict[str, tuple[str, ...]]] = {}
        self._open: dict[str, Candidate] = {}

    def see(self, path: str, given: torch.Tensor | None, output: torch.Tensor) -> None:
        """A module returned."""
        for candidate in self._open.values():
            self._note_call(candidate, path, given)
        groups = self._groups.get(path)
        if groups is None:
            groups = self._groups[path] = self._beside(path)
        if not groups or path in self._open or output.dim() < 2 or not output.is_floating_point() or not output.numel():
            return
        experts = groups.get(output.shape[-1])
        if experts is None:
            return
        rows = output.detach().reshape(-1, output.shape[-1])
        best = rows.topk(min(MOST_CHOSEN, rows.shape[1]), dim=1).indices
        self._open[path] = Candidate(experts, weakref.ref(given) if given is not None else None, len(rows), best)

    def settle(self) -> dict[str, Candidate]:
        """The step is over: whoever may have been a router in it."""
        found, self._open = self._open, {}
        return found

    def _note_call(self, candidate: Candidate, path: str, given: torch.Tensor | None) -> None:
        for expert in candidate.experts:
            if expert and (path == expert or path.startswith(f"{expert}.")) and expert not in candidate.called:
                own = candidate.given() if candidate.given is not None else None
                rows = given.numel() // max(given.shape[-1], 1) if given is not None and given.dim() else 0
                candidate.called[expert] = (rows, own is not None and own is given)

    def _beside(self, path: str) -> dict[int, tuple[str, ...]]:
        """From a number of experts to their paths; to empty ones where they are stacked in a tensor."""
        found: dict[int, tuple[str, ...]] = {}
        holder = path
        for _ in range(LEVELS):
            if not holder:
                break
            inside, (holder, _, _) = holder, holder.rpartition(".")
            lists = self._lists(holder)
            found = {len(members): members for at, members in lists.items() if at != inside} | found
        name = path.rpartition(".")[2].lower()
        if "router" in name or "gate" in name:
            found = dict.fromkeys(self._stacked(path.rpartition(".")[0]), ("",)) | found
            found = {number: experts if experts[0] else ("",) * number for number, experts in found.items()}
        return found

    def _lists(self, holder: str) -> dict[str, tuple[str, ...]]:
        """From a list of modules in this one to its members. Found once: each of many members would ask for it again."""
        found = self._lists_in.get(holder)
        if found is not None:
            return found
        found = self._lists_in[holder] = {}
        for name, child in self._module(holder).named_children():
            if not isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)) or not 2 <= len(child) <= MAX_EXPERTS:
                continue
            path = f"{holder}.{name}" if holder else name
            members = dict(child.named_children())
            if len(members) >= 2 and len({type(member) for member in members.values()}) == 1:
                found[path] = tuple(f"{path}.{member}" for member in members)
        return found

    def _stacked(self, holder: str) -> set[int]:
        module = self._module(holder)
        # Past a `parameters` of the user's own, which may take no arguments.
        tensors = [p for each in (module, *module.children()) for p in each._parameters.values() if p is not None]
        return {int(p.shape[0]) for p in tensors if p.dim() == 3 and 2 <= p.shape[0] <= MAX_EXPERTS}

    def _module(self, path: str) -> Any:
        try:
            return self._root.get_submodule(path)
        except AttributeError:
            return torch.nn.Module()
