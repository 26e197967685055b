"""Events of other types, from whatever origin, break no detector, no verdict and no line of the log."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from stethoscope.analyse.span import spans
from stethoscope.detect import Detection
from stethoscope.explain import conclude
from stethoscope.record import events
from stethoscope.store import open_run
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.log import log_data
from tests.detect.written import write_run

WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**62,
    1e308,
    float("nan"),
    "x",
    [],
    {},
    [None],
    [1, "a"],
    [[]],
    [{}],
    {"a": None},
    {"a": []},
    {"a": {}},
    {"a": [-1, 0, 2**62, 0]},
)
LOSSES = {"loss": {step: 1.0 / (step + 1) for step in range(40)}, "lr": dict.fromkeys(range(40), 0.1)}


@pytest.mark.parametrize("kind", sorted(events.KINDS))
def test_no_reader_breaks(kind: str, tmp_path: Path) -> None:
    names = [field.name for field in dataclasses.fields(events.KINDS[kind])]  # type: ignore[arg-type]
    bodies: list[dict[str, Any]] = [{}, *(dict.fromkeys(names, value) for value in WRONG)]
    bodies += [{name: value} for name in names for value in WRONG]
    told = [(number % 40, kind, body) for number, body in enumerate(bodies)]
    run = write_run(tmp_path / "run", LOSSES, told)
    detection = Detection()
    detection.observe(spans(run))
    found = detection.findings()
    assert not detection.errors
    with open_run(tmp_path / "run") as opened:
        conclude(opened, found)
        assert log_data(OpenRun(opened.path))["numEntries"] >= 0
