"""The Diagnosis: causes in order, what follows from each, and how much was examined."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from stethoscope.explain.state import State, Verdict
from stethoscope.record import Drawn, Finding, Severity, printable

SCHEMA_VERSION = 1
OF_THE_LOSS = ("not_a_number", "impossible_value", "errors_grow", "only_rises", "diverges", "does_not_learn", "swings")
"""Symptoms that say what the training loss does."""


@dataclasses.dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment of a checkup: what it asks, what came of it, what it looked at."""

    name: str
    question: str
    outcome: str
    """"clear", "found", "does not apply" (there was nothing it could look at) or "failed"."""
    looked_at: str = ""
    codes: tuple[str, ...] = ()
    """What it found."""


@dataclasses.dataclass(frozen=True, slots=True)
class LookedAt:
    """What the diagnosis rests on, so that silence is never mistaken for health."""

    num_sites: int = 0
    num_sites_expected: int = 0
    num_steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    num_rows_lost: int = 0
    num_detectors: int = 0
    unmet_needs: tuple[str, ...] = ()
    """What one more line in the script would unlock, in plain sentences."""
    experiments: tuple[Experiment, ...] = ()
    """Of a checkup: each experiment, in the order in which they ran."""
    broken_detectors: tuple[str, ...] = ()
    """Detectors of ours that failed over this run, each with its error: what they look for was not looked for."""
    num_steps_lost: int = 0
    """Steps of which rows were handed in and never reached the disk."""
    first_lost_step: int | None = None
    last_lost_step: int | None = None
    mixtures: tuple[str, ...] = ()
    """Where one folder holds more than one training, a sentence each."""
    unmeasured: tuple[str, ...] = ()
    """What was passed over while the run was recorded, a sentence each."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Diagnosis(Drawn):
    """Causes, ranked; every finding, Info included; what follows from what."""

    causes: tuple[Finding, ...] = ()
    findings: tuple[Finding, ...] = ()
    followed: Mapping[str, tuple[Finding, ...]] = dataclasses.field(default_factory=dict)
    """From a cause's code to the findings that follow from it, in the order they began."""
    looked_at: LookedAt = dataclasses.field(default_factory=LookedAt)
    judged: Verdict | None = None
    """What the run as a whole shows, where there was a run to look at."""

    def __repr__(self) -> str:
        looked = f"{self.looked_at.num_sites} tensors, {self.looked_at.num_steps} steps"
        if not self.causes:
            return f"Diagnosis({self.verdict.state.label}: {printable(self.verdict.message)} {looked})"
        first, more = self.causes[0], len(self.causes) - 1
        others = f", and {more} more" if more else ""
        return (
            f"Diagnosis({first.severity.lower()} {printable(first.code)}: {printable(first.message)}{others}; {looked})"
        )

    @property
    def verdict(self) -> Verdict:
        """One of the four states, with what shows it: what every face draws."""
        if self.judged is not None:
            return self.judged
        if self.causes:
            return Verdict(State.TROUBLE, self.causes[0].message, severity=self.causes[0].severity)
        return Verdict(State.CANNOT_TELL, "No cause was found, and no run was examined.")

    @property
    def healthy(self) -> bool:
        """No cause and no symptom of trouble. That is not to say that it learns: `verdict.state` says what is known."""
        return not self.verdict.state.is_trouble

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is worth knowing beside the verdict. Where the loss shows a symptom, that it stands still says nothing more."""
        is_told = any(symptom.name in OF_THE_LOSS for symptom in self.verdict.symptoms)
        infos = (finding for finding in self.findings if finding.severity is Severity.INFO)
        return tuple(finding for finding in infos if not (is_told and finding.code == "plateau"))

    @property
    def worst(self) -> Severity | None:
        """The highest severity among all findings, None where there are none."""
        return max((f.severity for f in self.findings), key=lambda s: s.rank, default=None)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, with a schema version."""
        return {
            "schema_version": SCHEMA_VERSION,
            "healthy": self.healthy,
            "verdict": self.verdict.to_json(),
            "causes": [
                cause.to_json() | {"followed": [f.to_json() for f in self.followed.get(cause.code, ())]}
                for cause in self.causes
            ],
            "findings": [finding.to_json() for finding in self.findings],
            "looked_at": dataclasses.asdict(self.looked_at)
            | {
                "mixtures": list(self.looked_at.mixtures),
                "broken_detectors": list(self.looked_at.broken_detectors),
                "unmet_needs": list(self.looked_at.unmet_needs),
                "experiments": [experiment_json(one) for one in self.looked_at.experiments],
            },
        }


def experiment_json(one: Experiment) -> dict[str, Any]:
    """As plain JSON values."""
    return dataclasses.asdict(one) | {"codes": list(one.codes)}
