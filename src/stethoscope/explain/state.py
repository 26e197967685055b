"""The verdict: one of four states, what shows it, and what to do next. Every face draws this and decides nothing itself."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import Any

from stethoscope.detect.symptoms import Symptom
from stethoscope.record import Evidence, Severity


class State(StrEnum):
    """What is known of a training. Silence of the detectors is none of these."""

    LEARNS = "learns"
    TROUBLE = "trouble"
    """With at least one cause."""
    UNEXPLAINED = "trouble_unexplained"
    """Something is wrong with the training, and no detector says why."""
    CANNOT_TELL = "cannot_tell"

    @property
    def label(self) -> str:
        """In the user's words."""
        return _LABELS[self]

    @property
    def is_trouble(self) -> bool:
        """Whether the training is known to be worse than it should be."""
        return self in (State.TROUBLE, State.UNEXPLAINED)


_LABELS = {
    State.LEARNS: "learns",
    State.TROUBLE: "trouble, cause known",
    State.UNEXPLAINED: "trouble, cause unknown",
    State.CANNOT_TELL: "cannot tell",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Suspect:
    """What could be behind a symptom, and the number that speaks for or against it."""

    what: str
    """"a layer that the gradient does not reach"."""
    evidence: Evidence
    is_cleared: bool
    """Whether the number speaks against it."""
    line: str = ""
    """Of one that is not cleared: the line of code that would show whether it is the cause."""

    @property
    def text(self) -> str:
        """The suspect with what its number is, without the number."""
        return f"{self.what}: {self.evidence.label}"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"suspect": self.what, "cleared": self.is_cleared, "evidence": dataclasses.asdict(self.evidence)}


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of a run as a whole."""

    state: State
    message: str
    """A sentence or two, complete: the first cause, the gravest symptom, the evidence, or what is missing."""
    evidence: tuple[Evidence, ...] = ()
    """Of learning, of the symptom, or what there is. The numbers of a cause stand with the cause."""
    symptoms: tuple[Symptom, ...] = ()
    unexplained: tuple[Symptom, ...] = ()
    """Of these, those that no cause explains."""
    suspects: tuple[Suspect, ...] = ()
    """Of a symptom without a cause: the possible causes, those first that a number still speaks for."""
    line: str = ""
    """A line of code: the next experiment, or what would let us tell."""
    limits: str = ""
    """What the evidence of learning does not show."""
    reservations: tuple[str, ...] = ()
    """What keeps the verdict from being the whole truth: steps that were lost, detectors that failed."""
    severity: Severity = Severity.INFO

    @property
    def purpose(self) -> str:
        """What the line of code is for."""
        if self.state is State.UNEXPLAINED:
            return "next experiment"
        return "to know more" if self.state is State.LEARNS else "to tell"

    @property
    def weighed(self) -> tuple[tuple[str, tuple[Suspect, ...]], ...]:
        """The suspects under what is said of them, as every face lists them."""
        both = ("suspected", self.suspected), ("ruled out", self.ruled_out)
        return tuple((head, group) for head, group in both if group)

    @property
    def suspected(self) -> tuple[Suspect, ...]:
        """What a number still speaks for."""
        return tuple(one for one in self.suspects if not one.is_cleared)

    @property
    def ruled_out(self) -> tuple[Suspect, ...]:
        """What a number speaks against."""
        return tuple(one for one in self.suspects if one.is_cleared)

    @property
    def caveats(self) -> str:
        """What it does not show, and what keeps it from being the whole truth."""
        return " ".join(filter(None, (self.limits, *self.reservations)))

    @property
    def text(self) -> str:
        """All of it that is a sentence."""
        return " ".join(filter(None, (self.message, self.caveats)))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "state": str(self.state),
            "label": self.state.label,
            "message": self.message,
            "limits": self.limits,
            "evidence": [dataclasses.asdict(e) for e in self.evidence],
            "symptoms": [symptom.to_json() for symptom in self.symptoms],
            "unexplained": [symptom.name for symptom in self.unexplained],
            "suspected": [one.to_json() for one in self.suspected],
            "ruled_out": [one.to_json() for one in self.ruled_out],
            "purpose": self.purpose,
            "line": self.line,
            "reservations": list(self.reservations),
        }
