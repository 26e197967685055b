"""Findings into a Diagnosis: ranked causes, evidence, remedies."""

from stethoscope.explain.diagnosis import Diagnosis, LookedAt

__all__ = ["Diagnosis", "LookedAt"]
