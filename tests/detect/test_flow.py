"""Gradients that jump: above all the run had, or back to what it learned with."""

from __future__ import annotations

import numpy as np
import pytest

from stethoscope.detect.flow import Flow


def codes(sizes: list[float]) -> list[str]:
    flow = Flow()
    for step, size in enumerate(sizes):
        flow._size(step, np.array([size]), ["0.weight"])
    return [finding.code for finding in flow.findings()]


LEARNED = [0.9**step for step in range(100)]
"""From 1 down to almost nothing."""


@pytest.mark.parametrize(("jump", "found"), [(3.0, []), (1e3, ["exploding_gradients"])])
def test_a_hard_sample_after_all_is_learned_is_no_explosion(jump: float, found: list[str]) -> None:
    assert codes([*LEARNED, *(size for _ in range(4) for size in (jump, 1e-5, 1e-5))]) == found


def test_a_gradient_that_jumps_from_its_usual_size_explodes() -> None:
    assert codes([1.0] * 60 + [500.0, 1.0] * 3) == ["exploding_gradients"]
