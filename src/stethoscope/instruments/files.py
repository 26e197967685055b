"""Files that are either whole or not there: written beside their place, synced, then moved into it."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np


def write_atomically(path: str | Path, write: Callable[[BinaryIO], None]) -> Path:
    """Calls `write` with a file beside `path`, then moves it there; on any failure `path` is as it was."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(6)}"
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return target


@contextmanager
def placed_beside(path: str | Path) -> Iterator[Path]:
    """A name beside `path` for a program that writes files itself; moved there at the end, gone on any failure."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(6)}"
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    """The text as UTF-8, atomically."""
    return write_atomically(path, lambda file: _write_bytes(file, text.encode()))


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


def _write_bytes(file: BinaryIO, data: bytes) -> None:
    file.write(data)
