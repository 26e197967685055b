"""What a process does before it forks one child after another, so that a child costs a tenth of a second and not two."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import sys


def prepare() -> None:
    """Import whatever a training under `watch()` imports, and keep it out of what the children collect as they end.

    Triton is left out: it complains at the end of a process of all that was not collected.
    """
    sys.modules["triton"] = None  # type: ignore[assignment]
    import torch._dynamo  # every optimizer imports it when it is made
    import torch.utils.data

    import stethoscope

    for room in ("store", "capture", "detect", "explain", "session"):
        package = importlib.import_module(f"stethoscope.{room}")
        for module in pkgutil.iter_modules(getattr(package, "__path__", []), f"{package.__name__}."):
            importlib.import_module(module.name)
    assert all((stethoscope.watch, torch.utils.data, torch._dynamo))
    gc.collect()
    gc.freeze()
