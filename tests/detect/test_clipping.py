"""A clip far below the norm: a cause where steps have the gradient's size, a note where the optimizer divides by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stethoscope.detect.groups import is_scale_free
from stethoscope.record.events import ParameterGroup
from tests.detect.trainings import Net, train

KINDS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any], bool]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}, True),
    "Adam": (torch.optim.Adam, {}, False),
    "AdamW": (torch.optim.AdamW, {}, False),
    "decay in the gradient": (torch.optim.Adam, {"weight_decay": 0.01}, True),
    "a large eps": (torch.optim.Adam, {"eps": 1e-3}, True),
    "Adadelta": (torch.optim.Adadelta, {}, True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_whose_steps_feel_it(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    model = Net()
    make, settings, is_felt = KINDS[kind]
    optimizer = make(model.parameters(), **settings)  # type: ignore[arg-type]
    clip = lambda _step: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)  # noqa: E731
    session = train(model, optimizer, tmp_path, num_steps=60, before_step=clip)
    (found,) = [f for f in session.diagnosis.findings if f.code == "clipping_always_on"]
    assert (found.severity == "Warning") is is_felt
    assert ("divides by that size" in found.message) is not is_felt


def test_a_step_of_adam_does_not_change_with_the_gradient_s_size() -> None:
    """What the rule rests on, and where it ends: at eps."""

    def moved(size: float) -> float:
        weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
        optimizer = torch.optim.Adam([weight], lr=0.1)
        for gradient in (1.0, -0.3, 0.8):
            weight.grad = torch.full_like(weight, gradient * size)
            optimizer.step()
        return float(weight.detach()[0])

    group = ParameterGroup(optimizer="Adam", sites=("weight",), settings={"eps": 1e-8, "weight_decay": 0})
    assert moved(1e-4) == pytest.approx(moved(1.0), rel=1e-3)
    assert is_scale_free(group, 1e-4)
    assert moved(1e-9) != pytest.approx(moved(1.0), rel=0.5)
    assert not is_scale_free(group, 1e-9)
