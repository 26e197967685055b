"""Findings into a Diagnosis: ranked causes, evidence, remedies."""

from stethoscope.explain.diagnosis import Diagnosis, LookedAt
from stethoscope.explain.reasons import Why, why
from stethoscope.explain.state import State, Suspect, Verdict
from stethoscope.explain.verdict import conclude, diagnose, weigh

__all__ = ["Diagnosis", "LookedAt", "State", "Suspect", "Verdict", "Why", "conclude", "diagnose", "weigh", "why"]
