"""What goes into a step: statistics of inputs and targets, a fingerprint of every sample, counts of the classes.

Facts are taken on the CPU, along the first dimension. A batch that is logged on a device is copied here first, where it is
small, and its facts are told when it has come: nothing waits for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from stethoscope.capture.deferred_reads import DeviceTransfer, StepReads, can_defer, is_here
from stethoscope.capture.fingerprints import fingerprints
from stethoscope.capture.ring import MeasuredGroup
from stethoscope.capture.sites import SiteTable
from stethoscope.capture.taps import tensors_in
from stethoscope.kernels import measure_async
from stethoscope.kernels.fetching import Fetched
from stethoscope.record import Kind, Site
from stethoscope.record.events import FeatureSizes, LargestSample

MAX_CLASSES: Final = 1000
MAX_ELEMENTS: Final = 1 << 24
"""A batch with more is not looked at sample by sample: that would cost more than a step."""
MAX_FETCHED: Final = 4 << 20
"""Bytes of a batch on a device that are copied to be looked at."""
MAX_FEATURES: Final = 4096
FEATURES_EVERY: Final = 16
"""Steps between two looks at single features, after the first few."""
MAX_NAMED: Final = 256


def rows(table: SiteTable, inputs: Any, targets: Any) -> list[MeasuredGroup]:
    """The rows of every tensor in the batch."""
    found = []
    for kind, values in ((Kind.INPUT, inputs), (Kind.TARGET, targets)):
        tensors = list(tensors_in(_as_tensors(values)))
        # Named apart from what the model's own call shows: the same batch would count twice.
        positions = [table.index(Site("", kind, f"batch.{name}" if name else "batch"), t) for name, t in tensors]
        if tensors:
            found.append(
                MeasuredGroup(np.array(positions, dtype=np.uint32), measure_async([t.detach() for _, t in tensors]))
            )
    return found


class BatchFacts:
    """What is told of one batch after another."""

    def __init__(self) -> None:
        self._last: weakref.ref[torch.Tensor] | None = None

    def look(self, inputs: Any, targets: Any, step: int, tell: Callable[[dict[str, Any]], None]) -> StepReads | None:
        """Fingerprints, class counts, the largest sample, and now and then what single features are like.

        Told as fields of `events.Batch`, at once; of a batch that is elsewhere when the reads that are returned have come.
        """
        first = next((t for _, t in tensors_in(_as_tensors(inputs))), None)
        label = next((t for _, t in tensors_in(_as_tensors(targets))), None)
        # The same tensor handed in twice is used twice on purpose; an equal one may have been drawn twice.
        again = self._last is not None and first is not None and self._last() is first
        self._last = weakref.ref(first) if first is not None else None
        both = {"first": first, "label": label}
        away = {name: _copy(t) for name, t in both.items() if t is not None and not is_here(t) and _is_small(t)}
        here = {name: t for name, t in both.items() if t is not None and is_here(t)}
        if not away:
            tell(_facts(here.get("first"), here.get("label"), step, again=again))
            return None
        kept = {name: t.detach().clone() for name, t in here.items()}

        def come(arrays: list[Any]) -> Any:
            found = kept | dict(zip(away, map(torch.from_numpy, arrays), strict=True))
            tell(_facts(found.get("first"), found.get("label"), step, again=again))
            return np.zeros(0, dtype=np.float32)

        return StepReads([DeviceTransfer(Fetched(list(away.values()), come), [])], dict)


def _is_small(tensor: torch.Tensor) -> bool:
    return can_defer(tensor) and 0 < tensor.nbytes <= MAX_FETCHED


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of its own, in a type that NumPy knows: the next batch may be written over this one before it is fetched."""
    plain = tensor.detach()
    return plain.float() if plain.dtype is torch.bfloat16 else plain.clone()


def _facts(first: torch.Tensor | None, label: torch.Tensor | None, step: int, *, again: bool) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if first is not None and first.dim() > 0:
        body["num_samples"] = int(first.shape[0])
        body["fingerprints"] = tuple(fingerprints(first))
        body["again"] = again
        body.update(of_values(first, step))
    counts = class_counts(label) if label is not None else None
    if counts is not None:
        body["class_counts"] = tuple(counts)
    elif label is not None:
        body.update(lost_targets(label))
    return body


def lost_targets(label: torch.Tensor) -> dict[str, Any]:
    """The samples whose targets are not finite, where there are any."""
    if (
        label.device.type != "cpu"
        or not label.is_floating_point()
        or not 0 < label.numel() <= MAX_ELEMENTS
        or not label.dim()
    ):
        return {}
    finite = torch.isfinite(label.detach().reshape(len(label), -1)).all(1)
    return {} if bool(finite.all()) else {"nonfinite_targets": tuple(torch.nonzero(~finite).flatten()[:8].tolist())}


def of_values(first: torch.Tensor, step: int, limit: int = MAX_ELEMENTS) -> dict[str, Any]:
    """What a float tensor on the CPU shows sample by sample, and now and then feature by feature."""
    if not first.is_floating_point() or not 0 < first.numel() <= limit:
        return {}
    flat = first.detach().reshape(len(first), -1)
    body = extremes(flat)
    if step < 4 or step % FEATURES_EVERY == 0:
        body.update(features(flat))
    return body


def class_counts(label: torch.Tensor) -> list[int] | None:
    """How often each class is there, where these numbers can be classes."""
    if label.device.type != "cpu" or label.is_floating_point() or label.is_complex() or not label.numel():
        return None
    low, high = torch.aminmax(label)
    if int(low) < 0 or int(high) >= MAX_CLASSES:
        return None
    found: list[int] = torch.bincount(label.flatten().long()).tolist()
    return found


def extremes(flat: torch.Tensor) -> dict[str, Any]:
    """Of [samples, values]: the sample with the largest value beside the next, and the samples that are not finite."""
    low, high = flat.amin(1), flat.amax(1)  # in two passes, and yet a tenth of aminmax's time along a dimension
    largest = torch.maximum(high, -low).double()
    finite = torch.isfinite(largest)
    body: dict[str, Any] = {}
    if not bool(finite.all()):
        body["nonfinite_samples"] = tuple(torch.nonzero(~finite).flatten()[:8].tolist())
    kept = torch.where(finite, largest, 0.0)
    values, positions = kept.topk(min(2, len(kept)))
    body["largest"] = LargestSample(
        sample=int(positions[0]), value=float(values[0]), next=float(values[-1]) if len(kept) > 1 else None
    )
    return body


def features(flat: torch.Tensor) -> dict[str, Any]:
    """Of [samples, features]: which have one value in the whole batch, which have no finite one, how sizes differ."""
    num_samples, num_features = flat.shape
    if num_samples < 2 or not 1 <= num_features <= MAX_FEATURES:
        return {}
    low, high = flat.amin(0), flat.amax(0)
    same = torch.nonzero(low == high).flatten()
    finite = torch.isfinite(flat)
    absent = torch.nonzero(~finite.any(0)).flatten()
    mean_square = torch.where(finite, flat, 0.0).double().square().mean(0)
    order = mean_square.argsort(descending=True)
    body: dict[str, Any] = {
        "num_features": num_features,
        "num_constant": len(same),
        "constant": tuple((int(n), float(low[n])) for n in same[:MAX_NAMED]),
        "feature_rms": FeatureSizes(
            largest=tuple((int(n), float(mean_square[n] ** 0.5)) for n in order[:3]),
            median=float(mean_square.median() ** 0.5),
        ),
    }
    if len(absent):
        body["nonfinite_features"] = tuple(absent[:MAX_NAMED].tolist())
    return body


def _as_tensors(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values)
    if isinstance(values, dict):
        return {key: _as_tensors(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        if values and all(isinstance(value, (int, float)) for value in values):
            return torch.tensor(values, device="cpu")
        return [_as_tensors(value) for value in values]
    return values
