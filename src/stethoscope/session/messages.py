"""What a session says: a line at the start, one for each new cause, one at the end. On stderr, beside any progress bar."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethoscope.instruments.wording import plural
from stethoscope.record import Finding, Severity, printable
from stethoscope.store.losses import lost_steps_text

if TYPE_CHECKING:
    from stethoscope.explain import Diagnosis
    from stethoscope.store import Run

GLYPHS = {Severity.CRITICAL: "◆", Severity.WARNING: "▲", Severity.INFO: "●"}
ASCII_GLYPHS = {Severity.CRITICAL: "X", Severity.WARNING: "!", Severity.INFO: "i"}


def say(line: str) -> None:
    """Print a line without breaking a progress bar or a closed stream."""
    stream = sys.stderr
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "ascii"
    line = line.encode(encoding, "replace").decode(encoding)
    try:
        bars = sys.modules.get("tqdm")
        if bars is not None and getattr(bars.tqdm, "_instances", None):
            bars.tqdm.write(line, file=stream)
        else:
            print(line, file=stream, flush=True)
    except (OSError, ValueError):
        return


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


def closing(diagnosis: Diagnosis, folder: Path, run: Run | None) -> str:
    """How it went and where to look."""
    from stethoscope.explain.headline import reservations

    looked = diagnosis.looked_at
    extent = f"{plural(looked.num_steps, 'step')}, {looked.num_sites:,} of {plural(looked.num_sites_expected, 'site')}"
    if diagnosis.healthy:
        return f"stethoscope: {calm(diagnosis, run)} {extent}. stethoscope show {shown(folder)}"
    first = diagnosis.causes[0]
    more = f" and {len(diagnosis.causes) - 1} more" if len(diagnosis.causes) > 1 else ""
    said = " ".join([f"{first.message.rstrip('.')}{more}.", *reservations(diagnosis)])
    return f"stethoscope: {_glyph(first.severity)} {said} {extent}. stethoscope diagnose {shown(folder)}"


def unwritten(losses: Mapping[str, int], trouble: str) -> str:
    """What of the run never reached the disk, and why, as a sentence; "" where all of it did."""
    steps = lost_steps_text(losses)
    if not steps:
        return ""
    rows = plural(losses.get("dropped_rows", 0), "row")
    return f"{steps}, {rows}, never reached the disk: {printable(trouble or 'it was too slow for them', limit=300)}."


def calm(diagnosis: Diagnosis, run: Run | None) -> str:
    """What is true where there is no cause: nothing, notes, or a crash that nothing explains."""
    from stethoscope.explain.headline import headline

    said = headline(diagnosis, run)
    notes = [finding for finding in diagnosis.findings if finding.severity is Severity.INFO]
    text = said.text if said.kind == "crashed" else said.text[:1].lower() + said.text[1:]
    return f"{text} Worth knowing: {notes[0].message}" if notes else text


def shown(folder: Path) -> str:
    """The folder as a user would type it."""
    try:
        return printable(str(folder.resolve().relative_to(Path.cwd())))
    except ValueError:
        return printable(str(folder))


def _glyph(severity: Severity) -> str:
    encoding = (getattr(sys.stderr, "encoding", None) or "").lower()
    return (GLYPHS if encoding.startswith("utf") else ASCII_GLYPHS)[severity]
