"""`stethoscope doctor`: how this installation is doing, or how a run's recording went."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethoscope.cli.choose import choose_run
from stethoscope.cli.options import add_output, add_run, emit, emit_json, screen_of
from stethoscope.record import plural

if TYPE_CHECKING:
    from stethoscope.explain import LookedAt
    from stethoscope.store import Run
    from stethoscope.views.common.glyphs import Screen
    from stethoscope.views.common.styled_text import Line

PACKAGES = {
    "numpy": "",
    "pyarrow": "",
    "zstandard": "",
    "rich": "",
    "torch": "torch",
    "duckdb": "sql",
    "matplotlib": "plots",
    "networkx": "graph",
    "safetensors": "captures",
}
"""What is used, and the extra that brings it where it is not always there."""

Fact = tuple[str, str, bool]
"""What, how it stands, and whether that is fine."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A run, or none for the installation."""
    add_run(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Says what is fine and what is not; the exit code stays 0, for this reports and does not judge."""
    if args.run is None:
        facts = installation()
        body: dict[str, Any] = {"installation": _as_json(facts)}
        needs: tuple[str, ...] = ()
    else:
        from stethoscope.explain import diagnose

        with choose_run(args.run) as found:
            looked_at = diagnose(found).looked_at
            facts, needs = recording(found, looked_at), looked_at.unmet_needs
            body = {"run": found.id, "path": str(found.path), "recording": _as_json(facts)}
            body["unmet_needs"] = list(needs)
    if args.json:
        emit_json(body)
    else:
        screen = screen_of(args)
        emit(screen, fact_lines(facts, screen) + need_lines(needs, screen))
    return 0


def _as_json(facts: list[Fact]) -> list[dict[str, Any]]:
    return [{"what": what, "how": how, "fine": fine} for what, how, fine in facts]


def fact_lines(facts: list[Fact], screen: Screen) -> list[Line]:
    """A quiet table; only what is not fine has a sign."""
    from stethoscope.views.common.styled_text import NOTE, PLAIN, WARNING, pad, wrap

    gutter = max(len(what) for what, _, _ in facts)
    sign = pad("!" if screen.ascii else "▲", 2)
    lines: list[Line] = []
    for what, how, fine in facts:
        head: Line = [("  ", "")] if fine else [(sign, WARNING)]
        pieces = wrap(screen.text(how), screen.width - gutter - 4)
        lines.append([*head, (pad(what, gutter + 2), NOTE), (pieces[0], PLAIN)])
        lines += [[(" " * (gutter + 4), ""), (piece, PLAIN)] for piece in pieces[1:]]
    return lines


def need_lines(needs: tuple[str, ...], screen: Screen) -> list[Line]:
    """What the script could log, and what that would show."""
    from stethoscope.views.common.styled_text import NOTE, PLAIN, wrap

    if not needs:
        return []
    lines: list[Line] = [[], [("  log more to detect more", NOTE)]]
    for need in needs:
        first, *rest = wrap(screen.text(need), screen.width - 4)
        lines.append([(f"  {screen.glyphs.dot} ", NOTE), (first, PLAIN)])
        lines += [[("    ", ""), (piece, PLAIN)] for piece in rest]
    return lines


def installation() -> list[Fact]:
    """Versions, the kernels' backend, the folder of runs."""
    from stethoscope import __version__
    from stethoscope.store.locate import base_folder, find_runs

    facts: list[Fact] = [
        ("stethoscope", __version__, True),
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}", True),
        ("kernels", kernels_backend(), True),
    ]
    for package, extra in PACKAGES.items():
        try:
            facts.append((package, importlib.metadata.version(package), True))
        except importlib.metadata.PackageNotFoundError:
            how = f'not installed; pip install "stethoscope[{extra}]"' if extra else "not installed, but needed"
            facts.append((package, how, bool(extra)))
    base = base_folder()
    how, fine = _can_write(base)
    facts.append(("runs", str(base.absolute()), True))
    facts.append(("", f"{plural(len(find_runs(base)), 'run')}, {how}", fine))
    if os.environ.get("STETHOSCOPE_MODE", "").lower() == "off":
        facts.append(("mode", "STETHOSCOPE_MODE=off: nothing is watched", False))
    return facts


def kernels_backend() -> str:
    """What measures tensors on this machine, as far as can be said without importing torch."""
    try:
        from stethoscope import kernels
    except ImportError as error:
        return f"cannot be loaded ({error})"
    backend = getattr(kernels, "backend", None)
    return "portable" if backend is None else str(backend())


def _can_write(base: Path) -> tuple[str, bool]:
    """Whether a run could be begun here, by the nearest folder that exists."""
    folder = base.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return f"cannot be used: {folder} is not a folder", False
    if os.access(folder, os.W_OK | os.X_OK):
        return "writable", True
    return f"not writable: {folder}; set STETHOSCOPE_DIR to a folder that is", False


def recording(run: Run, looked_at: LookedAt) -> list[Fact]:
    """Coverage, losses, damage, how it ended, what recording cost."""
    from stethoscope.store import companion_log
    from stethoscope.store.findings import SEALING
    from stethoscope.views.common import numbers, run_status

    reporting, expected = run_status.coverage(run, looked_at)
    rows_lost = run_status.num_rows_lost(run)
    cost = run_status.step_cost(run)
    begun = run_status.started_at(run)
    facts: list[Fact] = [
        ("run", f"{run.name}, {run.id}, {run.path}", True),
        ("state", run_status.state_text(run), run.state in ("live", "finished")),
        ("started", run_status.clock(begun) if begun is not None else "not known", begun is not None),
        ("process starts", plural(len(run.starts), "start") + f", ranks {_rank_list(run)}", True),
        ("steps", _step_text(run), len(run.steps) > 0),
        (
            "tensors",
            f"{numbers.count(reporting)} of {numbers.count(expected)} recorded",
            reporting >= expected,
        ),
    ]
    facts += [("mixed", mixture, False) for mixture in looked_at.mixtures]
    facts += [("passed by", words, False) for words in looked_at.unmeasured]
    facts += _silent_sites(run)
    facts.append(("rows lost", numbers.count(rows_lost), rows_lost == 0))
    facts += _loss_facts(run)
    facts += [("detector failed", broken, False) for broken in looked_at.broken_detectors]
    complaint = companion_log.last_line(run.path)
    facts += [("companion", f"its log ends: {complaint}", False)] if complaint else []
    facts += [("sealing failed", error, False) for name, error in run.failures().items() if name == SEALING]
    facts += _damage_facts(run)
    facts.append(("cost", str(cost) if cost is not None else "not recorded", True))
    return facts


def _loss_facts(run: Run) -> list[Fact]:
    """Steps that never reached the disk, and what else the process that recorded says it lost."""
    from stethoscope.store import losses as store_losses
    from stethoscope.views.common import numbers

    losses = run.losses
    facts: list[Fact] = []
    if steps := store_losses.lost_steps_text(losses):
        why = next(
            (str(start.ended["trouble"]) for start in run.starts if start.ended and start.ended.get("trouble")), ""
        )
        facts.append(("steps lost", f"{steps} never reached the disk{f': {why}' if why else ''}", False))
    since = losses.get(store_losses.UNWRITTEN_SINCE)
    if since is not None:
        what = f"the disk was full: step {numbers.count(since)} and later were in memory only when this was written"
        facts.append(("steps lost" if run.state != "live" else "not written", what, False))
    steps_of = {store_losses.LOST_STEPS, store_losses.FIRST_LOST, store_losses.LAST_LOST, store_losses.UNWRITTEN_SINCE}
    facts += [
        (f"lost: {name.replace('_', ' ')}", numbers.count(int(amount)), False)
        for name, amount in losses.items()
        if amount and name not in {"dropped_rows", *steps_of}
    ]
    return facts


def _damage_facts(run: Run) -> list[Fact]:
    """What cannot be trusted on disk; a last frame cut short by a crash is no damage."""
    from stethoscope.views.common import numbers

    problems = run.problems
    facts: list[Fact] = []
    for problem in problems[:8]:
        where = f"{problem.file} at byte {numbers.count(problem.offset)}"
        torn = bool(getattr(problem, "is_torn_tail", False))
        facts.append(("torn end" if torn else "damage", f"{where}: {problem.what}", torn))
    if len(problems) > 8:
        facts.append(("", f"and {numbers.count(len(problems) - 8)} more", False))
    return facts or [("damage", "none, every checksum matches", True)]


def _rank_list(run: Run) -> str:
    return ", ".join(str(rank) for rank in run.ranks) or "none"


def _step_text(run: Run) -> str:
    from stethoscope.views.common import numbers

    steps = run.steps
    if not len(steps):
        return "none"
    ends = f"from {numbers.count(int(steps[0]))} to {numbers.count(int(steps[-1]))}"
    return f"{plural(len(steps), 'step')} {ends}"


def _silent_sites(run: Run) -> list[Fact]:
    """Sites that are not measured whole, by reason."""

    reasons: dict[str, int] = {}
    for info in run.sites:
        if info.measured != "all":
            reasons[info.measured] = reasons.get(info.measured, 0) + 1
    return [
        (f"{reason}", plural(num, "site"), reason in ("sampled", "frozen", "shard")) for reason, num in reasons.items()
    ]
