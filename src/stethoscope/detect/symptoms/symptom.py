"""What a symptom is: training is worse than it should be, whatever the reason."""

from __future__ import annotations

import dataclasses
from typing import Any

from stethoscope.record import Evidence, Severity


@dataclasses.dataclass(frozen=True, slots=True)
class Symptom:
    """What goes wrong, since when, by how much, against what the run itself gives as a baseline."""

    name: str
    """One of `NAMES`; never renamed."""
    message: str
    """One plain sentence with the numbers."""
    first_step: int
    last_step: int
    evidence: tuple[Evidence, ...]
    """The first is the measure: its size is `value`, its baseline `before`."""
    severity: Severity = Severity.WARNING

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "name": self.name,
            "message": self.message,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "severity": str(self.severity),
            "evidence": [dataclasses.asdict(e) for e in self.evidence],
        }
