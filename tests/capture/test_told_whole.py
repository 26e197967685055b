"""What capture works out as plain JSON is told whole: no field of it has a name that the event does not declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from stethoscope.capture.lineage import Lineage  # noqa: E402
from stethoscope.capture.lossgraph import facts, share_in_step  # noqa: E402
from stethoscope.record import events  # noqa: E402
from tests.capture.lineage_models import Transformer  # noqa: E402
from tests.record.unread import unread  # noqa: E402


def logits() -> torch.Tensor:
    return torch.linspace(-1, 1, 12).view(4, 3).requires_grad_(True)


LABELS = torch.tensor([0, 1, 2, 2])
LOSSES: dict[str, Callable[[], torch.Tensor]] = {
    "a softmax before cross entropy": lambda: F.cross_entropy(logits().softmax(1), LABELS),
    "a sigmoid before its own": lambda: F.binary_cross_entropy_with_logits(logits().sigmoid(), torch.ones(4, 3)),
    "a broadcast": lambda: (logits().sum(1, keepdim=True) - torch.ones(4)).square().mean(),
    "a cut output": lambda: F.mse_loss(logits().relu(), torch.full((4, 3), -0.5)),
    "a clamped loss": lambda: logits().square().clamp(max=0.5).mean(),
    "the smaller of two": lambda: torch.minimum(logits().square(), torch.tensor(0.5)).mean(),
    "a share of a step": lambda: F.cross_entropy(logits(), LABELS) / 4,
}


class Strange(nn.Module):
    """With a layer in a list that registers nothing, one that is never called, and a detour past another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.idle = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.hidden = [nn.Linear(4, 4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        return self.hidden[0](first + torch.tanh(self.second(first)).detach())  # type: ignore[no-any-return]


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_of_a_loss(loss: Callable[[], torch.Tensor]) -> None:
    graph = facts(loss())
    assert len(graph) > 1 or loss is LOSSES["a share of a step"]
    assert unread(graph, events.LossGraph.from_body(graph)) == []
    share = share_in_step(loss())
    assert unread(share, events.Backward.from_body(share)) == []


@pytest.mark.parametrize(
    ("model", "inputs"),
    [(Transformer(), torch.randint(0, 11, (2, 5))), (Strange(), torch.randn(3, 4))],
    ids=["transformer", "strange"],
)
def test_of_a_graph(model: nn.Module, inputs: torch.Tensor) -> None:
    told: list[dict[str, Any]] = []
    lineage = Lineage(model, told.append)
    lineage.attach()
    model(inputs)
    assert told[0]["edges"]
    assert unread(told[0], events.DataFlow.from_body(told[0])) == []
