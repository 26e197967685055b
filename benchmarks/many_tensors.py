"""Ten thousand small tensors in one model: what watching costs per tensor and step.

    PYTHONPATH=src python benchmarks/many_tensors.py [cpu|cuda] [--tensors 10000] [--elements 256]

Plain and watched steps take turns; the difference of the medians, divided by the number of tensors.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import stethoscope


class Many(torch.nn.Module):
    def __init__(self, tensors: int, elements: int) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.randn(elements) for _ in range(tensors))

    def forward(self) -> torch.Tensor:
        return torch.cat(list(self.parts)).square().mean()


VARIANTS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "gradients": {"weights": False, "updates": False, "optimizer_state": False, "every": 1},
    "gradients, weights, updates, optimizer state": {"every": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("device", nargs="?", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tensors", type=int, default=10_000)
    parser.add_argument("--elements", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = Many(asked.tensors, asked.elements).to(asked.device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        model().backward()
        optimizer.step()

    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(asked.rounds):
        for name, settings in VARIANTS.items():
            session = None
            if settings is not None:
                folder = Path(tempfile.mkdtemp()) / "run"
                session = stethoscope.watch(
                    model, optimizer, run=folder, quiet=True, companion="off", activations=False, graph=False,
                    buffers=False, histogram_every=0, **settings,
                )  # fmt: skip
            for number in range(10):
                if asked.device == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
                step()
                if asked.device == "cuda":
                    torch.cuda.synchronize()
                if number > 2:
                    times[name].append(time.perf_counter() - began)
            if session is not None:
                assert not session._watcher.guard.errors, session._watcher.guard.last_traceback
                session.stop()
    base = statistics.median(times["plain"])
    print(
        f"\n{asked.tensors:,} tensors of {asked.elements} elements on {asked.device}, torch {torch.__version__}"
    )
    print("\n| watched | step, ms | more, µs per tensor |\n| --- | --- | --- |")
    for name, found in times.items():
        middle = statistics.median(found)
        print(f"| {name} | {middle * 1e3:.1f} | {(middle - base) / asked.tensors * 1e6:.2f} |")


if __name__ == "__main__":
    main()
