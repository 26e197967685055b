"""Every statistic is declared once, and who repeats a declaration repeats it rightly."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from stethoscope.kernels import measure
from stethoscope.kernels.columns import COLUMNS, stat
from stethoscope.kernels.statistics import DERIVED, STATISTICS, statistic

PAGE = Path(__file__).parents[2] / "frontend/src/types.ts"


def test_a_derived_statistic_follows_from_columns() -> None:
    for one in DERIVED:
        assert one.formula is not None
        assert set(one.inputs) <= set(COLUMNS)
        assert len(set(one.inputs)) == len(one.inputs)


def test_derived_statistics_agree_with_numpy() -> None:
    values = np.array([0.0, 3.0, -4.0, np.nan, np.inf, 0.0])
    rows = measure([values])
    finite = values[np.isfinite(values)]
    assert stat(rows, "num_nonfinite")[0] == 2
    assert stat(rows, "rms")[0] == pytest.approx(np.sqrt(np.mean(finite**2)))
    assert stat(rows, "zero_fraction")[0] == pytest.approx(2 / 6)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(KeyError, match="abs_max"):
        statistic("maximum")


def test_the_page_uses_the_declared_labels() -> None:
    source = PAGE.read_text(encoding="utf-8")
    for table, field in (("STAT_NAMES", "label"), ("STAT_SHORT", "short")):
        body = re.search(rf"{table}: Record<string, string> = {{(.*?)}};", source, re.S)
        assert body is not None
        shown = dict(re.findall(r'(\w+): "([^"]*)"', body[1]))
        assert shown
        for name, words in shown.items():
            declared = getattr(STATISTICS[name], field) or STATISTICS[name].label.lower()
            assert words == declared, name
