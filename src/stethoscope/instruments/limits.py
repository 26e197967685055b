"""That an instrument's limits are its own: said with every answer that rests on them.

They are the seeds' numbers, mostly: fixed sizes, one set for each instrument, kept because scripts rely on them. A run's
diagnosis uses none of them; it compares within the run. So the two can differ about one run, and each says what it goes by.
"""

from __future__ import annotations


def own_limits(instrument: str, rules: str) -> str:
    """The sentence that goes with an answer."""
    return f"By limits of the {instrument}'s own: {rules}. A run's diagnosis goes by the run itself, and may differ."
