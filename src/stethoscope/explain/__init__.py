"""Findings into a Diagnosis: ranked causes, evidence, remedies."""

from stethoscope.explain.diagnosis import Diagnosis, LookedAt
from stethoscope.explain.reasons import Why, why
from stethoscope.explain.verdict import diagnose

__all__ = ["Diagnosis", "LookedAt", "Why", "diagnose", "why"]
