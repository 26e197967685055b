"""SaveSnapshot: a tensor as safetensors, and beside it what it is, as JSON. Never pickle. Both files appear
whole."""

from __future__ import annotations

import hashlib
import re
import time
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from stethoscope.hooks.rules import HookContext
from stethoscope.instruments.files import write_atomically, write_json
from stethoscope.instruments.intake import as_numpy
from stethoscope.record import MissingExtraError

SCHEMA: Final = 1


def save_snapshot(path: Path, context: HookContext, hook: str) -> Path:
    """Writes the context's tensor and returns the path of the safetensors file; the JSON has the same
    stem."""
    tensor = context.tensor
    target = path if path.suffix == ".safetensors" else path / f"{_stem(context)}.safetensors"
    name = context.layer or "tensor"
    data, dtype = _to_bytes(name, tensor)
    write_atomically(target, partial(_write, data))
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
    write_json(target.with_suffix(".json"), about)
    return target


def _write(data: bytes, file: BinaryIO) -> None:
    file.write(data)


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
    array = as_numpy(tensor, name).copy()
    return save_numpy({name: array}), str(array.dtype)


def _stem(context: HookContext) -> str:
    """A file name for a step and a layer; a layer whose name had to be changed keeps a short hash of it."""
    layer = context.layer or "tensor"
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", layer).strip(".")[:80] or "layer"
    if safe != layer:
        safe += "-" + hashlib.sha256(layer.encode("utf-8", "replace")).hexdigest()[:8]
    return f"step-{context.step:08d}-{safe}-{'forward' if context.is_forward else 'backward'}"
