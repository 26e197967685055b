"""What is measured when an optimizer steps: gradients before, weights, updates and optimizer state after."""

from __future__ import annotations

import math
import weakref
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parameter import is_lazy

from stethoscope.capture.ring import MeasuredGroup
from stethoscope.capture.sites import Names, SiteTable, wanted
from stethoscope.config import DebugConfig
from stethoscope.kernels import Extras, Sample, Snapshot, measure_async
from stethoscope.record import Kind, Site

Indices = npt.NDArray[np.uint32]
SEED: Final = 0x5E7
MAX_SAMPLED: Final = 1 << 21
"""Coordinates of all weights of an optimizer together whose change is measured: four copies of them are kept, 16 MB each."""
LEAST_SAMPLE: Final = 64
"""Coordinates of each weight that are measured however many weights there are."""


class OptimizerProbe:
    """One optimizer's parameters, their sites, and the measurements around its step."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None,
        parameters: list[Any],
        names: Names,
        table: SiteTable,
        config: DebugConfig,
    ) -> None:
        # Weakly: an optimizer that the user dropped must be free to go.
        self._optimizer = weakref.ref(optimizer) if optimizer is not None else None
        self.all_parameters = parameters
        self._names, self._table, self._config = names, table, config
        self.parameters = [
            p
            for p in parameters
            if (known := names.parameters.get(id(p))) is not None and wanted(known[0], config.layers)
        ]
        self._named = [names.parameters[id(p)] for p in self.parameters]
        self.foreign_params = [p for p in parameters if id(p) not in names.parameters and not is_lazy(p)]
        """Parameters that this optimizer holds and the model does not."""
        measured = ["meta" if p.is_meta else "all" for p in self.parameters]
        self._weights = self._register(Kind.WEIGHT, measured, on=config.weights)
        trainable = [m if p.requires_grad else "frozen" for p, m in zip(self.parameters, measured, strict=True)]
        self._gradients = self._register(Kind.GRADIENT, trainable, on=config.gradients)
        self.used_closure = False
        self.timed = False
        """Whether the device's own time is asked for."""
        self._cosine: float | torch.Tensor | None = None
        self._last_on_device: tuple[torch.Tensor, int] | None = None
        self._last_change: tuple[npt.NDArray[np.float64], float, int] | None = None
        self._updates: Indices | None = None
        self._sample: Sample | None = None
        self._before: Snapshot | None = None
        self._earlier: tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]] | None = None
        """The sampled values before the last step that was looked at, and which tensors it moved."""
        self._num_undone = np.zeros(len(self.parameters), dtype=np.int64)
        self._state_sites: dict[tuple[int, str], int] = {}
        self._state_held: list[tuple[dict[Any, Any], Any, torch.Tensor]] = []
        self._state_tensors: list[torch.Tensor] = []
        self._state_index: Indices = np.zeros(0, dtype=np.uint32)
        self._num_states = -1

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer, None where there is none, or none any more."""
        return self._optimizer() if self._optimizer is not None else None

    def is_of(self, optimizer: Any) -> bool:
        """Whether it is this optimizer's."""
        return self._optimizer is not None and self._optimizer() is optimizer

    def _register(self, kind: Kind, measured: list[str], *, on: bool) -> Indices:
        if not on:
            return np.zeros(len(self.parameters), dtype=np.uint32)
        sites = [Site(module, kind, name) for module, name in self._named]
        return np.array(self._table.indices(sites, self.parameters, measured), dtype=np.uint32)

    def gradients(self, extras: Extras | None, scale: Any = None) -> MeasuredGroup | None:
        """The gradients as they are now."""
        if not self._config.gradients:
            return None
        # Each `.grad` is asked for once: every time makes a Python object of it.
        index, found = self._gradients, [p.grad for p in self.parameters]
        if type(None) in set(map(type, found)):
            index = index[[position for position, gradient in enumerate(found) if gradient is not None]]
            found = [gradient for gradient in found if gradient is not None]
        if not found:
            return None
        pending = measure_async(found, extras=extras, timed=self.timed)
        factor = None if scale is None else measure_async([scale.detach()])
        return MeasuredGroup(index, pending, factor, part="gradients", distinct=True)

    def rehearse(self, extras: Extras) -> None:
        """Measure once, and tell nobody: what the first step would otherwise work out for itself is then there."""
        if not self.parameters or not self.parameters[0].is_cuda:
            return
        if self._config.weights or self._config.gradients:
            measure_async([parameter.detach() for parameter in self.parameters], extras=extras)
        if self._config.updates:
            sample = self._take_sample()
            sample.difference(sample.read(self.parameters), sample.read(self.parameters))

    def remember(self) -> None:
        """Keep the sampled coordinates of every weight as they are before the step."""
        if not self._config.updates or not self.parameters:
            return
        self._before = self._take_sample().read(self.parameters)
        self._compare_with_earlier(self._before)

    def _take_sample(self) -> Sample:
        """The coordinates of every weight that are looked at, always the same ones."""
        if self._sample is None:
            size = min(self._config.update_sample, max(MAX_SAMPLED // len(self.parameters), LEAST_SAMPLE))
            self._sample = Sample(self.parameters, size=size, seed=SEED)
            how = ["sampled" if p.numel() > size else "all" for p in self.parameters]
            self._updates = self._register(Kind.UPDATE, how, on=True)
        return self._sample

    def undone(self, times: int) -> list[str]:
        """Parameters that were put back to what they were before a step, so many times in a row."""
        sites = [self._names.site(self.parameters[n], Kind.UPDATE) for n in np.flatnonzero(self._num_undone >= times)]
        return [site.path for site in sites if site is not None]

    def _compare_with_earlier(self, before: Snapshot) -> None:
        """Which tensors are bit by bit what they were before the last step, although it moved them; on the CPU alone."""
        if self._earlier is None or self._sample is None or len(self._earlier[0]) != len(before.host):
            return
        values, changed = self._earlier
        undone = self._sample.any_of(changed) & ~self._sample.any_of(values != before.host)
        if undone.any():
            # What a clamp puts back lay at the ends of its range.
            undone &= self._sample.any_of(changed & ~self._sample.at_ends(values))
        self._num_undone = np.where(undone, self._num_undone + 1, 0)

    def update(self, step: int) -> MeasuredGroup | None:
        """What the step changed since `remember`, on the sampled coordinates."""
        before, self._before = self._before, None
        if before is None or self._sample is None or self._updates is None:
            return None
        after = self._sample.read(self.parameters)
        self._compare_direction(before, after, step)
        changed = len(before.host) == len(after.host) and len(before.host) > 0
        self._earlier = (before.host, before.host != after.host) if changed else None
        return MeasuredGroup(self._updates, self._sample.difference(before, after), part="boundary")

    def take_cosine(self) -> float | torch.Tensor | None:
        """The cosine between this step's update and the one before, None where one of them was not looked at.

        Where the weights are on a device it is a tensor there, and not a number where one of the updates was zero.
        """
        taken, self._cosine = self._cosine, None
        return taken

    def _compare_direction(self, before: Snapshot, after: Snapshot, step: int) -> None:
        """The cosine between this update and the last step's, on the sampled coordinates."""
        if before.device is not None and after.device is not None:
            self._compare_on_device(after.device - before.device, step)
            return
        with np.errstate(invalid="ignore"):  # of weights that are Inf
            change = after.host - before.host
        # Not by BLAS: its threads would wait for processors that training has.
        size = math.sqrt(float(np.einsum("i,i->", change, change)))
        last, self._last_change = self._last_change, (change, size, step)
        if last is None or last[2] != step - 1 or len(last[0]) != len(change) or size * last[1] == 0:
            return
        self._cosine = float(np.einsum("i,i->", change, last[0])) / (size * last[1])

    def _compare_on_device(self, change: torch.Tensor, step: int) -> None:
        last, self._last_on_device = self._last_on_device, (change, step)
        if (
            last is not None
            and last[1] == step - 1
            and last[0].shape == change.shape
            and last[0].device == change.device
        ):
            self._cosine = (change * last[0]).sum() / (change.norm() * last[0].norm())

    def weights(self, extras: Extras | None) -> MeasuredGroup | None:
        """Every weight as it is now."""
        if not self._config.weights or not self.parameters:
            return None
        pending = measure_async(self.parameters, extras=extras, timed=self.timed)
        return MeasuredGroup(self._weights, pending, part="boundary")

    def state(self) -> MeasuredGroup | None:
        """The optimizer's tensors of more than one element: momentum, second moments."""
        optimizer = self.optimizer
        if not self._config.optimizer_state or optimizer is None:
            return None
        if not self._state_holds(optimizer):
            self._read_state(optimizer)
        if not self._state_tensors:
            return None
        return MeasuredGroup(self._state_index, measure_async(self._state_tensors, timed=self.timed), part="boundary")

    def _state_holds(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer still holds the tensors that were found last time."""
        held = self._state_held
        return len(optimizer.state) == self._num_states and all(own.get(key) is value for own, key, value in held)

    def _read_state(self, optimizer: torch.optim.Optimizer) -> None:
        positions: list[int] = []
        self._state_held, self._num_states = [], len(optimizer.state)
        for parameter in self.parameters:
            held = optimizer.state.get(parameter)
            if not held:
                continue
            for key, value in held.items():
                if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0:
                    positions.append(self._state_position(parameter, key, value))
                    self._state_held.append((held, key, value))
        self._state_tensors = [value for _, _, value in self._state_held]
        self._state_index = np.array(positions, dtype=np.uint32)

    def _state_position(self, parameter: Any, key: Any, value: torch.Tensor) -> int:
        position = self._state_sites.get((id(parameter), str(key)))
        if position is None:
            site = self._names.site(parameter, Kind.OPTIMIZER_STATE, str(key)) or Site(
                "", Kind.OPTIMIZER_STATE, str(key)
            )
            position = self._state_sites[id(parameter), str(key)] = self._table.index(site, value)
        return position


def buffers(names: Names, table: SiteTable, layers: tuple[str, ...]) -> MeasuredGroup | None:
    """Every floating-point buffer as it is now."""
    positions, tensors = [], []
    for site, buffer in names.buffers():
        if wanted(site.module, layers):
            positions.append(table.index(site, buffer))
            tensors.append(buffer.detach())
    return MeasuredGroup(np.array(positions, dtype=np.uint32), measure_async(tensors)) if tensors else None
