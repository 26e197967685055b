"""What run.json says of a training: the model tree, the settings, the versions."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from stethoscope.capture.guard import can_be_kept
from stethoscope.config import DebugConfig
from stethoscope.session.location import RunLocation, run_name
from stethoscope.session.redaction import command_to_record, environment_to_record, settings_to_record

PACKAGES = ("stethoscope", "torch", "numpy", "pyarrow", "triton")


def describe_training(
    model: Any, optimizers: Sequence[Any], config: DebugConfig, location: RunLocation
) -> dict[str, Any]:
    """What run.json says: the model tree, the settings, the versions."""
    from stethoscope.capture.sites import unwrap

    root = unwrap(model)
    info: dict[str, Any] = {
        "name": run_name(config),
        "created": time.time(),
        "launch_id": location.launch_id,
        "world_size": location.world_size,
        "config": settings_to_record(config),
        "versions": {"python": platform.python_version()} | _versions(),
        "model": {
            "type": type(root).__name__,
            "modules": [_module(path, m) for path, m in root.named_modules()],
        },
        "optimizers": [type(optimizer).__name__ for optimizer in optimizers],
    }
    if config.record_command:
        info["command"] = command_to_record(sys.argv)
        info["environment"] = environment_to_record(os.environ)
    return info


def _module(path: str, module: Any) -> dict[str, Any]:
    from torch.nn.parameter import is_lazy

    own = [p for p in module._parameters.values() if p is not None and not is_lazy(p)]
    return {
        "path": path,
        "type": type(module).__name__,
        "detail": _detail(module),
        "num_parameters": sum(p.numel() for p in own),
        "trainable": any(p.requires_grad for p in own),
        "source": _source(type(module)),
    }


def _detail(module: Any) -> str:
    """The module's own words about itself; "" where it has none, or finds none because it is not complete yet."""
    try:
        return str(module.extra_repr())[:200]
    except BaseException as error:
        if not can_be_kept(error):
            raise
        return ""


def _source(kind: type) -> dict[str, Any] | None:
    """The file's name and the line of a module's forward where it is the user's own; never where the file lies."""
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    if code is None or kind.__module__.partition(".")[0] == "torch":
        return None
    return {"file": Path(code.co_filename).name, "line": code.co_firstlineno}


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def root_of(model: Any) -> Any:
    """The model the user wrote, under its wrappers."""
    from stethoscope.capture.sites import unwrap

    return unwrap(model)


def note_checkup(model: Any, writer: Any, step: int) -> None:
    """A checkup of this model from before it was watched belongs to its run."""
    memory = sys.modules.get("stethoscope.checkup.memory")
    found = memory.recall(root_of(model)) if memory is not None else None
    if found is not None:
        writer.tell(step, found)
