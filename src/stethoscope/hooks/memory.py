"""How much memory is in use: the device's where there is one, else the process's."""

from __future__ import annotations

import functools
import os
import sys
from typing import Final

_STATM: Final = "/proc/self/statm"


def process_memory_bytes() -> int | None:
    """The memory this process holds (resident set); None where the system does not tell."""
    try:
        file = os.open(
            _STATM, os.O_RDONLY
        )  # a Path's own reading takes twice as long, and this is asked every few steps
        try:
            return int(os.read(file, 256).split()[1]) * _page_bytes()
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@functools.cache
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


def memory_total_bytes() -> int | None:
    """How much there is: the device's memory where there is a device in use, else the machine's."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
