"""Random programs over a few modules: the graph's ancestors against sets that the program keeps by itself."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from stethoscope.analyse.graph import Graph

from .lineage_reading import follow


class Program(nn.Module):
    """Calls modules, some several times, and joins their values, as the seed says."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.parts = nn.ModuleList(nn.Tanh() if n % 2 else nn.Linear(4, 4) for n in range(seed % 6 + 2))
        self.took: dict[str, set[str]] = {}
        """From a module to the producers whose data went into it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        choose = random.Random(self.seed)
        first = self.parts[0](x)
        self.took["parts.0"] = {"(input)"}
        values = [(x, {"(input)"}), (first, {"parts.0"})]
        for _ in range(choose.randint(4, 20)):
            (a, from_a), (b, from_b) = choose.choice(values), choose.choice(values)
            what = choose.choice(("call", "call", "add", "gate", "cat", "view", "detach", "write"))
            both = from_a | from_b
            if what == "call":
                number = choose.randrange(len(self.parts))
                self.took.setdefault(f"parts.{number}", set()).update(from_a)
                values.append((self.parts[number](a), {f"parts.{number}"}))
            elif what == "view":
                values.append((a.flatten().view(2, 4), from_a))
            elif what == "detach":
                values.append((a.detach(), from_a))
            elif what == "write":
                kept = a.clone()
                kept[:, :2] = b[:, 2:]
                values.append((kept, both))
            elif what == "add":
                values.append((a + b, both))
            elif what == "gate":
                values.append((a * b, both))
            else:
                values.append((torch.cat([a, b], 1)[:, 2:6], both))
        self.took["(output)"] = values[-1][1]
        return values[-1][0]

    def ancestors(self, name: str) -> set[str]:
        """Everything that is upstream, by the program's own account."""
        found: set[str] = set()
        ahead = [name]
        while ahead:
            new = self.took.get(ahead.pop(), set()) - found
            found |= new
            ahead.extend(new)
        return found


def upstream(graph: Graph, name: str) -> set[str]:
    return {path for path in graph.ancestors(name) if graph.nodes[path].role != "join"}


@pytest.mark.parametrize("block", range(4))
def test_ancestors_are_those_of_the_program(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        program = Program(seed)
        graph = follow(program, torch.randn(2, 4))
        for name in program.took:
            wanted = program.ancestors(name) - {name}
            assert upstream(graph, name) == wanted, (seed, name)
            assert upstream(graph.direct(), name) == wanted, (seed, name, "direct")
        assert set(graph.order) >= set(program.took) - {"(output)"}
