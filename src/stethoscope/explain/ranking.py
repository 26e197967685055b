"""From findings to causes: what comes first in time and in the chain of effects is the cause, the rest follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from stethoscope.record import Finding, Severity

LEADS_TO: Final[dict[str, tuple[str, ...]]] = {
    "gradients_not_cleared": (
        "exploding_gradients",
        "update_too_large",
        "nonfinite_origin",
        "vanishing_gradients",
    ),
    "gradients_cleared_before_step": ("silent_no_update", "update_too_small"),
    "optimizer_params_not_in_model": (
        "trainable_params_not_in_optimizer",
        "silent_no_update",
        "update_too_small",
    ),
    "zero_lr_group": ("silent_no_update", "update_too_small"),
    "nonfinite_batch": ("nonfinite_origin", "nonfinite_buffer", "update_too_large", "exploding_gradients"),
    "update_too_large": ("nonfinite_origin", "exploding_gradients", "nonfinite_buffer"),
    "exploding_gradients": ("nonfinite_origin", "update_too_large"),
    "vanishing_gradients": ("update_below_precision", "silent_no_update", "update_too_small"),
    "unscaled_inputs": ("bad_initial_loss", "dead_units", "saturated_units", "exploding_gradients"),
    "inputs_too_small": ("dead_units", "update_too_small"),
    "bad_init_scale": ("bad_initial_loss", "exploding_gradients", "nonfinite_origin"),
    "constant_feature": ("nonfinite_origin", "nonfinite_batch", "nonfinite_buffer"),
    "fully_masked_attention": ("nonfinite_origin",),
    "symmetric_units": ("dead_units", "inputs_ignored", "bad_init_scale", "saturated_units"),
    "dead_units": ("inputs_ignored",),
    "loss_scales_with_batch": ("bad_initial_loss", "exploding_gradients"),
    "double_softmax": ("bad_initial_loss", "output_clipped"),
    "loss_broadcast": ("loss_scales_with_batch",),
    "frozen_params": ("detached_graph", "silent_no_update"),
    "detached_graph": ("silent_no_update",),
    "update_below_precision": ("update_too_small", "silent_no_update"),
}
"""What can follow from what, where it begins no earlier. Mechanisms, not coincidences."""

SLACK_STEPS: Final = 5
"""A consequence may be noticed this many steps before its cause: detectors are sure at different times."""


def split(findings: Iterable[Finding]) -> tuple[tuple[Finding, ...], dict[str, tuple[Finding, ...]]]:
    """Causes in order, and from a cause's code to what follows from it."""
    serious = [f for f in findings if f.severity is not Severity.INFO]
    followed: dict[str, list[Finding]] = {}
    folded: set[int] = set()
    for cause in serious:
        for other in serious:
            if other is not cause and _follows(other, cause) and id(other) not in folded:
                folded.add(id(other))
                followed.setdefault(cause.code, []).append(other)
    causes = [f for f in serious if id(f) not in folded]
    causes.sort(key=lambda f: (-f.severity.rank, f.first_step, -f.confidence, f.code))
    return tuple(causes), {
        code: tuple(sorted(found, key=lambda f: f.first_step)) for code, found in followed.items()
    }


def _follows(other: Finding, cause: Finding) -> bool:
    if other.code not in LEADS_TO.get(cause.code, ()):
        return False
    # Two that could each lead to the other: the earlier one is the cause.
    mutual = cause.code in LEADS_TO.get(other.code, ())
    slack = 0 if mutual else SLACK_STEPS
    if mutual and other.first_step == cause.first_step:
        return other.code > cause.code
    return other.first_step + slack >= cause.first_step


def silence(findings: Iterable[Finding], ignore: Iterable[str], expect: Iterable[str]) -> list[Finding]:
    """Without what the user ignores; what they expect becomes Info."""
    ignore, expect = tuple(ignore), tuple(expect)
    kept = []
    for finding in findings:
        if any(_named(finding, rule) for rule in ignore):
            continue
        if any(_named(finding, rule) for rule in expect):
            finding = Finding.from_json(finding.to_json() | {"severity": str(Severity.INFO)})
        kept.append(finding)
    return kept


def _named(finding: Finding, rule: str) -> bool:
    code, _, pattern = rule.partition(":")
    if not fnmatchcase(finding.code, code):
        return False
    return not pattern or any(
        fnmatchcase(site, pattern) or site.startswith(pattern + ".") for site in finding.sites
    )
