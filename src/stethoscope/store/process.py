"""Who writes: enough about a process to tell later, from outside, whether it is gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_PROC: Final = Path("/proc")


def describe() -> dict[str, Any]:
    """This process, host and boot, as plain values."""
    pid = os.getpid()
    return {
        "pid": pid,
        "host": socket.gethostname(),
        "boot": _first_line(_PROC / "sys/kernel/random/boot_id"),
        "pid_namespace": _read_link(_PROC / "self/ns/pid"),
        "ticks": _start_ticks(pid),
    }


def is_known_alive(who: Mapping[str, Any]) -> bool:
    """True only where it is certain that the process is there; False also means "cannot be told from here"."""
    here = describe()
    if any(not here[name] or who.get(name) != here[name] for name in ("host", "boot", "pid_namespace")):
        return False
    return isinstance(who.get("pid"), int) and who.get("ticks") == _start_ticks(int(who["pid"])) is not None


def is_known_dead(who: Mapping[str, Any]) -> bool:
    """True only where it is certain that the process is gone; False also means "cannot be told from here"."""
    here = describe()
    if who.get("host") != here["host"] or not isinstance(who.get("pid"), int):
        return False
    if who.get("boot") != here["boot"]:
        return bool(who.get("boot") and here["boot"])
    if who.get("pid_namespace") != here["pid_namespace"]:
        return False
    pid = int(who["pid"])
    if _PROC.joinpath("self/stat").exists():
        ticks = _start_ticks(pid)
        return ticks is None or (who.get("ticks") is not None and ticks != who["ticks"])
    if os.name == "nt":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None where there is none, or only a zombie."""
    line = _first_line(_PROC / str(pid) / "stat")
    fields = line.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    return int(fields[19])


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _read_link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
