"""Groups of codes that many causes lead to, for `Code.leads_to`."""

from __future__ import annotations

from typing import Final

LEARNING_TROUBLE: Final = (
    "update_too_small",
    "update_too_large",
    "vanishing_gradients",
    "exploding_gradients",
    "oscillation",
    "lr_too_high",
)
UNIT_TROUBLE: Final = ("dead_units", "saturated_units", "dormant_units")
BLOW_UP: Final = ("nonfinite_origin", "precision_overflow", "nonfinite_buffer", "loss_scale_collapse")
