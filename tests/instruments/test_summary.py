"""inspect(x): one line, more on request, safe in a page."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rich.console import Console

from stethoscope.instruments.summary import SummaryList, TensorSummary, inspect


def test_one_line_says_what_it_is():
    values = torch.linspace(-1, 1, 128 * 64).reshape(128, 64)
    line = repr(inspect(values, "weight"))
    assert "\n" not in line
    for part in ("weight", "float32[128, 64]", "32.8 kB", "-1.00 … 1.00", "± 0.577"):
        assert part in line


def test_trouble_is_in_the_line():
    values = np.ones((3, 4))
    values[1, 2] = np.nan
    values[2] = 0
    line = repr(inspect(values))
    assert "1 NaN from [1, 2]" in line
    assert "33% zero" in line


@pytest.mark.parametrize(
    "value", [3.5, [1, 2, 3], np.zeros((0, 2)), torch.tensor(True), torch.randn(3, dtype=torch.cfloat)]
)
def test_anything_array_like_has_a_line_and_a_detail(value):
    summary = inspect(value)
    assert isinstance(summary, TensorSummary)
    assert repr(summary)
    assert summary.detail().startswith(repr(summary))


def test_whole_numbers_stay_whole():
    assert "1 … 3" in repr(inspect([1, 2, 3]))


def test_a_model_and_a_mapping_give_one_line_each():
    listed = inspect(torch.nn.Linear(3, 4))
    assert isinstance(listed, SummaryList)
    assert repr(listed).splitlines()[0].startswith("weight")
    assert listed["bias"].stats.shape == (4,)
    many = inspect({f"t{i}": [1.0] for i in range(205)})
    assert "5 more arrays" in repr(many)


def test_html_is_escaped_and_static():
    page = inspect([1.0, 2.0], "<script>alert(1)</script>")._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_control_characters_never_reach_the_terminal():
    assert "\x1b" not in repr(inspect([1.0], "a\x1b[31mb"))


def test_rich_shows_every_row():
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    with console.file:
        console.print(inspect(np.arange(100.0)).rich())
    text = console.export_text()
    assert "kurtosis" in text
    assert "p99" in text
