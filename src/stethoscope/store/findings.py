"""The findings of a run: a framed file of the process that looks for them, durable at every write.

One file for each such process, never one of an earlier process. Readers take the latest version of each. Findings change with every
look, if only by their last step: a process that replaces all of them begins a new file now and then, and its own earlier one goes.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from stethoscope.record import Finding
from stethoscope.store import process
from stethoscope.store.checked import Fields
from stethoscope.store.frame_file import FrameFile, Problem
from stethoscope.store.frames import FORMAT_VERSION, Allowance, FrameKind, build
from stethoscope.store.inside import list_folder, refuse_links
from stethoscope.store.journal import Journal
from stethoscope.store.json_payload import EncodingError, decode_json, encode_json
from stethoscope.store.private import create_folder
from stethoscope.store.runfile import sync_folder

FOLDER: Final = "findings"
SEALING: Final = "sealing"
"""Among failures, what is no detector."""
_MOST_BYTES: Final = 256 << 10
_MOST_ERROR: Final = 1000
FILES: Final = "findings-*.stf"
_NAME: Final = re.compile(r"findings-(\d{4,6})-", re.ASCII)
_MOST_FINDINGS: Final = 1000
"""Handed out at most: ranking compares each with each."""
_HALF_WRITTEN_S: Final = 0.002
_Key = tuple[str, int | None, int, str]


class Search(StrEnum):
    """How far the process came that looked for problems last."""

    NONE = "none"
    CUT_OFF = "cut off"
    """It is gone, or cannot be seen from here, and never said that it was done."""
    UNDER_WAY = "under way"
    COMPLETE = "complete"


class FindingsWriter:
    """Writes findings beside a run. Raises OSError where it cannot: the caller is not the training loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder) / FOLDER
        self._journal: Journal | None = None

    def open(self) -> None:
        """Says who looks, before there is anything to say."""
        self._open_journal().sync()

    def write(
        self,
        findings: Sequence[Finding],
        *,
        replace: bool = False,
        failures: Mapping[str, str] | None = None,
        causes: Sequence[Finding] = (),
    ) -> None:
        """Adds findings, or newer versions of them, durably. `replace` forgets all earlier ones.

        `failures` are those of the process that looks: from a detector's name, or "sealing", to the error. `causes` are those of
        the findings from which the others follow.
        """
        said = {name: error[:_MOST_ERROR] for name, error in (failures or {}).items()}
        told = {"replace": replace, "findings": [finding.to_json() for finding in findings], "failures": said}
        told["causes"] = [position for position, finding in enumerate(findings) if finding in causes]
        body = encode_json(told)
        frame = build(FrameKind.FINDINGS, max((f.last_step for f in findings), default=0), time.time(), body)
        full = self._journal if replace and self._journal and self._journal.num_bytes > _MOST_BYTES else None
        if full is not None:
            self._journal = None
        for is_last in (False, True):
            journal = self._open_journal()
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

    def _open_journal(self) -> Journal:
        if self._journal is None:
            refuse_links(self._folder.parent, FOLDER)
            create_folder(self._folder)  # not those above it: a run folder that someone deleted is not made again
            sync_folder(self._folder.parent)
            names = [_NAME.match(entry.name) for entry in list_folder(self._folder.parent, FOLDER)]
            ordinal = max((int(found[1]) for found in names if found), default=0) + 1
            journal = Journal(self._folder / f"findings-{ordinal:04d}-{secrets.token_hex(4)}.stf")
            head: dict[str, Any] = {"format_version": FORMAT_VERSION, "ordinal": ordinal, "started_at": time.time()}
            head["process"] = process.describe()
            journal.append(build(FrameKind.FILE, 0, time.time(), encode_json(head)))
            self._journal = journal
        return self._journal


class FindingsReader:
    """The findings of a run folder, followed as they come."""

    def __init__(self, folder: Path) -> None:
        self._run, self._allowance = folder, Allowance()
        self._files: dict[str, FrameFile] = {}
        self._batches: dict[str, list[tuple[bool, list[Finding]]]] = {}
        self._failures: dict[str, dict[str, str]] = {}
        self._causes: dict[str, list[Finding]] = {}
        self._problems: list[Problem] = []
        self._lock = threading.Lock()

    def update(self) -> bool:
        """Reads what came since; True where that is anything."""
        with self._lock:
            return self._read_new()

    def _read_new(self) -> bool:
        changed = False
        self._problems = []
        try:
            there = {
                f"{FOLDER}/{entry.name}": entry.mtime
                for entry in list_folder(self._run, FOLDER)
                if is_findings(entry.name)
            }
        except OSError as error:
            self._problems.append(Problem(FOLDER, 0, f"cannot be read: {error.strerror}"))
            there = {}
        for label in self._files.keys() - there.keys():
            del self._files[label]  # replaced by a newer one
            self._batches.pop(label, None)
            self._failures.pop(label, None)
            self._causes.pop(label, None)
        for label, mtime in there.items():
            file = self._files.setdefault(label, FrameFile(self._run, label, self._allowance))
            try:
                changed |= self._take_frames(file)
                if file.tail is not None and time.time() - mtime < 1.0:
                    time.sleep(_HALF_WRITTEN_S)  # perhaps caught in the middle of a write; look once more
                    changed |= self._take_frames(file)
            except FileNotFoundError:
                continue  # replaced by a newer one just now
            except OSError as error:
                self._problems.append(Problem(label, 0, f"cannot be read: {error.strerror}"))
        return changed

    def _take_frames(self, file: FrameFile) -> bool:
        """Takes up a file's new frames; True where there are any."""
        changed = False
        for frame, payload in file.stream():
            if frame.header.kind != FrameKind.FINDINGS:
                changed |= frame.header.kind == FrameKind.END
                continue
            try:
                replace, findings, failures, causes = _decode_findings(payload)
            except EncodingError as error:
                file.damage.append(Problem(file.label, frame.offset, f"a frame cannot be understood: {error}", 1))
                continue
            self._failures[file.label], self._causes[file.label] = failures, causes
            known = self._batches.setdefault(file.label, [])
            if replace:
                known.clear()
            known.append((replace, findings))
            changed = True
        return changed

    def findings(self) -> list[Finding]:
        """The latest version of each, in order of first step; of too many the most severe, and `problems` says so."""
        worst_first = sorted(self._latest_findings(), key=lambda f: (-f.severity.rank, f.first_step, f.code))
        return sorted(worst_first[:_MOST_FINDINGS], key=lambda f: (f.first_step, -f.severity.rank, f.code))

    def _latest_findings(self) -> list[Finding]:
        latest: dict[_Key, Finding] = {}
        for label in sorted(self._batches):
            for replace, findings in list(self._batches[label]):
                if replace:
                    latest.clear()
                for finding in findings:
                    latest[finding.code, finding.rank, finding.first_step, (finding.sites or ("",))[0]] = finding
        return list(latest.values())

    def failures(self) -> dict[str, str]:
        """What failed in the process that looked last: from a detector's name, or "sealing", to the error."""
        return dict(self._failures[max(self._failures)]) if self._failures else {}

    def causes(self) -> list[Finding]:
        """Of what the process that looks last has found, what the rest follows from, as far as it can tell by now."""
        return list(self._causes[max(self._causes)]) if self._causes else []

    def closed(self) -> set[str]:
        """The names of the files whose process has said that nothing follows."""
        return {file.path.name for file in list(self._files.values()) if file.is_closed}

    def search(self) -> Search:
        """How far the search came of the process that began last."""
        files = dict(self._files)
        if not files:
            return Search.NONE
        latest = files[max(files)]
        if latest.is_closed:
            return Search.COMPLETE
        is_alive = process.is_known_alive((latest.head or {}).get("process", {}))
        return Search.UNDER_WAY if is_alive else Search.CUT_OFF

    def problems(self) -> list[Problem]:
        """Damage in the findings' files."""
        found = list(self._problems)
        for file in list(self._files.values()):
            found += file.damage + ([file.tail] if file.tail else [])
        num_left_out = len(self._latest_findings()) - _MOST_FINDINGS
        if num_left_out > 0:
            found.append(
                Problem(
                    FOLDER, 0, f"{num_left_out:,} of the findings are not shown: at most {_MOST_FINDINGS:,} are read"
                )
            )
        return found


def is_findings(name: str) -> bool:
    """Whether this is what a file of findings is called."""
    return name.startswith("findings-") and name.endswith(".stf")


def _decode_findings(payload: bytes) -> tuple[bool, list[Finding], dict[str, str], list[Finding]]:
    fields = Fields(decode_json(payload), "the findings")
    told = fields.object("failures", {})
    names = Fields(told, "the failures")
    failures = {name: names.text(name, most=10_000) for name in told}
    findings = [checked_finding(finding) for finding in fields.items("findings", dict)]
    positions = fields.items("causes", int, [])
    if not all(0 <= position < len(findings) for position in positions):
        raise EncodingError("a cause is none of the findings")
    return fields.flag("replace"), findings, failures, [findings[position] for position in positions]


def checked_finding(body: dict[str, Any]) -> Finding:
    """A finding whose every field is of its type."""
    fields = Fields(body, "a finding")
    fields.text("code", most=1000)
    fields.text("message")
    fields.text("remedy", "")
    fields.whole("first_step", -(2**63), 2**63)
    fields.whole("last_step", -(2**63), 2**63)
    fields.whole("rank", 0, 2**31, None)
    fields.number("confidence", 1.0)
    fields.items("sites", str, [])
    for entry in fields.items("evidence", dict, []):
        evidence = Fields(entry, "a finding's evidence")
        for name in ("unit", "site", "kind", "stat"):
            evidence.text(name, "")
        evidence.text("label")
        if not all(isinstance(entry.get(name), (int, float, type(None))) for name in ("value", "before")):
            raise EncodingError("a finding's evidence is no number")
    try:
        return Finding.from_json(body)
    except (KeyError, TypeError, ValueError) as error:
        raise EncodingError(f"this is not a finding: {error}") from error
