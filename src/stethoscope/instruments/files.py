"""What the instruments write: whole files or none, and their records as plain JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stethoscope.views.common.placing import placed_beside


def write_atomically(path: str | Path, write: Callable[[BinaryIO], object]) -> Path:
    """Calls `write` with a file beside `path`, syncs it, then moves it there; on any failure `path` is as it was."""
    with placed_beside(path) as temporary, temporary.open("xb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    return Path(path)


def write_text(path: str | Path, text: str) -> Path:
    """The text as UTF-8, atomically."""
    return write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path: str | Path, value: Any, indent: int | None = 2) -> Path:
    """The value as strict JSON (non-finite numbers become null), atomically."""
    return write_text(path, json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=False) + "\n")


def plain(value: Any) -> Any:
    """Dataclasses, arrays, enums and tuples as what JSON knows; NaN and infinities as None."""
    if isinstance(value, bool) or value is None:
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) else str(value)
