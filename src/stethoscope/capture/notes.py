"""Facts that are not rows: what the loss is made of, modes, hooks, units, attention, averages, graphs that stay alive.

The Watcher calls one method at each moment; every method is cheap at most steps and looks closely on a schedule. All
facts go to the sink as events, metrics or vectors, so that detectors read them live and stored alike.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from stethoscope.capture import attention, census, lossgraph, units
from stethoscope.capture.sites import Names, Sink, SiteTable
from stethoscope.record import Kind, Site

UNITS_EVERY: Final = 8
"""Steps between two looks at units, logits and attention."""
CENSUS_EVERY: Final = 16
"""Steps between two counts of hooks and looks at averages."""
SAMPLE: Final = 64
MAX_BACKWARDS: Final = 64
"""Backward passes of one step whose weight in it is looked at."""


class Sentinel:
    """Lives in a loss's graph, so that its death tells when the graph died."""

    __slots__ = ("__weakref__", "line")

    def __init__(self, line: str) -> None:
        self.line = line


class Notes:
    """All facts about one model's training."""

    def __init__(self, names: Names, table: SiteTable, sink: Sink, step: Callable[[], int]) -> None:
        self._names, self._table, self._sink, self._step = names, table, sink, step
        self.ema: Any = None
        self._alive: weakref.WeakSet[Sentinel] = weakref.WeakSet()
        self._outputs_alive: weakref.WeakSet[Sentinel] = weakref.WeakSet()
        self._num_outputs_marked = 0
        self._owned = False
        """Whether nodes of the graph under way were told whose output they are."""
        self._looked: int = -1
        self._num_looked_at = 0
        self._looked_step = -UNITS_EVERY
        self._recording = True
        self._last_hooks = 0
        self._initial: list[torch.Tensor] = []
        self._modes: dict[str, Any] = {}
        self._twins: census.Twins | None = None
        self._copies: census.Copies | None = None
        self._averages: dict[int, tuple[Any, list[torch.Tensor]]] = {}
        self._searched_averages = False
        self.metrics: dict[str, float] = {}
        """Named numbers of the open step, taken by the Watcher when it closes."""
        self._saturation: dict[str, float] = {}
        self._normalised: dict[str, float] = {}
        self._routed: dict[str, list[int]] = {}
        self._activity: list[tuple[int, Any]] = []
        self._units = units.UnitRecord()

    def begin(self) -> None:
        """Before the first step: what must be remembered to see it change."""
        self._twins, self._copies = census.Twins(self._names), census.Copies(self._names)
        self._initial = _sample(self._names.root)

    @property
    def units_due(self) -> bool:
        """Whether this step looks at units: every few steps, of those whose outputs are looked at."""
        step = self._step()
        if step != self._looked_step and step - self._looked_step >= UNITS_EVERY:
            self._looked_step = step
        return step == self._looked_step

    # ---- forward ----

    def forward_begins(self, *, evaluating: bool, recording: bool = True) -> None:
        """The model is called: in which mode, and whether its outputs are looked at."""
        root = self._names.root
        self._recording = recording
        if evaluating:
            facts = census.modes(root)
            if facts["in_training"]:
                self._sink.event(self._step(), "eval_forward", facts)
            return
        self.metrics["training_mode"] = float(root.training)
        if root.training != self._modes.get("training"):
            self._modes = census.modes(root)
            self._sink.event(self._step(), "modes", self._modes)

    def output(
        self, path: str, module: Any, args: Any, tensors: list[tuple[str, torch.Tensor]], place: int
    ) -> None:
        """A module returned, in a step whose outputs are looked at."""
        first = tensors[0][1]
        if first.grad_fn is not None:
            attention.own(first.grad_fn, path)
            self._owned = True
            if not path:
                self._mark_output(first.grad_fn)
        if not self.units_due or first.device.type != "cpu":
            return
        if not path:
            self.metrics.update(units.logits(first))
            return
        if len(self._activity) < 4096 and not list(module.children()):
            found = units.activity(first)
            if found is not None:
                self._activity.append((place, found))
                self._units.see_activity(path, found)
        self._look_closer(path, module, args, first)

    def _mark_output(self, node: Any) -> None:
        """A prediction that somebody keeps holds its graph, although the loss is gone."""
        node.metadata["stethoscope_output"] = sentinel = Sentinel("")
        self._outputs_alive.add(sentinel)
        self._num_outputs_marked += 1

    def _look_closer(self, path: str, module: Any, args: Any, output: torch.Tensor) -> None:
        given = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if isinstance(module, torch.nn.modules.batchnorm._NormBase) and given is not None and module.training:
            self._normalised[path] = given.numel() / max(given.shape[1] if given.dim() > 1 else 1, 1)
        for squashed in (output, given):
            # An activation written as a function is seen where the next layer takes it in.
            if squashed is not None and units.is_squashed(squashed):
                share = units.saturation(squashed)
                if share is not None:
                    self._saturation[path] = share
        name = path.rpartition(".")[2].lower()
        if ("router" in name or "gate" in name) and 2 <= output.shape[-1] <= 256 and output.dim() >= 2:
            winners = output.detach().reshape(-1, output.shape[-1]).argmax(1)
            self._routed[path] = torch.bincount(winners, minlength=output.shape[-1]).tolist()

    # ---- backward ----

    def backward_begins(self, loss: torch.Tensor, *, first_of_step: bool) -> None:
        """A backward is about to run from this loss."""
        node = loss.grad_fn
        if node is None:
            return
        sentinel = Sentinel(_user_line())
        metadata: Any = node.metadata
        metadata["stethoscope"] = sentinel
        self._alive.add(sentinel)
        step = self._step()
        if first_of_step and step != self._looked and (step & (step - 1) == 0 or step % 64 == 0):
            self._looked, self._num_looked_at = step, 0
            facts = lossgraph.facts(loss)
            if facts:
                self._sink.event(step, "loss_graph", facts)
        if step == self._looked and self._num_looked_at < MAX_BACKWARDS:
            self._num_looked_at += 1
            self._sink.event(step, "backward", lossgraph.share_in_step(loss))
        if first_of_step and self._owned and self.units_due:
            found = attention.look(loss)
            if found:
                self._sink.event(step, "attention", {"modules": found})
        self._owned = False

    def unit_gradients(self, parameters: list[Any]) -> None:
        """Gradients as the optimizer is about to use them, row by row."""
        if not self._recording or not self.units_due:
            return
        found: dict[int, list[tuple[int, Any]]] = {}
        for parameter in parameters:
            site = self._names.site(parameter, Kind.GRADIENT)
            if parameter.grad is None or site is None or not _has_units(self._names.root, site):
                continue
            rows = units.rows_with_gradient(parameter.grad)
            if rows is not None:
                self._units.see_gradient(site.path, rows)
                found.setdefault(len(rows), []).append((self._table.index(site, parameter), rows))
        self._emit("unit_gradient", found)

    def _emit(self, name: str, found: dict[int, list[tuple[int, Any]]]) -> None:
        for rows in found.values():
            index = np.array([place for place, _ in rows], dtype=np.uint32)
            self._sink.vectors(self._step(), name, index, np.stack([row for _, row in rows]))

    # ---- the step ----

    def step_closes(self, optimizers: list[Any]) -> dict[str, float]:
        """The step is complete; returns its named numbers."""
        step = self._step()
        self.metrics["graphs_alive"] = float(len(self._alive))
        if self._num_outputs_marked:
            self.metrics["outputs_alive"] = float(len(self._outputs_alive))
            self.metrics["outputs_marked"] = float(self._num_outputs_marked)
        if self._activity:
            by_width: dict[int, list[tuple[int, Any]]] = {}
            for place, row in self._activity:
                by_width.setdefault(len(row), []).append((place, row))
            self._emit("unit_activity", by_width)
        looked: dict[str, dict[str, Any]] = {"saturation": self._saturation, "batchnorm": self._normalised, "routed": self._routed}
        if step == self._looked_step:
            looked |= self._units.summary()
        if any(looked.values()):
            self._sink.event(step, "units", {key: dict(value) for key, value in looked.items() if value})
        if step % CENSUS_EVERY == 0:
            self._count_hooks(step)
            self._look_at_averages(step)
        if step & (step - 1) == 0 and 2 <= step <= 1024:
            self._look_again(step)
        if len(self._alive) > 8 and step & (step - 1) == 0:
            lines = sorted({s.line for s in list(self._alive)})
            self._sink.event(step, "graphs_alive", {"count": len(self._alive), "lines": lines[:5]})
        self._note_counts(optimizers)
        taken, self.metrics = self.metrics, {}
        self._saturation, self._normalised, self._routed, self._activity = {}, {}, {}, []
        return taken

    def _count_hooks(self, step: int) -> None:
        by_module = census.hooks_by_module(self._names.root)
        count = sum(by_module.values())
        self.metrics["num_hooks"] = float(count)
        if count > self._last_hooks and step:
            self._sink.event(
                step, "hooks", {"modules": dict(sorted(by_module.items(), key=lambda item: -item[1])[:20])}
            )
        self._last_hooks = count

    def _note_counts(self, optimizers: list[Any]) -> None:
        for optimizer in optimizers[:1]:
            for held in optimizer.state.values():
                count = held.get("step") if isinstance(held, dict) else None
                if isinstance(count, torch.Tensor) and count.device.type != "cpu":
                    return
                if count is not None:
                    self.metrics["optimizer_step"] = float(count)
                return

    def _look_again(self, step: int) -> None:
        for name, facts in (
            ("twins", self._twins.facts() if self._twins else None),
            ("copies", self._copies.facts() if self._copies else None),
        ):
            if facts:
                self._sink.event(step, name, facts)

    # ---- averages of weights ----

    def _look_at_averages(self, step: int) -> None:
        if not self._searched_averages and step >= CENSUS_EVERY:
            self._searched_averages = True
            self._find_averages()
        told = []
        for average, before in self._averages.values():
            now = _sample(average)
            moved = not _same(now, before)
            # An average that still equals our first weights is ours, and nobody has updated it.
            untouched, given = _same(now, self._initial), average is self.ema
            if given or untouched or moved:
                told.append({"type": type(average).__name__, "moved": moved, "given": given})
        if told:
            self._sink.event(step, "averages", {"averages": told})

    def _find_averages(self) -> None:
        """The average that was given, and averaged models of the same make that are alive."""
        found = [self.ema] if self.ema is not None else []
        swa = sys.modules.get("torch.optim.swa_utils")
        if swa is not None:
            root = type(self._names.root)
            objects = gc.get_objects()
            # The types first, at C's speed: nearly always there is none, and nobody has to look at a million objects.
            kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, swa.AveragedModel)}
            if kinds:
                found += [o for o in objects if type(o) in kinds and isinstance(o.module, root)]
        for average in found:
            self._averages.setdefault(id(average), (average, _sample(average)))


def _sample(average: Any) -> list[torch.Tensor]:
    """A few values of each tensor of an average, whatever kind of object it is."""
    if isinstance(average, torch.nn.Module):
        tensors = list(average.parameters())
    else:
        held = getattr(average, "shadow_params", None) or getattr(average, "shadow", None) or average
        tensors = (
            list(held.values())
            if isinstance(held, dict)
            else list(held)
            if isinstance(held, (list, tuple))
            else []
        )
    return [
        t.detach().flatten()[:SAMPLE].clone()
        for t in tensors
        if isinstance(t, torch.Tensor) and t.device.type == "cpu"
    ]


def _same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, second, strict=True)
    )


def _has_units(root: torch.nn.Module, site: Site) -> bool:
    """Rows of an embedding are words, not units: most are rightly silent."""
    try:
        module = root.get_submodule(site.module)
    except AttributeError:
        return False
    return not isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))


def _user_line() -> str:
    """Where in the user's code backward was called."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/torch/" not in file and "/stethoscope/" not in file and not file.startswith("<frozen"):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
