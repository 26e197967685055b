"""What GradientFlowAnimator.record_step costs against the same numbers by torch operations.

100 million gradient elements in the shapes of a transformer's parameters. Both sides run in turn, so that
whatever else the machine does falls on both alike; the ratio of the medians is the claim.

    python -m benchmarks.animator [--device cuda] [--out benchmarks/results/animator.md]
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from stethoscope.instruments import GradientFlowAnimator

SHAPES = {
    "attn.qkv": (2304, 768),
    "attn.out": (768, 768),
    "mlp.up": (3072, 768),
    "mlp.down": (768, 3072),
    "ln": (768,),
}


def gradients(num_elements: int, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    """Blocks of a transformer until the count is reached."""
    generator = torch.Generator(device=device).manual_seed(0)
    out: dict[str, torch.Tensor] = {}
    left, block = num_elements, 0
    while left > 0:
        for name, shape in SHAPES.items():
            size = min(math.prod(shape), left)
            if size <= 0:
                break
            flat = torch.randn(size, generator=generator, device=device).mul_(1e-3)
            out[f"blocks.{block}.{name}"] = flat.to(dtype)
            left -= size
        block += 1
    return out


def by_torch(grads: dict[str, torch.Tensor]) -> dict[str, tuple[float, float, float]]:
    """Mean absolute value, largest absolute value and norm of each, as a user would write it."""
    return {
        name: (grad.abs().mean().item(), grad.abs().max().item(), grad.norm().item()) for name, grad in grads.items()
    }


def timed(run: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def compare(grads: dict[str, torch.Tensor], device: str, rounds: int) -> tuple[float, float]:
    """Median seconds of ours and of torch's; the first round warms up and does not count."""
    animator = GradientFlowAnimator(max_frames=2)
    ours, theirs = [], []
    for step in range(rounds + 1):
        ours.append(timed(partial(animator.record_step, step, grads), device))
        theirs.append(timed(partial(by_torch, grads), device))
    expected = by_torch(grads)
    for layer in animator.frames[-1].layers:
        assert math.isclose(layer.grad_norm, expected[layer.name][2], rel_tol=2e-2), layer
    return statistics.median(ours[1:]), statistics.median(theirs[1:])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu")
    options.add_argument("--elements", type=int, default=100_000_000)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--out", type=Path)
    chosen = options.parse_args()
    threads = torch.get_num_threads()
    name = torch.cuda.get_device_name() if chosen.device == "cuda" else f"CPU, {threads} threads"
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    lines = [
        f"{name}, {versions}, {chosen.elements:,} elements, median of {chosen.rounds} rounds in turn.",
        "",
        "| dtype | tensors | record_step | three numbers by torch ops | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for dtype in (torch.float32, torch.bfloat16):
        grads = gradients(chosen.elements, dtype, chosen.device)
        ours, theirs = compare(grads, chosen.device, chosen.rounds)
        times = f"{ours * 1e3:.1f} ms | {theirs * 1e3:.1f} ms | {ours / theirs:.2f}"
        lines.append(f"| {str(dtype).removeprefix('torch.')} | {len(grads)} | {times} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if chosen.out is not None:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        kept = chosen.out.read_text() if chosen.out.exists() else "# GradientFlowAnimator.record_step\n"
        chosen.out.write_text(f"{kept}\n{text}")


if __name__ == "__main__":
    main()
