"""The process beside the training: follows the journals, detects, seals, keeps the disk in its budget.

It reads what the training process wrote and nothing else, so it may die, or never start, without training noticing;
a finished run read later says the same. It ends by itself when the run has ended or its parent is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from stethoscope.analyse.span import events_alone, spans
from stethoscope.detect import Detection, registry
from stethoscope.record import Finding
from stethoscope.record.events import SkippedStep
from stethoscope.store import SEAL_BYTES, FindingsWriter, Run, Start, companion_log, open_run
from stethoscope.store.findings import SEALING
from stethoscope.store.locate import rank_folder
from stethoscope.store.reserve import reserve_path
from stethoscope.store.starts import overall

POLL_SECONDS: Final = 0.5
_WAIT_SECONDS: Final = 0.05
SEAL_SECONDS: Final = 10.0
MOST_SECONDS: Final = 600.0
"""A process that seals for longer than this hangs."""
SOON_SECONDS: Final = 0.4
"""Of a last look, within which the process that trained still waits for it."""
ALONE_SECONDS: Final = 5.0
STEPS_AT_ONCE: Final = 512
EVERYTHING: Final = 2**62
"""A step after all others."""
MEMORY_BYTES: Final = 4 << 20
"""Every row is read once, soon after it came: there is little to keep."""
SEAL_SHARE: Final = 16
"""Journals are four times the size of what they are sealed into: of little room they get no more than this part."""
HIGH, LOW = 0.8, 0.7
"""Of the disk's budget: where thinning begins, so that what is written meanwhile has room, and what it goes down to."""


class Companion:
    """Follows one run."""

    def __init__(self, folder: Path, *, disk_bytes: int) -> None:
        self.folder, self._disk_bytes = folder, disk_bytes
        # Half of what would do: sealing takes many times the memory of what is sealed at once.
        self._seal_bytes = min(SEAL_BYTES // 2, disk_bytes // SEAL_SHARE)
        self._run: Run = open_run(folder, memory_bytes=MEMORY_BYTES)
        self._detection = Detection()
        self._seen: int | None = None
        self._num_skips = 4
        self._writer = FindingsWriter(folder)
        with contextlib.suppress(OSError):  # a full disk: tried again with the first findings
            self._writer.open()
        self._written: list[Finding] = []
        self._text = repr([self._written, {}])
        self._sealing_errors: dict[str, str] = {}
        self._weighed: frozenset[tuple[str, int]] = frozenset()
        self._causes: frozenset[tuple[str, int]] = frozenset()

    def look(self, *, final: bool = False) -> list[Finding]:
        """Take in what came since and write what changed; steps that may still grow are left for the next look."""
        self._run.refresh()
        upto = None if final else settled_step(self._run)
        if not final:
            if upto is None:
                return self._look_at_beginnings()
            if self._seen is not None and upto <= self._seen:
                return self._look_at_skips()
        self._observe_blocks(upto)
        return self._tell(self._detection.findings())

    def _look_at_skips(self) -> list[Finding]:
        """A step that never ends: a scaler that skips it again and again is to be told now, and what is said is not kept."""
        skips = len(self._run.events(SkippedStep.KIND, first=self._seen))
        if skips < 2 * self._num_skips:
            return self._written
        self._num_skips = max(skips, 1)
        standing = events_alone(self._run, SkippedStep.KIND, after=self._seen)
        if not standing.events:
            return self._written
        early = copy.deepcopy(self._detection)
        early.observe([standing])
        return self._tell(early.findings())

    def _observe_blocks(self, upto: int | None) -> None:
        """A few steps at a time: the memory it takes does not depend on how much came since the last call."""
        first, last = self._seen, self._run.last_step if upto is None else upto
        while first is not None and last is not None and last - first > STEPS_AT_ONCE:
            self._detection.observe(spans(self._run, after=first, upto=first + STEPS_AT_ONCE))
            self._seen = first = first + STEPS_AT_ONCE
        self._detection.observe(spans(self._run, after=first, upto=upto))
        # Events may stand beyond the last step that has rows; after the final look none of them is to be taken again.
        self._seen = EVERYTHING if upto is None else upto

    def _look_at_beginnings(self) -> list[Finding]:
        """Before the first step is complete there are only events, and more of the same step may come: nothing is kept."""
        if self._run.last_step is not None:
            return self._written
        early = Detection()
        early.observe(spans(self._run))
        return self._tell(early.findings())

    def _tell(self, found: list[Finding]) -> list[Finding]:
        # As text: a NaN in the evidence is not equal to itself, and the same finding would be written every time.
        failures = self._detection.errors | self._sealing_errors
        text = repr([[finding.to_json() for finding in found], failures])
        if text != self._text:
            try:
                self._writer.write(found, replace=True, failures=failures, causes=self._causes_among(found))
            except OSError as error:  # a full disk: tried again at the next look
                log_error(f"findings cannot be written: {error}")
                return found
            self._written, self._text = found, text
        return found

    def _causes_among(self, found: list[Finding]) -> list[Finding]:
        """What the session says while training runs: weighed here, for there it would take the processor from the training."""
        keys = frozenset((finding.code, finding.first_step) for finding in found)
        if keys != self._weighed:  # one that goes on is written again and again
            from stethoscope.explain import weigh  # most trainings never need it

            try:
                _, causes, _ = weigh(self._run, found)
            except Exception:
                log_error(traceback.format_exc())
                causes = ()
            self._weighed, self._causes = keys, frozenset((cause.code, cause.first_step) for cause in causes)
        return [finding for finding in found if (finding.code, finding.first_step) in self._causes]

    def tidy(self, *, final: bool = False) -> None:
        """Seal what is closed, and thin old steps where the disk's budget asks for it."""
        from stethoscope.store import folder_bytes, seal, thin  # pyarrow, which a short run never needs

        seal(self.folder, final=final, at_bytes=self._seal_bytes)
        around = [(f.first_step - 64, f.first_step + 64) for f in self._written]
        if final:
            thin(self.folder, self._disk_bytes, around)
        elif self._seen is not None and folder_bytes(self.folder) > HIGH * self._disk_bytes:
            thin(self.folder, int(LOW * self._disk_bytes), around, upto=self._seen)
        give_memory_back()

    def remove_reserves(self) -> None:
        """Those that killed processes left."""
        self._run.refresh()
        for start in self._run.starts:
            if start.how in ("finished", "crashed"):
                with contextlib.suppress(OSError):
                    reserve_path(rank_folder(self.folder, start.rank), start.token).unlink(missing_ok=True)

    def note_sealing(self, error: str) -> None:
        """How the last seal went, "" where it went well; told with the next findings."""
        self._sealing_errors = {SEALING: error} if error else {}

    @property
    def has_much_to_seal(self) -> bool:
        """Whether the journals have become large, for the room there is."""
        return sum(_size(path) for path in self.folder.glob("rank-*/journal-*.stj")) > 2 * self._seal_bytes

    def finish(self) -> None:
        """Read every remaining step, then say that the search is complete."""
        if not self.look(final=True):
            # Searched, and nothing found: not the same as not searched.
            self._writer.write([], replace=True, failures=self._detection.errors | self._sealing_errors)
        self._writer.close()

    def has_ended_by_now(self) -> bool:
        """Whether the run, read again, says that nothing follows."""
        self._run.refresh()
        return self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether the run says that nothing follows."""
        # Not the run's own state, which says "damaged" of one that has ended and lost something on the way.
        if any(start.how == "live" for start in self._run.starts):
            return False  # of two processes in one run the first may be the last to end
        return overall(self._run.starts) in ("finished", "crashed")


def settled_step(run: Run) -> int | None:
    """The last step to which nothing can be added: before the newest of the rank that is farthest behind.

    A process that continues a run may write steps again that an earlier one had; until its first row is there, none are
    settled. Ranks that have ended are not waited for.
    """
    latest: dict[int, Start] = {}
    for start in run.starts:
        known = latest.get(start.rank)
        if known is None or start.ordinal >= known.ordinal:
            latest[start.rank] = start
    writing = [start for start in latest.values() if start.how == "live"] or list(latest.values())
    if run.last_step is None or any(start.last_step is None for start in writing):
        return None
    return min((start.last_step - 1 for start in writing if start.last_step is not None), default=run.last_step - 1)


def follow(folder: Path, parent: int, disk_bytes: int) -> None:
    """The loop of the process."""
    companion = Companion(folder, disk_bytes=disk_bytes)
    sealed = time.monotonic()
    at_work: int | None = None
    while True:
        if not folder.is_dir():
            return  # somebody deleted it
        companion.look()
        if companion.has_ended or not _is_alive(parent):
            break
        if time.monotonic() - sealed > SEAL_SECONDS or companion.has_much_to_seal:
            at_work = tidy_in_child(companion)
            sealed = time.monotonic()
        time.sleep(POLL_SECONDS)
    ended = time.monotonic()
    companion.finish()
    if time.monotonic() - ended > SOON_SECONDS:
        leave_the_folder_alone(folder, parent)
    if at_work is not None:
        wait_for_child(at_work, lambda: False)  # it holds the lock
    try_to_tidy(companion, final=True)
    companion.remove_reserves()


def leave_the_folder_alone(folder: Path, parent: int) -> None:
    """Make no file while the process that trained may be deleting the folder, as one does at the end of a temporary one.

    It waited for us while we were quick, and waits no longer. Emptying a folder in which a new file appears fails, in its own code.
    """
    until = time.monotonic() + ALONE_SECONDS
    while folder.is_dir() and _is_alive(parent) and time.monotonic() < until:
        time.sleep(_WAIT_SECONDS)


def tidy_in_child(companion: Companion) -> int | None:
    """Tidy in a process of its own, and wait for it: whatever memory sealing and thinning took goes with it.

    One that breaks, or is killed, leaves nothing but files that the next one sweeps up. Where the run ends meanwhile `stop()` waits for
    the last findings: then it is left at work, and told by its id.
    """
    if not hasattr(os, "fork") or threading.active_count() > 1:
        companion.note_sealing(try_to_tidy(companion))
        return None
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, (try_to_tidy(companion) or "done").encode()[:1000])
        os._exit(0)
    os.close(tell)
    with os.fdopen(hear, "rb") as answer:
        if not wait_for_child(child, companion.has_ended_by_now):
            return child
        said = answer.read().decode(errors="replace")
    companion.note_sealing(
        "" if said == "done" else said or "the process that seals was killed, perhaps for its memory"
    )
    give_memory_back()  # of what was read meanwhile
    return None


def try_to_tidy(companion: Companion, *, final: bool = False) -> str:
    """Tidy, and say what went wrong, "" where nothing did."""
    try:
        companion.tidy(final=final)
    except Exception as error:
        log_error(traceback.format_exc())
        return f"{type(error).__name__}: {error}"
    return ""


def log_error(text: str) -> None:
    """To the log of this process, which begins anew when it has become long."""
    with contextlib.suppress(OSError, ValueError):
        if os.fstat(2).st_size > companion_log.MOST_BYTES:
            os.ftruncate(2, 0)
            os.lseek(2, 0, os.SEEK_SET)
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is the log


def wait_for_child(child: int, is_enough: Callable[[], bool]) -> bool:
    """Waits until a process of ours has ended, or it is enough: then False. One that hangs is ended; the next sweeps up."""
    begun = looked = time.monotonic()
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        time.sleep(_WAIT_SECONDS)
        now = time.monotonic()
        if now - begun > MOST_SECONDS:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
        if now - looked > POLL_SECONDS:
            if is_enough():
                return False
            looked = now
    return True


def give_memory_back() -> None:
    """Return to the system what sealing needed for a moment: the allocators would keep it for ever."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # glibc has it, musl does not
        trim(0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # sealed meanwhile
        return 0


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of `python -m stethoscope.companion`."""
    parser = argparse.ArgumentParser(prog="stethoscope.companion")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--disk", type=int, default=2 << 30)
    parser.add_argument("--detector", action="append", default=[], metavar="MODULE:CLASS")
    given = parser.parse_args(argv)
    registry.use(given.detector)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # its own pools hold on to what a seal needed
    with contextlib.suppress(OSError):
        os.nice(10)
    follow(given.folder, given.parent, given.disk)
    return 0


if __name__ == "__main__":
    sys.exit(main())
