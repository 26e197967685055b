"""What the graph of a loss tells: how a backward counts in its step, where the loss is cut off, what cannot be negative."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from stethoscope.capture.lossgraph import facts, share_in_step  # noqa: E402


def _logits() -> torch.Tensor:
    return torch.linspace(-1, 1, 12).view(4, 3).requires_grad_(True)


def test_a_factor_before_the_loss_and_the_targets_it_is_a_mean_of() -> None:
    labels = torch.tensor([0, 1, -100, 2])
    loss = F.cross_entropy(_logits(), labels)
    assert share_in_step(loss) == {"factor": 1.0, "by": "NllLoss", "num_targets": 3.0}
    assert share_in_step(loss / 4)["factor"] == 0.25
    assert share_in_step(loss * 0.5 / 2)["factor"] == 0.25
    assert share_in_step(F.cross_entropy(_logits(), labels, reduction="sum") / 3)["num_targets"] == 0.0
    assert share_in_step(F.mse_loss(_logits(), torch.zeros(4, 3)))["num_targets"] == 12.0


def test_a_hinge_is_no_clamped_loss() -> None:
    margins = _logits()
    assert "clamped" not in facts((margins + 1).clamp(min=0).mean())
    assert facts(margins.clamp(max=0.5).mean())["clamped"]["share"] == pytest.approx(0.25)
    assert facts(-(margins.clamp(min=-0.5)).mean())["clamped"]["share"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("last", "is_cut"),
    [(F.relu, True), (F.relu6, True), (torch.sigmoid, True), (F.softplus, True), (torch.tanh, False), (F.hardtanh, False)],
)
def test_an_output_that_cannot_be_negative(last: object, is_cut: bool) -> None:
    assert callable(last)
    found = facts(F.mse_loss(last(_logits()), torch.full((4, 3), -0.5)))
    assert ("output_cut" in found) is is_cut
