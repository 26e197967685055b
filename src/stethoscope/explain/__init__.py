"""Findings into a Diagnosis: ranked causes, evidence, remedies."""

from stethoscope.explain.diagnosis import Diagnosis, LookedAt
from stethoscope.explain.headline import Headline, headline
from stethoscope.explain.reasons import Why, why
from stethoscope.explain.verdict import conclude, diagnose

__all__ = ["Diagnosis", "Headline", "LookedAt", "Why", "conclude", "diagnose", "headline", "why"]
