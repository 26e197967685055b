"""What the graph of a loss tells: how a backward counts in its step, where the loss is cut off, what cannot be negative."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from stethoscope.capture.lossgraph import facts, share_in_step  # noqa: E402
from stethoscope.capture.nodes import own  # noqa: E402


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
    [
        (F.relu, True),
        (F.relu6, True),
        (torch.sigmoid, True),
        (F.softplus, True),
        (torch.tanh, False),
        (F.hardtanh, False),
    ],
)
def test_an_output_that_cannot_be_negative(last: object, is_cut: bool) -> None:
    assert callable(last)
    found = facts(F.mse_loss(last(_logits()), torch.full((4, 3), -0.5)))
    assert ("output_cut" in found) is is_cut


def _by_hand(logits: torch.Tensor, dim: int) -> torch.Tensor:
    powers = (logits - logits.amax(dim, keepdim=True)).exp()
    return powers / powers.sum(dim, keepdim=True)


@pytest.mark.parametrize(
    ("last", "name"),
    [
        (lambda x: x.softmax(-1), "Softmax"),
        (lambda x: x.softmax(-1).clamp(min=1e-6), "Softmax"),
        (lambda x: x.softmax(-1) + 1e-8, "Softmax"),
        (lambda x: _by_hand(x, -1), "Softmax"),
        (lambda x: 1 / (1 + torch.exp(-x)), "Sigmoid"),
        (lambda x: x, None),
        (lambda x: x.log_softmax(-1), None),
        (lambda x: x.softmax(-1).log(), None),
        (lambda x: _by_hand(x, 0), None),
        (lambda x: 1 / (1 + x * x), None),
        (lambda x: x.clamp(0, 1), None),
    ],
)
def test_probabilities_that_go_into_cross_entropy(last: object, name: str | None) -> None:
    assert callable(last)
    labels = torch.tensor([0, 1, 0, 2])
    assert facts(F.cross_entropy(last(_logits()), labels)).get("double_softmax") == name
    assert facts(F.cross_entropy(last(_logits()), labels, label_smoothing=0.1)).get("double_softmax") == name
    shares = torch.full((4, 3), 1 / 3)
    assert facts(F.cross_entropy(last(_logits()), shares)).get("double_softmax") == name


@pytest.mark.parametrize(
    ("last", "name"),
    [
        (torch.sigmoid, "Sigmoid"),
        (lambda x: torch.sigmoid(x).clamp(0.01, 0.99), "Sigmoid"),
        (lambda x: 1 / (1 + torch.exp(-x)), "Sigmoid"),
        (lambda x: torch.reciprocal(1 + torch.exp(-x)), "Sigmoid"),
        (lambda x: torch.exp(x) / (1 + torch.exp(x)), "Sigmoid"),
        (lambda x: torch.div(torch.ones(4, 3), 1 + torch.exp(-x)), "Sigmoid"),
        (lambda x: x, None),
        (lambda x: torch.exp(x) / 2, None),
        (lambda x: 5 / (0.1 + torch.exp(-x)), None),
        (lambda x: x / (1 + torch.exp(x)), None),
    ],
)
def test_probabilities_that_go_into_a_loss_of_logits(last: object, name: str | None) -> None:
    assert callable(last)
    loss = F.binary_cross_entropy_with_logits(last(_logits()), torch.ones(4, 3))
    assert facts(loss).get("double_sigmoid") == name


def test_the_smaller_of_a_loss_and_a_constant_is_a_clamp() -> None:
    terms = _logits()
    assert facts(torch.minimum(terms, torch.full_like(terms, 0.5)).mean())["clamped"]["share"] == pytest.approx(0.25)
    assert facts(torch.minimum(torch.tensor(0.5), terms).mean())["clamped"]["max"] == pytest.approx(0.5)
    assert facts(-torch.maximum(terms, torch.tensor(-0.5)).mean())["clamped"]["share"] == pytest.approx(0.25)
    assert "clamped" not in facts(torch.maximum(terms, torch.tensor(0.0)).mean())
    assert "clamped" not in facts(torch.minimum(terms, 2 * terms).mean())


def test_the_targets_of_a_square_that_was_written_out() -> None:
    target = torch.tensor([-1.0, 2.0, -3.0, 4.0])
    for last in (F.relu, lambda x: x.clamp(min=0), torch.exp):
        for square in (lambda d: d**2, lambda d: d * d, torch.square, torch.abs):
            out = last(_logits()[:, 0])
            for loss in (square(out - target).mean(), (square(target - out) / 2).sum()):
                assert facts(loss)["output_cut"]["negative_targets"] == 0.5
            assert facts(square(out - target.abs()).mean())["output_cut"]["negative_targets"] == 0.0
    assert "output_cut" not in facts(((_logits()[:, 0] - target) ** 2).mean())
    # A distance that is no loss by itself: of a kernel's centers, which are positive, to inputs that are not.
    near = torch.exp(-((target - F.softplus(_logits()[:, 0])) ** 2))
    assert facts(near.mean()).get("output_cut", {}).get("negative_targets") is None


def test_the_targets_that_a_loss_reads() -> None:
    labels = torch.tensor([2, 0, 2, -1])
    found = facts(F.cross_entropy(_logits(), labels, ignore_index=-1))
    assert found["class_counts"] == [1, 0, 2]
    numbers = torch.tensor([0.0, 1.0, 1.0, 4.0])
    for loss in (F.mse_loss, F.huber_loss, F.binary_cross_entropy_with_logits):
        found = facts(loss(_logits()[:, 0], numbers))
        assert (found["target_mean"], found["target_square"]) == (1.5, 4.5)
    assert "target_mean" not in facts(F.mse_loss(_logits()[:, 0], 2 * _logits()[:, 1])), "another output is no target"


def test_the_module_that_made_what_the_fact_is_about() -> None:
    mean, spread = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    x, target = torch.ones(4, 3), torch.full((4,), -1.0)
    outputs = mean(x), spread(x)
    for out, path in zip(outputs, ("mean", "spread"), strict=True):
        own(out.grad_fn, path)
    loss = ((target[:, None] - F.relu(outputs[0])) ** 2 / outputs[1].exp()).mean()
    assert facts(loss)["made_by"] == {"output_cut": "mean"}
    wide = ((target - outputs[0]) ** 2 / outputs[1].exp()).mean()
    assert facts(wide)["made_by"] == {"broadcast": "mean"}
