"""Whether ranks hold replicas or shards: a hash of every parameter as training begins, where there are several ranks.

Replicas of one model start equal and must stay so; shards and the parts of a pipeline never were. Parameters on the CPU only:
elsewhere the device would have to be waited for.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, Final

import torch

from stethoscope.capture.sites import Names

MAX_ELEMENTS: Final = 1 << 22
"""Of a larger parameter only this many first elements are hashed."""


def facts(model: Any, names: Names) -> dict[str, Any] | None:
    """The wrapper the user gave, and from a parameter's path to its hash; None where there is one rank."""
    if not os.environ.get("WORLD_SIZE", "1").isdigit() or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    hashes = {}
    for parameter in names.tensors:
        owner = names.parameters.get(id(parameter))
        digest = _digest(parameter)
        if owner is not None and digest is not None:
            hashes[".".join(filter(None, owner))] = digest
    return {"wrapper": type(model).__name__, "hashes": hashes}


def _digest(parameter: torch.Tensor) -> str | None:
    plain = type(parameter) in (torch.nn.Parameter, torch.Tensor) and parameter.layout is torch.strided
    if not plain or parameter.device.type != "cpu" or not parameter.numel():
        return None
    values = parameter.detach().flatten()[:MAX_ELEMENTS].contiguous()
    return hashlib.blake2b(values.view(torch.uint8).numpy().tobytes(), digest_size=8).hexdigest()
