"""What detecting costs in the companion: processor time a step, for 2,000 sites, beside the time to read them.

    python -m benchmarks.detectors [--sites 2000] [--steps 300]

The run is synthetic: 500 layers with a weight, its gradient, its update and an output each, noisy, with a falling loss. It
is read and fed as a companion does it, a few steps at a time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.store import Data

from stethoscope.analyse.span import spans
from stethoscope.detect import Detection
from stethoscope.explain import diagnose
from stethoscope.record import Kind, Site, SiteInfo
from stethoscope.store import RunWriter, open_run

KINDS = ((Kind.WEIGHT, "weight"), (Kind.GRADIENT, "weight"), (Kind.UPDATE, "weight"), (Kind.ACTIVATION, ""))
LOOK_STEPS = 10
TRAINED = 2000


def write(folder: Path, num_sites: int, num_steps: int) -> None:
    """The run."""
    data, rng = Data(num_sites), np.random.default_rng(0)
    writer = RunWriter.create(folder, {"name": "detectors"}, queue_bytes=256 << 20)
    writer.sites(
        [SiteInfo(Site(f"layers.{n // 4}", *KINDS[n % 4]), (768, 768), "float32", 768 * 768) for n in range(num_sites)]
    )
    index = np.arange(num_sites, dtype=np.uint32)
    for step in range(num_steps):
        writer.rows(step, index, data.step(step))
        writer.scalars(step, {"loss": 3 * np.exp(-step / 200) + rng.normal(0, 0.05), "lr": 1e-3, "step_ms": 50.0})
        if step % 50 == 49:
            assert writer.flush(60)
    writer.close(timeout=60)


def calls_while_training() -> dict[str, int]:
    """A real session with its companion: how often anything is detected in the training process between the first step and the last."""
    import torch

    import stethoscope

    calls: Counter[str] = Counter()
    plain = Detection.observe, Detection.findings

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls[threading.current_thread().name] += 1
            return method(*args)

        return call

    with tempfile.TemporaryDirectory() as scratch:
        os.environ |= {"STETHOSCOPE_DIR": scratch, "STETHOSCOPE_QUIET": "true"}
        model = torch.nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = stethoscope.watch(model, optimizer)
        Detection.observe, Detection.findings = (counted(method) for method in plain)  # type: ignore[method-assign]
        for _ in range(TRAINED):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
        told = dict(calls)
        Detection.observe, Detection.findings = plain  # type: ignore[method-assign]
        session.stop()
    return told


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        write(folder, options.sites, options.steps)
        run, detection = open_run(folder), Detection()
        reading = detecting = 0.0
        for last in range(LOOK_STEPS - 1, options.steps, LOOK_STEPS):
            before = time.process_time()
            part = list(spans(run, after=last - LOOK_STEPS if last >= LOOK_STEPS else None, upto=last))
            middle = time.process_time()
            detection.observe(part)
            found = detection.findings()
            reading, detecting = reading + middle - before, detecting + time.process_time() - middle
        before = time.process_time()
        diagnose(run, findings=found)
        explaining = time.process_time() - before
    print(
        f"{options.sites:,} sites, {options.steps} steps, {LOOK_STEPS} steps a look; broken: {list(detection.errors) or 'none'}\n"
    )
    print("| part | processor time |\n| --- | --- |")
    print(f"| reading the store | {1000 * reading / options.steps:.2f} ms a step |")
    print(f"| all detectors, with findings at every look | {1000 * detecting / options.steps:.2f} ms a step |")
    print(f"| explaining, once at the end | {1000 * explaining:.0f} ms |")
    print(
        f"\nDetections in the process of a training of {TRAINED} steps, by thread: {calls_while_training() or 'none'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
