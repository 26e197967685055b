"""Whether ranks hold replicas or shards: a hash of every parameter as training begins, where there are several ranks.

Replicas of one model start equal and must stay so; shards and the parts of a pipeline never were. A device is waited for here,
once, before the first step.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, Final

import torch

from stethoscope.capture.deferred_reads import can_defer
from stethoscope.capture.sites import Names
from stethoscope.kernels.tensors import bytes_of
from stethoscope.record.events import Replicas

MAX_ELEMENTS: Final = 1 << 22
"""Of a larger parameter only this many first elements are hashed."""
MAX_ON_DEVICE: Final = 1 << 16
"""The same of a parameter on a device: they have to be fetched."""


def facts(model: Any, names: Names) -> Replicas | None:
    """The wrapper the user gave, and from a parameter's path to its hash; None where there is one rank."""
    if not os.environ.get("WORLD_SIZE", "1").isdigit() or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    hashes = {}
    for parameter in names.tensors:
        owner = names.parameters.get(id(parameter))
        digest = _digest(parameter)
        if owner is not None and digest is not None:
            hashes[".".join(filter(None, owner))] = digest
    return Replicas(wrapper=type(model).__name__, hashes=hashes)


def _digest(parameter: torch.Tensor) -> str | None:
    if not can_defer(parameter) or not parameter.numel():
        return None
    most = MAX_ELEMENTS if parameter.device.type == "cpu" else MAX_ON_DEVICE
    values = parameter.detach().flatten()[:most].cpu().contiguous()
    return hashlib.blake2b(bytes_of(values).data, digest_size=8).hexdigest()
