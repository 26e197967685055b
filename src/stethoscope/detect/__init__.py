"""Series into Findings. One mechanism a file; the registry is this list."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stethoscope.analyse.span import Span
from stethoscope.detect.accumulation import Accumulation
from stethoscope.detect.applied import Applied
from stethoscope.detect.batches import Sampling
from stethoscope.detect.beginnings import Beginnings
from stethoscope.detect.class_collapse import ClassCollapse
from stethoscope.detect.constants import Constants
from stethoscope.detect.detector import Detector, Reading
from stethoscope.detect.dynamics import Dynamics
from stethoscope.detect.flow import Flow
from stethoscope.detect.generalisation import Generalisation
from stethoscope.detect.inputs import InputScale
from stethoscope.detect.ledger import GradientAccounts, Ownership
from stethoscope.detect.leftovers import Leftovers
from stethoscope.detect.logits import Logits
from stethoscope.detect.loss_shape import LossShape
from stethoscope.detect.modes import Modes
from stethoscope.detect.nonfinite import Nonfinite
from stethoscope.detect.optimizer_terms import OptimizerTerms
from stethoscope.detect.outliers import Outliers
from stethoscope.detect.plateau import Plateau
from stethoscope.detect.precision import Precision
from stethoscope.detect.rank_gradients import RankGradients
from stethoscope.detect.ranks import Replicas
from stethoscope.detect.schedules import Schedules
from stethoscope.detect.structure import Structure
from stethoscope.detect.unit_health import UnitHealth
from stethoscope.detect.update_size import UpdateSize
from stethoscope.detect.validation import Disagreement, Dropout, ModeInEvaluation
from stethoscope.record import Finding

DETECTORS: tuple[Callable[[], Detector], ...] = (
    GradientAccounts,
    Ownership,
    Accumulation,
    Applied,
    Nonfinite,
    Flow,
    UpdateSize,
    LossShape,
    Structure,
    Modes,
    Schedules,
    OptimizerTerms,
    Precision,
    UnitHealth,
    Logits,
    Leftovers,
    Beginnings,
    Dynamics,
    InputScale,
    Outliers,
    Constants,
    Sampling,
    ClassCollapse,
    Disagreement,
    Dropout,
    ModeInEvaluation,
    Generalisation,
    Plateau,
    Replicas,
    RankGradients,
)
CODES: tuple[str, ...] = tuple(code for make in DETECTORS for code in make().codes)


class Detection:
    """All detectors over one run, fed as the run grows."""

    def __init__(self) -> None:
        self._detectors = [make() for make in DETECTORS]
        self.errors: dict[str, str] = {}
        """Detectors that failed, and how: a broken detector says nothing and is shown by `doctor`."""

    def observe(self, spans: Iterable[Span]) -> None:
        """Take in the next steps."""
        for span in spans:
            for detector in self._detectors:
                self._feed(detector, span)

    def findings(self) -> list[Finding]:
        """Everything found so far, in the order it began."""
        found = [finding for detector in self._detectors for finding in self._ask(detector)]
        return sorted(found, key=lambda f: (f.first_step, -f.severity.rank, f.code))

    def readings(self) -> dict[str, list[Reading]]:
        """By code, the numbers that its rule asked for; nothing for a detector that broke."""
        found: dict[str, list[Reading]] = {}
        for detector in self._detectors:
            if type(detector).__name__ not in self.errors:
                found |= detector.readings()
        return found

    def _ask(self, detector: Detector) -> list[Finding]:
        name = type(detector).__name__
        if name in self.errors:
            return []
        try:
            return detector.findings()
        except Exception as error:  # as when it observes
            self.errors[name] = repr(error)
            return []

    def _feed(self, detector: Detector, span: Span) -> None:
        name = type(detector).__name__
        if name in self.errors:
            return
        try:
            detector.observe(span)
        except Exception as error:  # one broken detector must not silence the others
            self.errors[name] = repr(error)


__all__ = ["CODES", "DETECTORS", "Detection", "Detector", "Reading"]
