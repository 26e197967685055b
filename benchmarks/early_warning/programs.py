"""Every program, by its name."""

from __future__ import annotations

from benchmarks.early_warning import data_and_optimizers, dynamics, steps_too_large
from benchmarks.early_warning.training import PROGRAMS

__all__ = ["PROGRAMS", "data_and_optimizers", "dynamics", "steps_too_large"]
