"""The verdicts as tables: by tier, by code, what was said instead, and the healthy runs that were not left in peace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.faults.catalogue import FAULTS, FURTHER_HEALTHY
from benchmarks.faults.catalogue import HEALTHY as LISTED_HEALTHY
from benchmarks.faults.judging import Verdict

HEALTHY = LISTED_HEALTHY | FURTHER_HEALTHY
TIERS = {"E": "exact", "S": "statistical", "A": "advice"}


def text(verdicts: Sequence[Verdict]) -> str:
    """The whole report, as Markdown that reads well in a terminal too."""
    faulty = [v for v in verdicts if v.of in FAULTS]
    healthy = [v for v in verdicts if v.of in HEALTHY]
    parts = [_summary(faulty, healthy)]
    if faulty:
        parts += ["## Faults", _faults(faulty)]
    if healthy:
        parts += ["## Healthy", _healthy(healthy)]
    troubles = [(v, trouble) for v in verdicts for trouble in dict.fromkeys([*v.troubles, v.error]) if trouble]
    if troubles:
        parts += ["## Troubles", *(f"- {v.key} seed {v.seed}: {trouble.strip()}" for v, trouble in troubles)]
    return "\n\n".join(parts) + "\n"


def line(verdict: Verdict) -> str:
    """One verdict as it comes in."""
    if verdict.error:
        what = "FAILED " + verdict.error.strip().splitlines()[-1]
    elif verdict.of in HEALTHY:
        what = "silent" if not verdict.causes else "FALSE ALARM " + _causes(verdict)
    else:
        what = _outcome(verdict) + ("" if verdict.position == 1 else f"  said: {_causes(verdict)}")
        what += f"  [checkup: {verdict.checkup}]" if verdict.checkup else ""
    name = FAULTS[verdict.of].code if verdict.of in FAULTS else HEALTHY[verdict.of]
    return f"{verdict.key:6}{name:36.36} {verdict.seconds:5.1f}s  {what}"


def _summary(faulty: Sequence[Verdict], healthy: Sequence[Verdict]) -> str:
    rows = []
    for tier, name in TIERS.items():
        of_tier = [v for v in faulty if FAULTS[v.of].tier == tier]
        if of_tier:
            rows.append([name, *_counts(of_tier)])
    if faulty:
        rows.append(["all", *_counts(faulty)])
    lines = [
        _table(["tier", "programs", "top 1", "top 2", "right place", "right step", "median delay", "checkup"], rows)
    ]
    if healthy:
        alarmed = [v for v in healthy if v.causes]
        lines.append(f"Healthy runs: {len(healthy)}, of which {len(alarmed)} alarm.")
    seconds = [v.seconds for v in (*faulty, *healthy)]
    lines.append(
        f"Time: {sum(seconds):.0f} s for {len(seconds)} trainings, the slowest {max(seconds, default=0):.1f} s; "
        f"diagnosis {sum(v.diagnose_seconds for v in (*faulty, *healthy)):.0f} s."
    )
    return "\n\n".join(lines)


def _counts(verdicts: Sequence[Verdict]) -> list[str]:
    places = [v.right_place for v in verdicts if v.right_place is not None]
    steps = [v.right_step for v in verdicts if v.right_step is not None]
    delays = sorted(v.delay for v in verdicts if v.delay is not None)
    checkups = [v.checkup for v in verdicts if v.checkup]
    return [
        str(len(verdicts)),
        _share([v.position == 1 for v in verdicts]),
        _share([v.found for v in verdicts]),
        _share(places),
        _share(steps),
        str(delays[len(delays) // 2]) if delays else "-",
        "none yet" if checkups and set(checkups) == {"no checkup"} else _share([c == "found" for c in checkups]),
    ]


def _share(values: Iterable[bool | None]) -> str:
    values = list(values)
    return f"{sum(map(bool, values))}/{len(values)}" if values else "-"


def _faults(verdicts: Sequence[Verdict]) -> str:
    rows = []
    for v in verdicts:
        fault = FAULTS[v.of]
        said = "" if v.position == 1 and len(v.causes) == 1 else _causes(v)
        rows.append(
            [
                v.key,
                fault.code,
                fault.when,
                fault.tier,
                str(v.seed),
                _outcome(v),
                _yes(v.right_place),
                _yes(v.right_step),
                "-" if v.delay is None else str(v.delay),
                v.checkup or "-",
                said or "-",
            ]
        )
    head = ["id", "code", "when", "tier", "seed", "found", "place", "step", "delay", "checkup", "what was said"]
    return _table(head, rows)


def _healthy(verdicts: Sequence[Verdict]) -> str:
    rows = [
        [v.key, HEALTHY[v.of], str(v.seed), _loss(v), "FAILED" if v.error else _causes(v) or "silent"] for v in verdicts
    ]
    return _table(["id", "run", "seed", "loss", "said"], rows)


def _loss(verdict: Verdict) -> str:
    return "-" if verdict.loss is None else f"{verdict.loss[0]:.3g} to {verdict.loss[1]:.3g}"


def _outcome(verdict: Verdict) -> str:
    if verdict.error:
        return "FAILED"
    if FAULTS[verdict.of].when == "C" and verdict.checkup == "no checkup":
        return "no checkup"
    return "missed" if verdict.position is None else f"top {verdict.position}"


def _causes(verdict: Verdict) -> str:
    said = [f"{c.code}@{c.first_step}" + (f" ({', '.join(c.sites[:2])})" if c.sites else "") for c in verdict.causes]
    return ", ".join(said) + (f"; Info: {', '.join(verdict.infos)}" if verdict.infos else "")


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "NO"


def _table(head: list[str], rows: list[list[str]]) -> str:
    body = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in body)
