"""The findings of a run: a framed file of the process that looks for them, durable at every write.

One file for each such process, never one of an earlier process. Readers take the latest version of each. Findings change with every
look, if only by their last step: a process that replaces all of them begins a new file now and then, and its own earlier one goes.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stethoscope.record import Finding
from stethoscope.store.encoding import EncodingError, decode_json, encode_json
from stethoscope.store.frames import FORMAT_VERSION, FrameKind, build
from stethoscope.store.journal import Journal
from stethoscope.store.runfile import make_durable_folder
from stethoscope.store.scan import FrameFile, Problem

FOLDER: Final = "findings"
_MOST_BYTES: Final = 256 << 10
FILES: Final = "findings-*.stf"
_HALF_WRITTEN_S: Final = 0.002
_Key = tuple[str, int | None, int, str]


class FindingsWriter:
    """Writes findings beside a run. Raises OSError where it cannot: the caller is not the training loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder) / FOLDER
        self._journal: Journal | None = None

    def write(self, findings: Sequence[Finding], *, replace: bool = False) -> None:
        """Adds findings, or newer versions of them, durably. `replace` forgets all earlier ones."""
        body = encode_json({"replace": replace, "findings": [finding.to_json() for finding in findings]})
        frame = build(FrameKind.FINDINGS, max((f.last_step for f in findings), default=0), time.time(), body)
        full = self._journal if replace and self._journal and self._journal.num_bytes > _MOST_BYTES else None
        if full is not None:
            self._journal = None
        for is_last in (False, True):
            journal = self._open()
            try:
                journal.append(frame)
                journal.sync()
            except OSError:
                journal.close()
                self._journal = None
                if is_last:
                    raise
            else:
                if full is not None:
                    full.discard()  # only now: what replaces it is durable
                return

    def close(self) -> None:
        """Says that nothing follows, and closes the file."""
        if self._journal is not None:
            self._journal.append(build(FrameKind.END, 0, time.time(), b"{}"))
            self._journal.sync()
            self._journal.close()
            self._journal = None

    def _open(self) -> Journal:
        if self._journal is None:
            make_durable_folder(self._folder)
            numbers = [path.stem.split("-")[1] for path in self._folder.glob("findings-*-*.stf")]
            ordinal = max((int(number) for number in numbers if number.isdecimal()), default=0) + 1
            journal = Journal(self._folder / f"findings-{ordinal:04d}-{secrets.token_hex(4)}.stf")
            head = {"format_version": FORMAT_VERSION, "ordinal": ordinal, "started_at": time.time()}
            journal.append(build(FrameKind.FILE, 0, time.time(), encode_json(head)))
            self._journal = journal
        return self._journal


class FindingsReader:
    """The findings of a run folder, followed as they come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._files: dict[str, FrameFile] = {}
        self._batches: dict[str, list[tuple[bool, list[Finding]]]] = {}
        self._problems: list[Problem] = []
        self._lock = threading.Lock()

    def update(self) -> bool:
        """Reads what came since; True where that is anything."""
        with self._lock:
            return self._update()

    def _update(self) -> bool:
        changed = False
        self._problems = []
        paths = sorted(self._folder.glob(FILES))
        for label in self._files.keys() - {f"{FOLDER}/{path.name}" for path in paths}:
            del self._files[label]  # replaced by a newer one
            self._batches.pop(label, None)
        for path in paths:
            label = f"{FOLDER}/{path.name}"
            file = self._files.setdefault(label, FrameFile(path, label))
            try:
                new = file.advance()
                if file.tail is not None and time.time() - path.stat().st_mtime < 1.0:
                    time.sleep(_HALF_WRITTEN_S)  # perhaps caught in the middle of a write; look once more
                    new += file.advance()
            except FileNotFoundError:
                continue  # replaced by a newer one just now
            except OSError as error:
                self._problems.append(Problem(label, 0, f"cannot be read: {error.strerror}"))
                continue
            for frame, payload in new:
                if frame.header.kind == FrameKind.FINDINGS:
                    batch = _decode(payload)
                    kept = [] if batch[0] else self._batches.get(label, [])
                    self._batches[label] = [*kept, batch]
                    changed = True
        return changed

    def findings(self) -> list[Finding]:
        """The latest version of each, in order of first step."""
        latest: dict[_Key, Finding] = {}
        for label in sorted(self._batches):
            for replace, findings in list(self._batches[label]):
                if replace:
                    latest.clear()
                for finding in findings:
                    latest[finding.code, finding.rank, finding.first_step, (finding.sites or ("",))[0]] = (
                        finding
                    )
        return sorted(latest.values(), key=lambda f: (f.first_step, -f.severity.rank, f.code))

    def closed(self) -> set[str]:
        """The names of the files whose process has said that nothing follows."""
        return {file.path.name for file in list(self._files.values()) if file.is_closed}

    def problems(self) -> list[Problem]:
        """Damage in the findings' files."""
        found = list(self._problems)
        for file in list(self._files.values()):
            found += file.damage + ([file.tail] if file.tail else [])
        return found


def _decode(payload: bytes) -> tuple[bool, list[Finding]]:
    body = decode_json(payload)
    try:
        return bool(body["replace"]), [Finding.from_json(finding) for finding in body["findings"]]
    except (KeyError, TypeError, ValueError) as error:
        raise EncodingError(f"these are not findings: {error}") from error
