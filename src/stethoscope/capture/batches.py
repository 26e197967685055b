"""What goes into a step: statistics of inputs and targets, a fingerprint of every sample, counts of the classes."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import torch

from stethoscope.capture.ring import Batch
from stethoscope.capture.sites import SiteTable
from stethoscope.capture.taps import tensors_in
from stethoscope.kernels import start
from stethoscope.record import Kind, Site

MAX_SAMPLES: Final = 256
MAX_CLASSES: Final = 1000


def rows(table: SiteTable, inputs: Any, targets: Any) -> list[Batch]:
    """The rows of every tensor in the batch."""
    found = []
    for kind, values in ((Kind.INPUT, inputs), (Kind.TARGET, targets)):
        tensors = list(tensors_in(_as_tensors(values)))
        # Named apart from what the model's own call shows: the same batch would count twice.
        places = [table.index(Site("", kind, f"batch.{name}" if name else "batch"), t) for name, t in tensors]
        if tensors:
            found.append(Batch(np.array(places, dtype=np.uint32), start([t.detach() for _, t in tensors])))
    return found


def facts(inputs: Any, targets: Any) -> dict[str, Any]:
    """Fingerprints and class counts, of tensors on the CPU: elsewhere they would wait for the device."""
    body: dict[str, Any] = {}
    first = next((t for _, t in tensors_in(_as_tensors(inputs))), None)
    if first is not None and first.device.type == "cpu" and first.dim() > 0:
        body["num_samples"] = int(first.shape[0])
        body["fingerprints"] = fingerprints(first)
    label = next((t for _, t in tensors_in(_as_tensors(targets))), None)
    if label is not None and label.device.type == "cpu" and not label.is_floating_point() and label.numel():
        low, high = torch.aminmax(label)
        if int(low) >= 0 and int(high) < MAX_CLASSES:
            body["class_counts"] = torch.bincount(label.flatten().long()).tolist()
    return body


def fingerprints(samples: torch.Tensor) -> list[str]:
    """One hash of 64 bits per sample along the first dimension, of its bytes and shape."""
    shape = str(tuple(samples.shape[1:])).encode()
    plain = samples.detach()[:MAX_SAMPLES].contiguous()
    raw = plain.view(torch.uint8) if plain.dim() > 1 else plain.reshape(len(plain), 1).view(torch.uint8)
    flat = raw.reshape(len(plain), -1).numpy()
    return [hashlib.blake2b(row.tobytes() + shape, digest_size=8).hexdigest() for row in flat]


def _as_tensors(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values)
    if isinstance(values, dict):
        return {key: _as_tensors(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        if values and all(isinstance(value, (int, float)) for value in values):
            return torch.tensor(values)
        return [_as_tensors(value) for value in values]
    return values
