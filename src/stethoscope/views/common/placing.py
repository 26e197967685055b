"""Files and folders of the user's that are either whole or not there: written beside their place, then moved into it."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def placed_beside(path: str | Path, *, makes_folders: bool = True) -> Iterator[Path]:
    """A name beside `path` for a file or a folder to be; moved there at the end, gone on any failure."""
    target = Path(path)
    if makes_folders:
        target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(6)}"
    try:
        yield temporary
        temporary.replace(target)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                temporary.unlink()
