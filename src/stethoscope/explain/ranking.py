"""From findings to causes: what comes first in time and in the chain of effects is the cause, the rest follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from stethoscope.record import Finding, Severity

LEARNING_TROUBLE: Final = (
    "update_too_small",
    "update_too_large",
    "vanishing_gradients",
    "exploding_gradients",
    "oscillation",
)
UNIT_TROUBLE: Final = ("dead_units", "saturated_units", "dormant_units")
BLOW_UP: Final = ("nonfinite_origin", "precision_overflow", "nonfinite_buffer", "loss_scale_collapse")
LEADS_TO: Final[dict[str, tuple[str, ...]]] = {
    "gradients_not_cleared": (
        *LEARNING_TROUBLE,
        *UNIT_TROUBLE,
        *BLOW_UP,
        "output_logit_drift",
        "attention_logit_growth",
    ),
    "gradients_cleared_before_step": ("silent_no_update", "update_too_small", "dead_units", "detached_graph"),
    "optimizer_never_steps": ("silent_no_update", "update_too_small"),
    "optimizer_params_not_in_model": (
        "trainable_params_not_in_optimizer",
        "silent_no_update",
        "update_too_small",
    ),
    "unregistered_module": ("trainable_params_not_in_optimizer", "optimizer_params_not_in_model"),
    "detached_graph": ("silent_no_update", "dead_units", "vanishing_gradients"),
    "zero_lr_group": ("silent_no_update", "update_too_small"),
    "symmetric_units": ("vanishing_gradients", "dead_units"),
    "bad_init_scale": (*LEARNING_TROUBLE, *UNIT_TROUBLE, *BLOW_UP, "bad_initial_loss", "output_logit_drift"),
    "bad_initial_loss": ("output_logit_drift", "exploding_gradients"),
    "unscaled_inputs": (*LEARNING_TROUBLE, *UNIT_TROUBLE, *BLOW_UP, "bad_initial_loss", "bad_init_scale"),
    "nonfinite_batch": (*BLOW_UP, *UNIT_TROUBLE, "update_too_large", "exploding_gradients"),
    "outlier_batch": (*LEARNING_TROUBLE, *UNIT_TROUBLE, *BLOW_UP, "adam_update_spike", "output_logit_drift"),
    "constant_feature": (*BLOW_UP, *UNIT_TROUBLE, "nonfinite_batch"),
    "inputs_too_small": (*LEARNING_TROUBLE, *UNIT_TROUBLE, "adam_eps_dominates", "class_collapse"),
    "unshuffled_data": (*UNIT_TROUBLE, "oscillation", "output_logit_drift", "class_collapse", "update_too_large"),
    "loss_metric_disagree": (
        *LEARNING_TROUBLE, *UNIT_TROUBLE, *BLOW_UP, "output_logit_drift", "labels_uninformative", "overfitting",
    ),
    "labels_uninformative": ("overfitting", "output_logit_drift"),
    "overfitting": ("output_logit_drift",),
    "over_regularised": ("dormant_units", "dead_units"),
    "same_data_on_ranks": ("duplicate_batches",),
    "gradients_summed_across_ranks": (*LEARNING_TROUBLE, "output_logit_drift"),
    "update_too_large": (
        *BLOW_UP,
        *UNIT_TROUBLE,
        "exploding_gradients",
        "output_logit_drift",
        "attention_logit_growth",
    ),
    "oscillation": ("update_too_large",),
    "exploding_gradients": (*BLOW_UP, "update_too_large"),
    "adam_update_spike": (*BLOW_UP, "update_too_large", "exploding_gradients"),
    "attention_logit_growth": BLOW_UP,
    "output_logit_drift": BLOW_UP,
    "clip_before_unscale": ("clipping_always_on", "update_too_small"),
    "clipping_always_on": ("update_too_small",),
    "adam_eps_dominates": ("update_too_small",),
    "weight_decay_dominates": ("vanishing_gradients", "dead_units", "dormant_units"),
    "precision_underflow": ("vanishing_gradients", "update_too_small", "dead_units", "silent_no_update", "adam_eps_dominates"),
    "vanishing_gradients": ("update_below_precision", "silent_no_update", "update_too_small"),
    "update_below_precision": ("update_too_small", "silent_no_update"),
    "output_clipped": ("dead_units",),
    "saturated_units": ("vanishing_gradients",),
    "dead_units": ("vanishing_gradients", "dormant_units", "silent_no_update", "adam_eps_dominates"),
    "loss_scale_collapse": ("update_too_small",),
    "inputs_ignored": (*UNIT_TROUBLE, "vanishing_gradients", "silent_no_update", "oscillation", "class_collapse"),
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
        if any(is_named(finding, rule) for rule in ignore):
            continue
        if any(is_named(finding, rule) for rule in expect):
            finding = Finding.from_json(finding.to_json() | {"severity": str(Severity.INFO)})
        kept.append(finding)
    return kept


def is_named(finding: Finding, rule: str) -> bool:
    """Whether a rule of `ignore` or `expect`, `code` or `code:site-glob`, means this finding."""
    code, _, pattern = rule.partition(":")
    if not fnmatchcase(finding.code, code):
        return False
    return not pattern or any(
        fnmatchcase(site, pattern) or site.startswith(pattern + ".") for site in finding.sites
    )
