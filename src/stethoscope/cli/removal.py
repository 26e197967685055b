"""Taking a run away for good, and nothing else.

Promises: only a folder that opens as a run is removed, never through a link, never a live one, never one that
holds files which are not a run's. The folder is renamed first, so that no reader sees half of it.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stethoscope.cli.errors import UsageError
from stethoscope.record import plural

if TYPE_CHECKING:
    from stethoscope.views.common.glyphs import Screen
    from stethoscope.views.common.styled_text import Line

_OURS = re.compile(
    r"run\.json|\.gitignore|rank-\d+|findings|captures|profile|rows|scalars|events|vectors|pyramids?|ladder|manifest.*"
    r"|\.run\.json\..*\.new|[a-z_]+\.lock"
)


def check_removable(folder: Path) -> None:
    """UsageError where this folder must not be removed."""
    from stethoscope.store import open_run

    if folder.is_symlink():
        raise UsageError("This is a link, not a run folder", where=folder, do="Name the folder it points to")
    with open_run(folder) as run:
        state = run.state
        if any(start.how == "live" for start in run.starts) or state == "live":
            raise UsageError("The run is live", where=folder, do="Stop it first, or wait for it to end")
    strangers = strange_files(folder)
    if strangers:
        names = ", ".join(strangers[:3])
        raise UsageError(
            f"The folder holds files that are not the run's ({names})",
            where=folder,
            do="Move them away, or remove the folder by hand",
        )


def strange_files(folder: Path) -> list[str]:
    """Names in the run folder that no run writes."""
    from stethoscope.store.inside import list_folder

    return [entry.name for entry in list_folder(folder) if not _OURS.fullmatch(entry.name)]


def remove(folder: Path) -> None:
    """Removes a run folder that was checked; of links in it only the links."""
    from stethoscope.store.inside import remove_run

    gone = folder.with_name(f".removed-{secrets.token_hex(4)}-{folder.name}")
    try:
        folder.rename(gone)
        remove_run(gone)
    except OSError as error:
        raise UsageError(f"The run cannot be removed ({error.strerror})", where=folder) from error


def size_of(folder: Path) -> int:
    """Bytes of all files in the folder; what vanishes meanwhile counts nothing."""
    from stethoscope.store import folder_bytes

    return folder_bytes(folder)


def folder_lines(sizes: Mapping[Path, int], screen: Screen) -> list[Line]:
    """The folders that are to go, and what each takes."""
    from stethoscope.views.common import numbers
    from stethoscope.views.common.styled_text import NOTE

    return [
        [(screen.name(str(folder), screen.width - 12), ""), (f"  {numbers.size(num_bytes)}", NOTE)]
        for folder, num_bytes in sizes.items()
    ]


def confirmed(folders: Sequence[Path], num_bytes: int, *, yes: bool) -> bool:
    """Whether to go on: --yes, or a person who says so; without either it is refused."""
    from stethoscope.views.common import numbers

    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("Removing needs a yes", do="Add --yes")
    question = f"Remove {plural(len(folders), 'run')}, {numbers.size(num_bytes)}? [y/N] "
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
