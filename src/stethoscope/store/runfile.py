"""Small JSON files that are replaced whole: run.json and the manifests.

Promises: a reader sees the old file or the new one, never half of one; every byte is under a SHA-256 that the
file carries in its last line; a file of a newer format is refused by name instead of being misread.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import Any, Final

from stethoscope.record import RunDamagedError, RunFormatError, RunNotFoundError
from stethoscope.store.frames import FORMAT_VERSION
from stethoscope.store.inside import read_file
from stethoscope.store.json_payload import EncodingError, decode_json
from stethoscope.store.private import create_file, create_folder

RUN_FILE: Final = "run.json"
MAX_FILE: Final = 32 << 20
"""A hundred thousand sites take half of it."""
_MARK: Final = b'\n"sha256": "'
_TAIL: Final = b'"}\n'
_DO: Final = "Restore it from a copy, or read the rows alone: open_run(path, trust_description=False)"


def dump(body: dict[str, Any], *, indent: int | None = 1) -> bytes:
    """The file's bytes: JSON whose last line is the hash of all that comes before it."""
    versioned = {"format_version": FORMAT_VERSION, **body}
    text = json.dumps(versioned, ensure_ascii=True, default=str, indent=indent).encode("ascii")
    head = text[: text.rindex(b"}")].rstrip() + b","
    return head + _MARK + hashlib.sha256(head).hexdigest().encode("ascii") + _TAIL


def parse(data: bytes, where: object) -> dict[str, Any]:
    """The body of the file; RunDamagedError where the hash does not match, RunFormatError if newer."""
    head, mark, _ = data.rpartition(_MARK)
    if not mark or data != head + _MARK + hashlib.sha256(head).hexdigest().encode("ascii") + _TAIL:
        raise RunDamagedError(
            "The file does not match its own checksum",
            where=where,
            do=_DO,
        )
    try:
        body = decode_json(data)
    except EncodingError as error:
        raise RunDamagedError(f"The file cannot be understood ({error})", where=where, do=_DO) from error
    if not isinstance(body, dict):
        raise RunDamagedError("The file holds no object", where=where, do=_DO)
    version = body.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version > FORMAT_VERSION:
        raise RunFormatError(
            f"The run has format {version}, this program reads up to {FORMAT_VERSION}",
            where=where,
            do="Read it with a newer version: pip install -U stethoscope",
        )
    body.pop("sha256", None)
    return dict(body)


def load(run: Path, label: str = RUN_FILE) -> dict[str, Any]:
    """The body of such a file of a run."""
    path = run / label
    try:
        data = read_file(run, label, MAX_FILE)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunNotFoundError(
            "There is no run here", where=path, do="`stethoscope list` shows what there is"
        ) from error
    except OSError as error:
        raise RunDamagedError(f"The file cannot be read ({error.strerror})", where=path, do=_DO) from error
    return parse(data, path)


def write_durably(path: Path, data: bytes) -> None:
    """Puts a whole file in place: written beside it, fsynced, renamed, the folder fsynced."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    descriptor = create_file(beside)
    try:
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(beside, path)  # noqa: PTH105 - one name for the system call that the fault tests count
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    sync_folder(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    """Every byte, or OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def make_durable_folder(folder: Path) -> None:
    """Makes a folder and those above it; each new name is fsynced, or a power cut could take it back."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_durable_folder(folder.parent)
    if folder.exists():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    create_folder(folder)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Makes names in a folder durable, where the system has a way to."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
