"""A router is known by what its experts get, not by its name; classes lie where the loss says; gates of a recurrence are apart."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from stethoscope.capture import lossgraph, units  # noqa: E402
from stethoscope.capture.census import _rows_equal  # noqa: E402
from stethoscope.capture.routing import Routing  # noqa: E402


class Desk(nn.Module):
    """Anything that decides among `rooms`, in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.desk, self.rooms, self.head = (
            nn.Linear(6, 3),
            nn.ModuleList(nn.Linear(6, 6) for _ in range(3)),
            nn.Linear(6, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = self.desk(x).softmax(-1)
        if self.how == "all":
            return sum(share[:, n, None] * room(x) for n, room in enumerate(self.rooms))
        if self.how == "one after another":
            for room in self.rooms:
                x = room(x)
            return self.head(x)
        out = torch.zeros_like(x)
        best = share.topk(2 if self.how == "best two" else 1, dim=-1).indices
        for n, room in enumerate(self.rooms):
            rows = (best == n).any(1).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, room(x[rows]))
        return out


def routed(model: nn.Module, x: torch.Tensor) -> dict[str, list[int]]:
    routing = Routing(model)
    hooks = [
        module.register_forward_hook(lambda _, given, out, path=path: routing.see(path, given[0], out))
        for path, module in model.named_modules()
        if path
    ]
    model(x)
    for hook in hooks:
        hook.remove()
    return {
        path: counts[0]
        for path, candidate in routing.settle().items()
        if candidate.is_router(counts := candidate.count().tolist())
    }


@pytest.mark.parametrize("how", ["all", "best", "best two"])
def test_what_experts_get_makes_a_router(how: str) -> None:
    torch.manual_seed(0)
    model, x = Desk(how), torch.randn(32, 6)
    winners = torch.bincount(model.desk(x).argmax(1), minlength=3).tolist()
    assert routed(model, x) == {"desk": winners}


def test_three_blocks_and_three_classes_are_no_experts() -> None:
    torch.manual_seed(0)
    assert routed(Desk("one after another"), torch.randn(32, 6)) == {}


def test_a_gate_of_a_gated_unit_is_no_router() -> None:
    gated = nn.ModuleDict({"gate": nn.Linear(6, 3), "value": nn.Linear(6, 3)})
    gated.forward = lambda x: gated["gate"](x).sigmoid() * gated["value"](x)  # type: ignore[method-assign]
    assert routed(gated, torch.randn(8, 6)) == {}


def told_of(output: torch.Tensor, reading: lossgraph.Reading | None = None) -> dict[str, float]:
    numbers = units.logits(output, reading)
    return {} if numbers is None else units.logit_facts(numbers.numpy())


def test_classes_of_pixels_lie_where_the_loss_reads_them() -> None:
    torch.manual_seed(0)
    output = torch.randn(4, 3, 5, 7, requires_grad=True)
    reading = lossgraph.reading(F.cross_entropy(output, torch.zeros(4, 5, 7, dtype=torch.long)))
    told = told_of(output, reading)
    assert told["output/num_units"] == 3.0
    winners = torch.bincount(output.argmax(1).flatten())
    assert told["output/top_share"] == pytest.approx(float(winners.max()) / 140)
    assert told_of(output) == {}  # nobody has said it yet


def test_one_logit_a_pixel_is_two_classes_and_labels_side_by_side_are_none() -> None:
    output = torch.full((4, 1, 5, 7), -2.0, requires_grad=True)
    reading = lossgraph.reading(F.binary_cross_entropy_with_logits(output, torch.zeros(4, 1, 5, 7)))
    assert told_of(output, reading) == {"output/top_share": 1.0, "output/top_class": 0.0, "output/num_units": 1.0}
    several = torch.zeros(4, 10, requires_grad=True)
    reading = lossgraph.reading(F.binary_cross_entropy_with_logits(several, torch.zeros(4, 10)))
    assert told_of(several, reading) == {}


def test_gates_stand_one_above_the_other() -> None:
    stacked = torch.cat([torch.full((4, 2), float(gate)) for gate in range(3)])
    assert _rows_equal(stacked, 3)
    assert not _rows_equal(stacked)
    assert not _rows_equal(stacked + torch.eye(12, 2), 3)
