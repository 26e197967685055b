"""SaveSnapshot: a tensor as safetensors, and beside it what it is, as JSON. Never pickle. Both files appear
whole."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from stethoscope.hooks.rules import HookContext
from stethoscope.record import MissingExtraError
from stethoscope.store.runfile import make_durable_folder, write_durably

SCHEMA: Final = 1
PLAIN: Final = frozenset(
    f"{kind}{bits}"
    for kind, sizes in {"float": (16, 32, 64), "int": (8, 16, 32, 64), "uint": (8, 16, 32, 64)}.items()
    for bits in sizes
) | {"bool"}
"""NumPy dtypes that safetensors knows."""


def save_snapshot(path: Path, context: HookContext, hook: str) -> Path:
    """Writes the context's tensor and returns the path of the safetensors file; the JSON has the same
    stem."""
    tensor = context.tensor
    target = path if path.suffix == ".safetensors" else path / f"{_file_stem(context)}.safetensors"
    name = context.layer or "tensor"
    data, dtype = _to_bytes(name, tensor)
    make_durable_folder(target.parent)
    write_durably(target, data)
    about = {
        "schema": SCHEMA,
        "hook": hook,
        "layer": context.layer,
        "step": context.step,
        "pass": "forward" if context.is_forward else "backward",
        "shape": list(getattr(tensor, "shape", context.shape or ())),
        "dtype": dtype,
        "loss": context.loss,
        "gradient_norm": context.gradient_norm,
        "memory_mb": context.memory_mb,
        "time": time.time(),
        "tensors": target.name,
        "note": "The tensor file holds values from your model or your data.",
    }
    known = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in about.items()}
    write_durably(target.with_suffix(".json"), (json.dumps(known, indent=2, allow_nan=False) + "\n").encode())
    return target


def _to_bytes(name: str, tensor: Any) -> tuple[bytes, str]:
    """The file's content; torch tensors keep their dtype, everything else goes through NumPy."""
    try:
        if callable(getattr(tensor, "detach", None)):
            from safetensors.torch import save as save_torch

            whole = tensor.detach().cpu().contiguous().clone()
            return save_torch({name: whole}), str(tensor.dtype).removeprefix("torch.")
        from safetensors.numpy import save as save_numpy
    except ImportError as error:
        raise MissingExtraError("safetensors", "captures", "Saving a snapshot") from error
    array = np.array(tensor)
    if array.dtype.kind not in "fiub" or array.dtype.name not in PLAIN:
        array = array.astype(np.float32)  # other frameworks' bfloat16 and fp8
    return save_numpy({name: array}), str(array.dtype)


def _file_stem(context: HookContext) -> str:
    """A file name for a step and a layer; a layer whose name had to be changed keeps a short hash of it."""
    layer = context.layer or "tensor"
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", layer).strip(".")[:80] or "layer"
    if safe != layer:
        safe += "-" + hashlib.sha256(layer.encode("utf-8", "replace")).hexdigest()[:8]
    return f"step-{context.step:08d}-{safe}-{'forward' if context.is_forward else 'backward'}"
