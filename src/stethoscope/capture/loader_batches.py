"""One batch of a DataLoader: what is noted of it when it comes, and how it is known again in the model's arguments."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from stethoscope.capture import batches
from stethoscope.capture.fingerprints import joined, quick_fingerprints, thinned
from stethoscope.capture.ring import MeasuredGroup
from stethoscope.capture.sites import SiteTable
from stethoscope.capture.taps import tensors_in
from stethoscope.kernels import measure_async
from stethoscope.record import Kind, Site

MAX_PARTS: Final = 8
MAX_OTHERS: Final = 3
MAX_ELEMENTS: Final = 1 << 21
"""A larger batch is not looked at sample by sample where nobody asked for it; its row as a whole is taken all the same."""
PART_SHARE: Final = 4
"""Parts of at least one in so many of the largest one's values belong to what tells samples apart."""
TARGET_NAMES: Final = frozenset({"label", "labels", "target", "targets", "y"})


@dataclasses.dataclass(slots=True)
class Part:
    """One tensor of a batch; it is not kept alive."""

    name: str
    tensor: weakref.ref[torch.Tensor]
    shape: tuple[int, ...]
    dtype: torch.dtype
    counts: list[int] | None = None
    rows: MeasuredGroup | None = None


@dataclasses.dataclass(slots=True)
class LoaderBatch:
    """A batch that came, and what became of it so far."""

    source: int | None
    """The number of the data it was drawn from; None where the model's own call showed it."""
    is_training: bool
    """How things stood when it came."""
    parts: list[Part]
    facts: dict[str, Any]
    """Fields of `events.Batch`."""
    main: int = 0
    """The part that tells samples apart: the largest."""
    is_doubtful: bool = False
    """Whether the model was in evaluation mode when it was called, with gradients."""
    target: Part | None = None

    @classmethod
    def of(cls, batch: Any, source: int, *, is_training: bool, table: SiteTable | None) -> LoaderBatch | None:
        """Notes what a loader yielded; statistics of targets only where there is a table of sites for them."""
        found = [(name, t) for name, t in tensors_in(batch) if is_readable(t)][:MAX_PARTS]
        if not found:
            return None
        parts = [Part(name, weakref.ref(t), tuple(t.shape), t.dtype) for name, t in found]
        main = max(range(len(parts)), key=lambda n: found[n][1].numel())
        samples = found[main][1]
        facts: dict[str, Any] = {"num_samples": len(samples)} | _names([t for _, t in found])
        others = [n for n in range(len(parts)) if n != main and parts[n].shape[0] == len(samples)]
        for number in others[:MAX_OTHERS]:
            tensor = found[number][1]
            parts[number].counts = batches.class_counts(tensor)
            if table is not None:
                position = table.index(Site("", Kind.TARGET, f"batch.{parts[number].name}"), tensor)
                parts[number].rows = MeasuredGroup(
                    np.array([position], dtype=np.uint32), measure_async([tensor.detach()])
                )
        arrival = cls(source, is_training, parts, facts, main)
        arrival.target = arrival._target({main})
        return arrival

    @classmethod
    def of_call(cls, tensors: Sequence[torch.Tensor], step: int) -> LoaderBatch:
        """Notes what the model was called with, where no loader shows it."""
        facts: dict[str, Any] = {"num_samples": len(tensors[0]), "seen": "call"} | _names(tensors)
        return cls(None, True, [], facts | batches.of_values(tensors[0], step, MAX_ELEMENTS))

    def closeness(self, inputs: Sequence[torch.Tensor]) -> int:
        """How sure it is that the model is called with this: 3 the same memory, 2 the same shape, 1 as many samples."""
        reached = self._reached(inputs)
        if reached:
            return max(reached.values())
        return int(any(t.dim() > 0 and len(t) == self.parts[self.main].shape[0] for t in inputs))

    def reach(self, inputs: Sequence[torch.Tensor], step: int) -> None:
        """The model is called with it: which parts it takes, which is the target then, what the values are like."""
        reached = self._reached(inputs)
        self.target = self._target(set(reached) or {self.main})
        here = next((t for t in inputs if is_readable(t) and len(t) == self.facts["num_samples"]), None)
        value = here if here is not None else self.parts[self.main].tensor()
        if value is not None:
            self.facts.update(batches.of_values(value, step, MAX_ELEMENTS))

    def suspect(self) -> None:
        """Note which samples' targets are not finite."""
        value = self.target.tensor() if self.target is not None else None
        if value is not None:
            self.facts.update(batches.lost_targets(value))

    def told(self) -> dict[str, Any]:
        """What is told of it, as fields of `events.Batch`."""
        told = dict(self.facts)
        if self.source is not None:
            told["source"] = self.source
        if self.target is not None and self.target.counts is not None:
            told["class_counts"] = tuple(self.target.counts)
        return told

    def _reached(self, inputs: Sequence[torch.Tensor]) -> dict[int, int]:
        """From each part that the model is called with to how sure that is."""
        found: dict[int, int] = {}
        left = list(inputs)
        for level in (3, 2):
            for number, part in enumerate(self.parts):
                match = None if number in found else _match(part, left, level)
                if match is not None:
                    found[number] = level
                    left.pop(match)
        return found

    def _target(self, reached: set[int]) -> Part | None:
        named = [part for part in self.parts if part.name.rpartition(".")[2].lower() in TARGET_NAMES]
        after = [part for n, part in enumerate(self.parts) if n > min(reached) and n not in reached]
        return next((part for part in (*named, *after) if part.counts is not None or part.rows is not None), None)


def is_readable(tensor: torch.Tensor) -> bool:
    """Whether samples can be looked at one by one without waiting for a device."""
    with torch._C.DisableTorchFunction():
        return (
            tensor.device.type == "cpu"
            and tensor.layout is torch.strided
            and has_shape(tensor)
            and tensor.dim() > 0
            and tensor.shape[0] > 0
            and not tensor.is_quantized
        )


def has_shape(tensor: torch.Tensor) -> bool:
    """Whether it has one shape: nested tensors have several."""
    with torch._C.DisableTorchFunction():
        return not tensor.is_nested


def _names(tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    """A sample is all of its parts that are about as large as the largest: a pair of images is no single one."""
    largest = max(tensors, key=torch.Tensor.numel)
    alike = [t for t in tensors if len(t) == len(largest) and PART_SHARE * t.numel() >= largest.numel()]
    names, mask = thinned(joined([quick_fingerprints(t) for t in alike]))
    return {"fingerprints": tuple(names), "mask": mask}


def _match(part: Part, inputs: list[torch.Tensor], level: int) -> int | None:
    known = part.tensor()
    for number, tensor in enumerate(inputs):
        if level == 3:
            if known is not None and _memory(known) == _memory(tensor):
                return number
        elif part.dtype == tensor.dtype and part.shape == tuple(tensor.shape):
            return number
    return None


def _memory(tensor: torch.Tensor) -> int:
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return id(tensor)
    return tensor.untyped_storage().data_ptr()
