"""The only way to the files of a run folder: nothing in it is followed out of it.

A run folder may come from anywhere. What lies in it is opened component by component below the run's own folder, never through a
symbolic link; only plain files are read, up to a size that its kind can have; listings are bounded; removing takes a name away and never
what a link points to. The run folder itself may be reached through a link: that is what the user typed.
Refusals are OSError with the name and the reason, so code that handles an unreadable file handles these too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import os
import shutil
import stat
from collections.abc import Iterator
from os import open as _system_open
from pathlib import Path
from typing import Final

MOST_ENTRIES: Final = 50_000
"""In one folder; a run of a million steps has some hundreds."""
_MOST_DEPTH: Final = 4
_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
_HAS_OPENAT: Final = os.open in os.supports_dir_fd and os.unlink in os.supports_dir_fd


class RefusedFileError(OSError):
    """A name in a run folder that is not a plain file or folder of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A name in a folder of a run, as it is itself: a link is neither file nor folder."""

    name: str
    is_file: bool
    is_folder: bool
    num_bytes: int
    mtime: float


def open_file(run: Path, label: str, most_bytes: int) -> io.FileIO:
    """A plain file of the run open for reading, not larger than this."""
    descriptor = _open(run, label, _FILE | _NO_LINK)
    try:
        found = os.fstat(descriptor)
        _require_plain(found, run, label)
        if found.st_size > most_bytes:
            raise _refusal(
                run, label, f"has {found.st_size:,} bytes, more than the {most_bytes:,} that such a file can have"
            )
        return io.FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(run: Path, label: str, most_bytes: int) -> bytes:
    """The bytes of a plain file of the run, not larger than this."""
    with open_file(run, label, most_bytes) as file:
        return read_fully(file, most_bytes)


def read_fully(file: io.FileIO, most_bytes: int) -> bytes:
    """So many bytes from here on, fewer only at the file's end. Of a file that grows, those it has now."""
    count = min(most_bytes, os.fstat(file.fileno()).st_size - file.tell())
    parts: list[bytes] = []
    while count > 0:
        part = file.read(count)
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def stat_file(run: Path, label: str) -> os.stat_result:
    """Size and times of a plain file of the run."""
    with _parent(run, label) as (parent, name):
        found = _stat(parent, name)
    _require_plain(found, run, label)
    return found


def list_folder(run: Path, label: str = "") -> list[Entry]:
    """What lies in a folder of the run, by name; empty where there is none. OSError where it is no folder of the run."""
    try:
        descriptor = _open(run, label, _FOLDER | _NO_LINK) if label else _system_open(run, _FOLDER)
    except FileNotFoundError:
        return []
    try:
        with os.scandir(descriptor if _HAS_OPENAT else run / label) as found:
            entries: list[Entry] = []
            for item in found:
                if len(entries) >= MOST_ENTRIES:
                    raise _refusal(run, label, f"holds more than {MOST_ENTRIES:,} names")
                with contextlib.suppress(FileNotFoundError):  # sealed or swept away meanwhile
                    entries.append(_make_entry(item))
    finally:
        os.close(descriptor)
    return sorted(entries, key=lambda entry: entry.name)


def folder_bytes(run: Path) -> int:
    """The size of all plain files in the run's folder."""
    return _folder_bytes(run, "", _MOST_DEPTH)


def remove_file(run: Path, label: str) -> None:
    """Takes one name away: a file, or a link itself. OSError where it is a folder."""
    with _parent(run, label) as (parent, name):
        if isinstance(parent, int):
            os.unlink(name, dir_fd=parent)
        else:
            (parent / name).unlink()


def remove_run(folder: Path) -> None:
    """Removes a whole run folder; of links in it only the links."""
    shutil.rmtree(folder)  # by open folders, refusing links, wherever the system can


def refuse_links(run: Path, label: str) -> None:
    """OSError where a component of a path that is about to be written is there and is not a folder of the run."""
    parent = run
    for part in _path_parts(label):
        parent /= part
        try:
            found = parent.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(found.st_mode):
            raise _refusal(run, label, f"{_file_kind(found.st_mode)} lies in its way")


def _open(run: Path, label: str, flags: int) -> int:
    with _parent(run, label) as (parent, name):
        try:
            if isinstance(parent, int):
                return _system_open(name, flags, dir_fd=parent)
            _refuse_link_itself(parent / name, run, label)
            return _system_open(parent / name, flags)
        except OSError as error:
            raise _named(error, run, label) from error


@contextlib.contextmanager
def _parent(run: Path, label: str) -> Iterator[tuple[int | Path, str]]:
    """The open folder that holds a name, reached without a link; where the system has no openat, its path, tested."""
    *folders, name = _path_parts(label)
    if not _HAS_OPENAT:
        if folders:
            refuse_links(run, "/".join(folders))
        yield run.joinpath(*folders), name
        return
    try:
        parent = _system_open(run, _FOLDER)
        for folder in folders:
            outer = parent
            try:
                parent = _system_open(folder, _FOLDER | _NO_LINK, dir_fd=outer)
            finally:
                os.close(outer)
    except OSError as error:
        raise _named(error, run, label) from error
    try:
        yield parent, name
    finally:
        os.close(parent)


def _path_parts(label: str) -> list[str]:
    parts = label.split("/")
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts):
        raise RefusedFileError(errno.EINVAL, "is no name inside of a run folder", label)
    return parts


def _make_entry(item: os.DirEntry[str]) -> Entry:
    found = item.stat(follow_symlinks=False)
    is_file = stat.S_ISREG(found.st_mode)
    return Entry(item.name, is_file, stat.S_ISDIR(found.st_mode), found.st_size if is_file else 0, found.st_mtime)


def _folder_bytes(run: Path, label: str, depth: int) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for entry in list_folder(run, label):
            total += entry.num_bytes
            if entry.is_folder and depth:
                total += _folder_bytes(run, f"{label}/{entry.name}".lstrip("/"), depth - 1)
    return total


def _stat(parent: int | Path, name: str) -> os.stat_result:
    if isinstance(parent, int):
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    return (parent / name).lstat()


def _require_plain(found: os.stat_result, run: Path, label: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _refusal(run, label, f"is {_file_kind(found.st_mode)}, not a plain file")


def _refuse_link_itself(path: Path, run: Path, label: str) -> None:
    if path.is_symlink():
        raise _refusal(run, label, "is a symbolic link, which is not followed")


def _file_kind(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a folder",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFREG: "a file",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")


def _refusal(run: Path, label: str, why: str) -> RefusedFileError:
    return RefusedFileError(errno.EPERM, why, str(run / label))


def _named(error: OSError, run: Path, label: str) -> OSError:
    """The error with the file's whole name; a link that was not followed and a socket say so in words."""
    whole = str(run / label)
    if error.errno == errno.ELOOP:
        return RefusedFileError(errno.EPERM, "is, or lies behind, a symbolic link, which is not followed", whole)
    if error.errno == errno.ENXIO:
        return RefusedFileError(errno.EPERM, "is a socket or a FIFO, not a plain file", whole)
    if isinstance(error, NotADirectoryError) and run.is_dir():
        return RefusedFileError(errno.EPERM, "is, or lies behind, a link or file where a folder belongs", whole)
    return OSError(error.errno, error.strerror, whole)
