"""A finding rests on readings, and on nothing else; every rule can tell them, before anything was seen too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import ClassVar

from stethoscope.analyse.span import Span
from stethoscope.detect import Code, Detection, Detector, Reading, Rule
from stethoscope.detect.registry import builtin
from stethoscope.record import Finding, Severity


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


def test_no_detector_finds_anything_but_by_its_rules() -> None:
    for kind in builtin().detectors:
        assert (kind.findings, kind.readings) == (Detector.findings, Detector.readings), kind


def reading(value: float) -> Reading:
    return Reading("a number", value, ">=", 3)


def tells(message: str) -> Callable[[], Finding]:
    return lambda: Finding("found", Severity.INFO, message, 0, 0)


class Given(Detector):
    """Has the rules it is given."""

    codes: ClassVar[tuple[Code, ...]] = (Code("found"),)

    def __init__(self, *rules: Rule) -> None:
        self._rules = rules

    def observe(self, span: Span) -> None: ...

    def rules(self) -> Iterator[Rule]:
        yield from self._rules


def test_a_rule_tells_where_all_of_its_readings_hold() -> None:
    told = Reading("a number that is only told", 1)
    detector = Given(
        Rule("found", (reading(3), told), tells("all hold")),
        Rule("found", (reading(3), reading(2)), tells("one does not")),
    )
    assert [finding.message for finding in detector.findings()] == ["all hold"]


def test_a_rule_that_is_otherwise_is_told_only_where_none_before_it_is() -> None:
    first, second = (Rule("found", (reading(3),), tells(name), name, is_otherwise=True) for name in ("first", "second"))
    quiet = Rule("found", (reading(1),), tells("quiet"), "quiet")
    assert [finding.message for finding in Given(first, second).findings()] == ["first"]
    assert [finding.message for finding in Given(quiet, second).findings()] == ["second"]


def test_readings_of_all_ways_are_told_once_and_of_candidates_those_that_lack_least() -> None:
    common = reading(4)
    detector = Given(
        Rule("found", (common, reading(1)), tells("far"), "one way"),
        Rule("found", (common, reading(2)), tells("near"), "one way"),
        Rule("found", (common, reading(math.nan)), tells("unknown"), "another"),
    )
    told = [(one.way, one.value) for one in detector.readings()["found"]]
    assert told[:2] == [("", 4), ("one way", 2)]
    assert told[2][0] == "another"
    assert math.isnan(told[2][1])
