"""What a session says: a line at the start, one for each new cause, one at the end. On stderr, beside any progress bar."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethoscope.record import Finding, Severity, plural, printable
from stethoscope.store.losses import lost_steps_text

if TYPE_CHECKING:
    from stethoscope.explain import Diagnosis

GLYPHS = {Severity.CRITICAL: "◆", Severity.WARNING: "▲", Severity.INFO: "●"}
ASCII_GLYPHS = {Severity.CRITICAL: "X", Severity.WARNING: "!", Severity.INFO: "i"}


def say(line: str) -> None:
    """Print a line without breaking a progress bar or a closed stream."""
    stream = sys.stderr
    if stream is None:
        return
    try:
        encoding = getattr(stream, "encoding", None) or "ascii"
        line = line.encode(encoding, "replace").decode(encoding)
        bars = sys.modules.get("tqdm")
        if bars is not None and getattr(bars.tqdm, "_instances", None):
            bars.tqdm.write(line, file=stream)
        else:
            print(line, file=stream, flush=True)
    except Exception:  # whatever the script put in the place of stderr
        return


class Speaker:
    """Says a session's lines: what concerns the run once, by the first rank; what concerns one process, by each."""

    def __init__(self, *, is_quiet: bool) -> None:
        self.is_quiet, self.rank = is_quiet, 0

    def say(self, line: str) -> None:
        """A line about the run."""
        if line and not self.is_quiet and self.rank == 0:
            say(line)

    def say_of_rank(self, line: str) -> None:
        """What concerns this process alone, so that every rank says it for itself."""
        if line and not self.is_quiet:
            say(line.replace("stethoscope:", f"stethoscope: rank {self.rank}:", 1) if self.rank else line)


def opening(folder: Path, roots: Mapping[str, Any]) -> str:
    """What is watched and where it goes."""
    said = " and ".join(f"{name or type(root).__name__} ({_size(root)})" for name, root in roots.items())
    return f"stethoscope: watching {said}, run {shown(folder)}"


def compiling() -> str:
    """Why the first steps are not measured."""
    return (
        "stethoscope: the GPU kernels are being compiled beside the training, once on this machine; what is not measured until "
        "then is told in the run"
    )


def _size(root: Any) -> str:
    """How many parameters a model has; those of lazy layers are not known before its first forward."""
    from torch.nn.parameter import is_lazy

    parameters = list(root.parameters())
    known = sum(p.numel() for p in parameters if not is_lazy(p))
    more = " and those of lazy layers" if any(map(is_lazy, parameters)) else ""
    return f"{known:,} parameters{more}"


def cause(finding: Finding) -> str:
    """One new cause."""
    return f"stethoscope: {_glyph(finding.severity)} {finding.message} [{finding.code}]"


def closing(diagnosis: Diagnosis, folder: Path) -> str:
    """How it went and where to look."""
    looked = diagnosis.looked_at
    extent = (
        f"{plural(looked.num_steps, 'step')}, {looked.num_sites:,} of {plural(looked.num_sites_expected, 'tensor')}"
    )
    command = "diagnose" if diagnosis.verdict.state.is_trouble else "show"
    return f"stethoscope: {stated(diagnosis)} {extent}. stethoscope {command} {shown(folder)}"


def unwritten(losses: Mapping[str, int], trouble: str) -> str:
    """What of the run never reached the disk, and why, as a sentence; "" where all of it did."""
    steps = lost_steps_text(losses)
    if not steps:
        return ""
    rows = plural(losses.get("dropped_rows", 0), "row")
    return f"{steps}, {rows}, never reached the disk: {printable(trouble or 'it was too slow for them', limit=300)}."


def stated(diagnosis: Diagnosis) -> str:
    """The verdict on one line: its state, its sentence, and the line of code that leads on where there is no cause."""
    from stethoscope.explain import State

    verdict = diagnosis.verdict
    sign = f"{_glyph(verdict.severity)} " if verdict.state.is_trouble else ""
    if verdict.state is State.LEARNS:
        sign = f"{_tick()} "
    if verdict.state is State.TROUBLE:
        more = f" and {len(diagnosis.causes) - 1} more" if len(diagnosis.causes) > 1 else ""
        return " ".join([f"{sign}{verdict.message.rstrip('.')}{more}.", *verdict.reservations])
    said = f"{sign}{verdict.state.label}: {verdict.text}"
    if verdict.line and verdict.state is not State.LEARNS:
        said += f" {verdict.purpose.capitalize()}: {verdict.line.partition('#')[0].strip()}."
    notes = diagnosis.notes
    return f"{said} Worth knowing: {notes[0].message}" if notes else said


def shown(folder: Path) -> str:
    """The folder as a user would type it."""
    try:
        return printable(str(folder.resolve().relative_to(Path.cwd())))
    except (ValueError, OSError):  # elsewhere; or the working folder was deleted
        return printable(str(folder))


def _glyph(severity: Severity) -> str:
    return (GLYPHS if _has_glyphs() else ASCII_GLYPHS)[severity]


def _tick() -> str:
    return "✓" if _has_glyphs() else "ok"


def _has_glyphs() -> bool:
    return (getattr(sys.stderr, "encoding", None) or "").lower().startswith("utf")
