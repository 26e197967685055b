"""What following the first training forward costs, once: a 12-layer transformer and a model of 1,000 modules.

Prints the forward pass as it is, the same pass when it is followed, and the difference, in milliseconds; medians of
interleaved repetitions, each on a fresh attachment. `--write` puts the table into results/lineage.md.
"""

from __future__ import annotations

import datetime
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from stethoscope.analyse.graph import Graph
from stethoscope.capture.lineage import Lineage

REPETITIONS = 15


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        parts = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.fc2(F.gelu(self.fc1(self.ln2(x)))))


class Transformer(nn.Module):
    def __init__(self, depth: int = 12, width: int = 128, vocabulary: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(64, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Thousand(nn.Module):
    """250 residual blocks of four modules each."""

    def __init__(self) -> None:
        super().__init__()
        parts = [nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU()) for _ in range(250)]
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = x + part(x)
        return x


def timed_ms(model: nn.Module, batch: torch.Tensor) -> float:
    began = time.perf_counter()
    model(batch)
    return (time.perf_counter() - began) * 1e3


def measure(model: nn.Module, batch: torch.Tensor) -> tuple[float, float, dict[str, Any]]:
    plain, followed, body = [], [], {}
    timed_ms(model, batch)
    for _ in range(REPETITIONS):
        plain.append(timed_ms(model, batch))
        got: list[dict[str, Any]] = []
        began = time.perf_counter()
        Lineage(model, got.append).attach()
        attach_ms = (time.perf_counter() - began) * 1e3
        followed.append(attach_ms + timed_ms(model, batch))
        body = got[0]
        assert body["status"] == "traced", body
    return statistics.median(plain), statistics.median(followed), body


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases = {
        "transformer, 12 layers": (Transformer(), torch.randint(0, 512, (4, 64))),
        "1,000 modules": (Thousand(), torch.randn(8, 32)),
    }
    lines = [
        "| model | modules | forward, ms | followed, ms | cost once, ms | edges | without joins | JSON, KB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, (model, batch) in cases.items():
        plain, followed, body = measure(model, batch)
        graph = Graph.from_json(body)
        size = len(json.dumps(body)) / 1024
        lines.append(
            f"| {name} | {len(list(model.modules())):,} | {plain:.1f} | {followed:.1f} | {followed - plain:.1f} "
            f"| {len(graph.edges):,} | {len(graph.direct().edges):,} | {size:.0f} |"
        )
    print("\n".join(lines))
    if "--write" in sys.argv:
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        text = "# The data-flow graph: what it costs, once\n\n"
        text += f"{today}, torch {torch.__version__}, CPU, one thread; medians of {REPETITIONS} interleaved passes.\n"
        text += "Printed by `benchmarks/lineage.py --write`.\n\n" + "\n".join(lines) + "\n"
        (Path(__file__).parent / "results" / "lineage.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
