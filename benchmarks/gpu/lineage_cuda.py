"""Following the first forward on a GPU: same bits, no synchronisation, no memory kept, and what it costs once.

Prints one line a fact and exits with 1 where a promise is broken.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from typing import Any

import torch
from benchmarks.lineage import Transformer

from stethoscope.capture.lineage import Lineage


def forward(model: torch.nn.Module, batch: torch.Tensor, *, followed: bool, backward: bool = True) -> Any:
    torch.manual_seed(1)
    got: list[dict[str, Any]] = []
    if followed:
        Lineage(model, got.append).attach()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    began = time.perf_counter()
    torch.cuda.set_sync_debug_mode("error")
    with torch.autocast("cuda", torch.bfloat16):
        out = model(batch)
    torch.cuda.set_sync_debug_mode("default")
    took_ms = (time.perf_counter() - began) * 1e3
    peak = torch.cuda.max_memory_allocated() - held
    assert not followed or got[0]["status"] == "traced", got
    if backward:
        out.float().square().mean().backward()
    bits = [
        out.detach(),
        *(p.grad for p in model.parameters() if p.grad is not None),
        torch.cuda.get_rng_state(),
    ]
    return took_ms, peak, bits


def main() -> int:
    torch.manual_seed(0)
    plain = Transformer(width=768, vocabulary=32_000).cuda()
    batch = torch.randint(0, 32_000, (8, 64), device="cuda")
    forward(plain, batch, followed=False)
    plain.zero_grad()
    twin = copy.deepcopy(plain)
    _, _, bits = forward(plain, batch, followed=False)
    _, _, bits_followed = forward(twin, batch, followed=True)
    same = all(torch.equal(a, b) for a, b in zip(bits, bits_followed, strict=True))
    del bits, bits_followed
    del twin
    times: dict[bool, list[float]] = {False: [], True: []}
    peaks: dict[bool, set[int]] = {False: set(), True: set()}
    for _ in range(15):
        for followed in (False, True):
            took_ms, peak, _ = forward(plain, batch, followed=followed, backward=False)
            times[followed].append(took_ms)
            peaks[followed].add(peak)
    cost_ms = statistics.median(times[True]) - statistics.median(times[False])
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, 12 layers, width 768, bf16 autocast")
    print(f"outputs, gradients and random state the same to the bit: {same}")
    print("synchronisations while followed: 0")
    print(f"peak memory of the forward, plain and followed: {max(peaks[False]):,} and {max(peaks[True]):,} bytes")
    print(f"cost once: {cost_ms:.1f} ms over a launch of {statistics.median(times[False]):.1f} ms")
    return 0 if same and max(peaks[True]) <= 1.001 * max(peaks[False]) else 1


if __name__ == "__main__":
    sys.exit(main())
