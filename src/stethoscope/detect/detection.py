"""All detectors over one run, fed as the run grows."""

from __future__ import annotations

from collections.abc import Iterable

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Detector, Reading
from stethoscope.detect.registry import Registry, known
from stethoscope.record import Finding


class Detection:
    """One of each detector. One that fails says nothing more and is named in `errors`; the others go on."""

    def __init__(self, registry: Registry | None = None) -> None:
        registry = registry or known()
        self.errors: dict[str, str] = dict(registry.load_errors)
        """Detectors that failed, and how."""
        self._detectors: list[Detector] = []
        for kind in registry.detectors:
            try:
                self._detectors.append(kind())
            except Exception as error:  # one broken detector must not silence the others
                self.errors[kind.__name__] = repr(error)

    def observe(self, spans: Iterable[Span]) -> None:
        """Take in the next steps."""
        for span in spans:
            for detector in self._detectors:
                name = type(detector).__name__
                if name in self.errors:
                    continue
                try:
                    detector.observe(span)
                except Exception as error:
                    self.errors[name] = repr(error)

    def findings(self) -> list[Finding]:
        """Everything found so far, in the order it began."""
        found = [finding for detector in self._detectors for finding in self._ask(detector)]
        return sorted(found, key=lambda f: (f.first_step, -f.severity.rank, f.code))

    def _ask(self, detector: Detector) -> list[Finding]:
        name = type(detector).__name__
        if name in self.errors:
            return []
        try:
            return detector.findings()
        except Exception as error:
            self.errors[name] = repr(error)
            return []

    def readings(self) -> dict[str, list[Reading]]:
        """By code, the numbers that its rule asked for; nothing for a detector that broke."""
        found: dict[str, list[Reading]] = {}
        for detector in self._detectors:
            if type(detector).__name__ not in self.errors:
                found |= detector.readings()
        return found
