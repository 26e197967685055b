"""How files and folders of a run are created: for the user who trains alone, 0600 and 0700, whatever the umask.

A run holds the names of layers, losses, samples and perhaps a command line: on a shared machine others must not read them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
_FLAGS: Final = os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)


def create_file(path: Path) -> int:
    """The descriptor of a new file, open for writing; FileExistsError where there is one, or a link, of that name."""
    return os.open(path, _FLAGS | os.O_WRONLY | os.O_EXCL, FILE_MODE)


def open_file(path: Path) -> int:
    """The descriptor of a file that may be there already, open for reading and writing; a link is refused."""
    return os.open(path, _FLAGS | os.O_RDWR, FILE_MODE)


def create_folder(folder: Path) -> None:
    """Makes one folder, where there is none."""
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
