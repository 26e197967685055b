"""The log of the process beside the training: what went wrong in it, a few kilobytes at most."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from stethoscope.record import printable
from stethoscope.store.inside import read_file

NAME: Final = "companion.log"
MOST_BYTES: Final = 64 << 10
"""Whoever writes begins it anew beyond this."""


def last_line(run: Path) -> str:
    """Its last line, which names the error where there was one, "" where nothing is said."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = read_file(run, NAME, 16 * MOST_BYTES).decode(errors="replace").strip().splitlines()
    return printable(lines[-1].strip(), limit=300) if lines else ""
