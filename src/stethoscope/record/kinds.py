"""What is measured at a site, and how much a finding matters."""

from __future__ import annotations

from enum import StrEnum

ROOT_NAME = "(root)"


class Severity(StrEnum):
    """How much a finding matters; only Warning and Critical ever become causes."""

    INFO = "Info"
    WARNING = "Warning"
    CRITICAL = "Critical"

    @property
    def rank(self) -> int:
        """0 for Info, 1 for Warning, 2 for Critical: for sorting and thresholds."""
        return list(Severity).index(self)


class Kind(StrEnum):
    """What is measured at a site."""

    WEIGHT = "weight"
    GRADIENT = "gradient"
    UPDATE = "update"
    ACTIVATION = "activation"
    ACTIVATION_GRADIENT = "activation_gradient"
    OPTIMIZER_STATE = "optimizer_state"
    BUFFER = "buffer"
    INPUT = "input"
    TARGET = "target"
    OUTPUT = "output"
    LOSS = "loss"


OUTPUT_KINDS = frozenset({Kind.ACTIVATION, Kind.ACTIVATION_GRADIENT, Kind.OUTPUT})
"""What is measured on what a module returns: the name of such a site is a position or a key, no name of its own."""
