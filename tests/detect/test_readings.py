"""Every rule can tell the numbers it asks for, before anything was seen too."""

from __future__ import annotations

import math

from stethoscope.detect import Detection, Reading
from stethoscope.detect.registry import builtin


def test_every_code_has_readings_and_none_holds_before_anything_was_seen() -> None:
    readings = Detection().readings()
    assert set(readings) == set(builtin().codes)
    for code, numbers in readings.items():
        asked = [reading for reading in numbers if reading.sign]
        assert asked, code
        assert not all(reading.holds for reading in asked), code


def test_a_reading_without_a_measurement_does_not_hold() -> None:
    assert Reading("x", math.nan, ">=", 0).holds is False
    assert Reading("x", 3, ">=", 3).holds is True
    assert Reading("x", 3).holds is None
