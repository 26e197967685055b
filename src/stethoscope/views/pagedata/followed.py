"""What happened around a cause, in order: signs before it, what followed, where the loss went, and how long it lasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

import numpy as np

from stethoscope.explain.context_evidence import goes_on, loss_words
from stethoscope.record import Finding, Series, metrics
from stethoscope.store import Run
from stethoscope.views.common.evidence import evidence_series
from stethoscope.views.pagedata.packing import text

MAX_FOLLOWED: Final = 6
_GROWN: Final = 4.0
_MAX_CLAUSE: Final = 120


class Followed(TypedDict):
    """One numbered event of what followed."""

    step: int
    text: str
    site: str


def followed_entries(run: Run, cause: Finding, followed: Sequence[Finding]) -> list[Followed]:
    """What happened in order: signs before it, the cause, its consequences, and where the loss went."""
    where = f" in {text(cause.sites[0], 200)}" if cause.sites else ""
    entries = signs(run, cause)
    entries.append({"step": cause.first_step, "text": _beginning_text(cause, where), "site": _first_site(cause)})
    entries += [
        {"step": f.first_step, "text": text(f.message, 300).rstrip("."), "site": _first_site(f)}
        for f in followed[: MAX_FOLLOWED - 1]
    ]
    seen = " ".join(str(entry["text"]) for entry in entries).lower()
    if "loss" not in seen:
        entries += loss_entries(run, cause.first_step)
    if len(entries) == 1:  # the sentence stands beside it, and need not be said twice
        entries[0]["text"] = f"Started{where}"
    entries.sort(key=lambda entry: entry["step"])
    return entries[:MAX_FOLLOWED]


def lasting(run: Run, cause: Finding) -> list[str]:
    """How long it went on, and what the loss made of it: what can be said where nothing followed."""
    span = cause.last_step - cause.first_step + 1
    is_live, end = run.state == "live", run.last_step
    if is_live and end is not None and goes_on(run, cause):
        out = [f"Ongoing, for {end - cause.first_step + 1:,} steps"]
    elif span < 2:
        out = ["Seen at this one step"]
    elif goes_on(run, cause):
        out = [f"Lasts to the end, {span:,} steps"]
    else:
        out = [f"Last seen at step {cause.last_step:,}, {span - 1:,} steps later"]
    if loss_words(run, cause).startswith("The loss does not"):
        out.append(f"The loss is not affected{' yet' if is_live else ''}")
    return out


def _first_site(finding: Finding) -> str:
    return text(finding.sites[0], 10_000) if finding.sites else ""


def clause(cause: Finding) -> str:
    """The cause's sentence up to where it gives its step or its numbers: a sentence of its own, "" where it is none."""
    words = text(cause.message, 800)
    for cut in (
        f" from step {cause.first_step:,}",
        f" since step {cause.first_step:,}",
        f" at step {cause.first_step:,}",
        ": ",
    ):
        words = words.partition(cut)[0]
    if len(words) > _MAX_CLAUSE:
        words = words.partition(", ")[0]
    words = words.rstrip(".")
    return words if 12 <= len(words) <= _MAX_CLAUSE else ""


def _beginning_text(cause: Finding, where: str) -> str:
    """What began, without the step that stands beside it."""
    if cause.code.startswith("nonfinite"):
        for word in ("NaN", "Inf"):
            if word in cause.message:
                return f"First {word}{where}"
    return clause(cause) or f"Started{where}"


def signs(run: Run, cause: Finding) -> list[Followed]:
    """Where the evidence left its usual band for good, if that was before the cause was certain."""
    out: list[Followed] = []
    for e in cause.evidence:
        if not (e.site and e.kind):
            continue
        series = evidence_series(e, run)
        if series is None:
            continue
        step = leaves_band(series, cause.first_step)
        if step is not None:
            where = f" in {text(e.site, 200)}" if e.site not in e.label else ""
            what = text(e.label, 200)
            words = f"{what[:1].upper()}{what[1:]}{where} exceeds {_GROWN:.0f}x its median and stays there"
            out.append({"step": step, "text": words, "site": text(e.site, 10_000)})
    return sorted(out, key=lambda entry: entry["step"])[:1]


def leaves_band(series: Series, before: int) -> int | None:
    """The first step from which a series stays above four times its early median, until `before`."""
    keep = series.steps < before
    steps, values = series.steps[keep], np.abs(series.values[keep])
    if len(steps) < 16:
        return None
    early = values[: max(8, len(values) // 3)]
    usual = float(np.median(early[np.isfinite(early)])) if np.isfinite(early).any() else 0.0
    if usual <= 0:
        return None
    inside = np.flatnonzero(~(values > _GROWN * usual))
    index = int(inside[-1]) + 1 if len(inside) else 0
    return int(steps[index]) if 0 < index < len(steps) - 2 else None


def loss_entries(run: Run, since: int) -> list[Followed]:
    """Where the loss stopped being a number."""
    series = run.metric(metrics.LOSS)
    broken = np.flatnonzero(~np.isfinite(series.values) & (series.steps >= since))
    if not len(broken):
        return []
    index = int(broken[0])
    rest = series.values[index:]
    word = "NaN" if np.isnan(series.values[index]) else "Inf"
    lasting = "from here on" if not np.isfinite(rest).any() and len(rest) > 1 else "for the first time"
    return [{"step": int(series.steps[index]), "text": f"The loss is {word} {lasting}", "site": ""}]
