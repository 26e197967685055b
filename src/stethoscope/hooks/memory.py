"""How much memory is in use: the device's where there is one, else the process's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")


def process_memory_bytes() -> int | None:
    """The memory this process holds (resident set); None where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * _page_bytes()
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _page_bytes() -> int:
    import resource

    return resource.getpagesize()


def device_memory_bytes() -> int | None:
    """The bytes torch has allocated on the current accelerator; None where torch runs without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.memory_allocated())


def memory_in_use_bytes() -> int | None:
    """Device memory where there is a device in use, else the process's own."""
    device = device_memory_bytes()
    return process_memory_bytes() if device is None else device
