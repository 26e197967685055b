"""Compiled device code on the disk: one file a variant, whole or not there.

It lies in Triton's cache folder, under a key of everything it depends on: our device code, Triton's version and the device's
capability. A file begins with a line that describes it and a checksum of the rest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stethoscope.kernels.variants import Variant

SOURCES: Final = (
    "variants.py",
    "triton_kernels.py",
    "triton_elements.py",
    "triton_merging.py",
    "triton_extras.py",
    "compiling.py",
)
ENDING: Final = ".cubin"


@dataclasses.dataclass(frozen=True, slots=True)
class Binary:
    """The device code of one variant, and what must be known to launch it."""

    name: str
    """The function's."""
    warps: int
    shared: int
    num_arguments: int
    num_scratch: int
    """Pointers to nothing that follow the arguments."""
    image: bytes


@functools.cache
def folder_for(capability: int) -> Path:
    """Where the code for devices of this capability lies; made where it can be, else one of this process alone."""
    own = Path(__file__).parent
    parts = [_compiler(), str(capability), *((own / name).read_text() for name in SOURCES)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    folder = _cache_folder() / f"stethoscope-sm{capability}-{key}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="stethoscope-kernels-"))


def _compiler() -> str:
    """Which Triton there is, whatever name it was installed by: the file that holds its version."""
    found = importlib.util.find_spec("triton")
    return Path(found.origin).read_text() if found is not None and found.origin else ""


def _cache_folder() -> Path:
    """Triton's, found as Triton does, but without importing it."""
    named = os.environ.get("TRITON_CACHE_DIR")
    if named:
        return Path(named)
    return Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


def exists(folder: Path, variant: Variant) -> bool:
    """Whether it was compiled."""
    return (folder / (variant.name + ENDING)).exists()


def write(folder: Path, variant: Variant, binary: Binary) -> None:
    """Keep it; who reads at the same time finds the whole file or none."""
    described = {field.name: getattr(binary, field.name) for field in dataclasses.fields(Binary)}
    image = described.pop("image")
    described["sha256"] = hashlib.sha256(image).hexdigest()
    partial = folder / f"{variant.name}.{os.getpid()}"
    partial.write_bytes(json.dumps(described).encode() + b"\n" + image)
    partial.replace(folder / (variant.name + ENDING))


def read(folder: Path, variant: Variant) -> Binary | None:
    """The code of a variant; None where it is not there or damaged, which then is removed."""
    path = folder / (variant.name + ENDING)
    try:
        line, _, image = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    try:
        described = json.loads(line)
        if described.pop("sha256") == hashlib.sha256(image).hexdigest():
            return Binary(**described, image=image)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    with contextlib.suppress(OSError):
        path.unlink()
    return None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else meanwhile, where the file system knows locks."""
    with path.open("a") as door:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(door, fcntl.LOCK_EX)
        yield
