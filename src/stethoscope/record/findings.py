"""What detectors say: a finding, with the numbers that show it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from stethoscope.record.kinds import Severity


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """One number that shows a finding: what it is, before and after."""

    label: str
    value: float | None
    before: float | None = None
    unit: str = ""
    site: str = ""
    """The path of the site whose series shows it, with `kind` and `stat`, where there is one."""
    kind: str = ""
    stat: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, where, since when, and the numbers that show it."""

    code: str
    severity: Severity
    message: str
    first_step: int
    last_step: int
    sites: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""
    confidence: float = 1.0
    rank: int | None = None
    """The distributed rank it concerns, None for all."""

    @property
    def layers(self) -> tuple[str, ...]:
        """The sites that are places in the model, not "(loss)" or "(input)"."""
        return tuple(site for site in self.sites if not site.startswith("("))

    def is_about(self, path: str) -> bool:
        """Whether it names this module or tensor, a part of it, or what holds it."""
        return any(f"{site}.".startswith(f"{path}.") or f"{path}.".startswith(f"{site}.") for site in self.sites)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        body = dataclasses.asdict(self)
        body["severity"] = str(self.severity)
        body["sites"] = list(self.sites)
        body["evidence"] = [dataclasses.asdict(e) for e in self.evidence]
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Finding:
        """The inverse of `to_json`."""
        fields = {f.name for f in dataclasses.fields(cls)}
        kept = {key: value for key, value in body.items() if key in fields}
        kept["severity"] = Severity(kept["severity"])
        kept["sites"] = tuple(kept.get("sites", ()))
        kept["evidence"] = tuple(Evidence(**e) for e in kept.get("evidence", ()))
        return cls(**kept)
