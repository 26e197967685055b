"""How fast the C kernel is: bandwidth of the core row against torch.sum, and the cost of tiny tensors.

    python -m benchmarks.cpu_kernel [--elements 20000000] [--rounds 12]

The two are measured in turn, best of the rounds, because torch.sum alone swings by a factor of two between runs
on a shared machine. The budget: float32 >= 2/3 and bf16 >= 1/3 of torch.sum's bandwidth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from stethoscope import kernels
from stethoscope.kernels import Extras, Sample, cpu
from stethoscope.kernels.pointers import collect

BUDGET = {torch.float32: 2 / 3, torch.bfloat16: 1 / 3}


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def best(work: Callable[[], Any], rounds: int) -> float:
    return min(seconds(work) for _ in range(rounds))


def bandwidth(elements: int, rounds: int) -> None:
    print(f"## Core row, {elements:,} elements, GB/s\n")
    print("| dtype | torch.sum | C kernel | ratio | budget |\n| --- | --- | --- | --- | --- |")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        tensor = torch.randn(elements, dtype=torch.float32).to(dtype)
        ours, theirs = [], []
        for _ in range(rounds):
            theirs.append(seconds(lambda t=tensor: torch.sum(t)))
            ours.append(seconds(lambda t=tensor: kernels.measure_async([t])))
        size = tensor.nbytes / 1e9
        ratio = min(theirs) / min(ours)
        budget = f">= {BUDGET[dtype]:.2f}" if dtype in BUDGET else ""
        name = str(dtype).removeprefix("torch.")
        print(f"| {name} | {size / min(theirs):.1f} | {size / min(ours):.1f} | {ratio:.2f} | {budget} |")


def extras(elements: int, rounds: int) -> None:
    tensor = torch.randn(elements)
    row = best(lambda: kernels.measure_async([tensor]), rounds)
    print(f"\n## On a schedule, float32, {elements:,} elements\n")
    for name, asked in (("histogram", Extras(histogram=True)), ("sketch", Extras(sketch=True))):
        spent = best(lambda a=asked: kernels.measure_async([tensor], extras=a), max(3, rounds // 3)) - row
        print(f"- {name}: {spent / elements * 1e9:.2f} ns an element more than the row's {row / elements * 1e9:.2f}")


def tiny(rounds: int) -> None:
    loaded = cpu.library()
    assert loaded is not None
    print("\n## 10,000 tensors in one call, ns each\n")
    print("| elements | collecting (Python) | rows (C) | start(), all |\n| --- | --- | --- | --- |")
    for count in (16, 64, 1024):
        tensors = [torch.randn(count) for _ in range(10_000)]
        table = collect(tensors)
        assert table is not None
        gather, rows = best(lambda t=tensors: collect(t), rounds), best(lambda t=table: cpu.rows(loaded, t), rounds)
        whole = best(lambda t=tensors: kernels.measure_async(t), rounds)
        print(f"| {count} | {gather * 1e5:.0f} | {rows * 1e5:.0f} | {whole * 1e5:.0f} |")


def one_step(rounds: int) -> None:
    print("\n## A step of a small model: 50 tensors, microseconds a call\n")
    print("| each | start() | of it Python | Sample.read | Sample.difference |\n| --- | --- | --- | --- | --- |")
    loaded = cpu.library()
    assert loaded is not None
    for shape in ((8,), (64, 64), (128, 128)):
        tensors = [torch.nn.Parameter(torch.randn(shape)) for _ in range(50)]
        sample = Sample(tensors)
        before = sample.read(tensors)
        table = collect(tensors)
        assert table is not None
        many = rounds * 20
        start = best(lambda t=tensors: kernels.measure_async(t), many)
        inside = best(lambda t=table: cpu.rows(loaded, t), many)
        read = best(lambda s=sample, t=tensors: s.read(t), many)
        change = best(lambda s=sample, b=before: s.difference(b, b), many)
        name = " x ".join(map(str, shape))
        python = max(start - inside, 0.0)
        print(f"| {name} | {start * 1e6:.0f} | {python * 1e6:.0f} | {read * 1e6:.0f} | {change * 1e6:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--elements", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=12)
    asked = parser.parse_args()
    print(f"{kernels.backend()}; torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    bandwidth(asked.elements, asked.rounds)
    extras(asked.elements, asked.rounds)
    tiny(asked.rounds)
    one_step(asked.rounds)


if __name__ == "__main__":
    main()
