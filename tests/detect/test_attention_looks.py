"""Attention that collapsed stays told when NaN follows: a look at nothing takes nothing back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.detect.written import codes, find, write_run


def looks(num_nan: int) -> list[tuple[int, str, dict[str, object]]]:
    """An attention that is open for a while, closes, and is NaN at the end."""
    facts = []
    for number in range(60 + num_nan):
        open_share = 0.9 if number < 20 else max(0.9 - 0.08 * (number - 20), 0.01)
        entropy = math.nan if number >= 60 else 4.0 * open_share
        logit = math.nan if number >= 60 else 3.0 if number < 20 else 3.0 + 4.0 * (number - 20)
        numbers = {"entropy": entropy, "uniform": 4.0, "top": 0.5, "lowest_head": entropy, "max_logit": logit}
        facts.append((8 * number, "attention", {"modules": {"layers.1.attn": numbers}}))
    return facts


@pytest.mark.parametrize("num_nan", [0, 1, 30])
def test_a_collapse_is_told_whatever_follows(num_nan: int, tmp_path: Path) -> None:
    loss = {"loss": dict.fromkeys(range(8 * (60 + num_nan)), 2.0)}
    assert "attention_logit_growth" in codes(find(write_run(tmp_path, loss, looks(num_nan))))
