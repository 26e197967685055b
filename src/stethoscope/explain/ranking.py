"""From findings to causes: what comes first in time and in the chain of effects is the cause, the rest follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from stethoscope.explain.circumstances import Circumstances
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
    # Attention that is locked gives queries and keys no gradient.
    "attention_logit_growth": (*BLOW_UP, "dead_units"),
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
    # Units that fell silent one after another ended dead; dead from the start, they are dormant too.
    "dormant_units": ("dead_units",),
    "dead_units": ("vanishing_gradients", "dormant_units", "silent_no_update", "adam_eps_dominates"),
    "loss_scale_collapse": ("update_too_small",),
    # After NaN or Inf nothing works any more: a second moment that is Inf makes every update zero.
    "nonfinite_origin": (
        *LEARNING_TROUBLE, *UNIT_TROUBLE, "silent_no_update", "update_too_small", "adam_eps_dominates", "class_collapse",
        "output_logit_drift",
    ),
    "inputs_ignored": (*UNIT_TROUBLE, "vanishing_gradients", "silent_no_update", "oscillation", "class_collapse"),
}
"""What can follow from what, where it begins no earlier. Mechanisms, not coincidences."""

THROUGH_UPDATES: Final = (
    "gradients_not_cleared", "gradients_summed_across_ranks", "update_too_large", "oscillation", "exploding_gradients",
    "adam_update_spike", "weight_decay_dominates", "outlier_batch", "unshuffled_data", "loss_metric_disagree",
    "over_regularised",
)  # fmt: skip
"""What does harm only by the updates that it makes."""
INPUT_SIZE: Final = ("unscaled_inputs", "inputs_too_small")
SLACK_STEPS: Final = 5
"""A consequence may be noticed this many steps before its cause: detectors are sure at different times."""


def split(
    findings: Iterable[Finding], around: Circumstances | None = None
) -> tuple[tuple[Finding, ...], dict[str, tuple[Finding, ...]]]:
    """Causes in order, and from a cause's code to all that follows from it, directly or through something between.

    What can follow from several is told under the one that began last before it.
    """
    around = around or Circumstances()
    serious = [f for f in findings if f.severity is not Severity.INFO]
    parents = [_parent(number, serious, around) for number in range(len(serious))]
    roots = [_root(number, parents) for number in range(len(serious))]
    causes = [f for number, f in enumerate(serious) if roots[number] == number]
    causes.sort(key=lambda f: (-f.severity.rank, f.first_step, -f.confidence, f.code))
    followed: dict[str, list[Finding]] = {}
    for number, finding in enumerate(serious):
        if roots[number] != number:
            followed.setdefault(serious[roots[number]].code, []).append(finding)
    return tuple(causes), {
        code: tuple(sorted(found, key=lambda f: f.first_step)) for code, found in followed.items()
    }


def _parent(number: int, serious: Sequence[Finding], around: Circumstances) -> int | None:
    """The finding from which this one follows: of several the latest, of equally late ones the first."""
    own = serious[number]
    possible = [
        place for place, cause in enumerate(serious) if place != number and _follows(own, cause, around)
    ]
    return max(possible, key=lambda place: (serious[place].first_step, -place), default=None)


def _root(number: int, parents: Sequence[int | None]) -> int:
    """Where the chain of causes ends; in a circle, at its first finding."""
    seen = [number]
    while (parent := parents[seen[-1]]) is not None:
        if parent in seen:
            return min(seen[seen.index(parent) :])
        seen.append(parent)
    return seen[-1]


def _follows(other: Finding, cause: Finding, around: Circumstances) -> bool:
    if other.code not in LEADS_TO.get(cause.code, ()) or has_own_root(other, cause, around):
        return False
    # Two that could each lead to the other: the earlier one is the cause.
    mutual = cause.code in LEADS_TO.get(other.code, ())
    slack = 0 if mutual else SLACK_STEPS
    if mutual and other.first_step == cause.first_step:
        return other.code > cause.code
    return other.first_step + slack >= cause.first_step


def has_own_root(other: Finding, cause: Finding, around: Circumstances) -> bool:
    """Whether the run shows that one finding does not come from another, although it might by its kind."""
    # A state of units at the very first look was there before any update could make it.
    if other.code in UNIT_TROUBLE and cause.code in THROUGH_UPDATES and around.first_step is not None:
        return other.first_step <= around.first_step
    # Behind a normalization nothing is known of the size of the inputs.
    if cause.code in INPUT_SIZE and other.code in UNIT_TROUBLE and other.sites:
        return all(around.is_shielded(site) for site in other.sites)
    # Steps that became too large when the rate jumped have the jump for a cause, not what lay long before it.
    if other.code == "update_too_large":
        near = [step for step in around.rate_jumps if 0 <= other.first_step - step <= SLACK_STEPS]
        return bool(near) and cause.first_step + SLACK_STEPS < near[-1]
    return False


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
