"""Very many steps of a tiny model: memory flat, queue never growing, disk inside its budget.

    PYTHONPATH=src python -m benchmarks.soak [--steps 200000] [--disk 64MB]

Looks two hundred times, and tells ten times what it saw: resident memory of the training process; of its companion, and of the
process that seals beside it, the most since it told last; bytes that wait for the writer the most, bytes on disk the most. Fails
where either of the first two ends with more memory than it had after the first tenth, by more than a little; where a row was
dropped; or where the disk was ever found over its budget.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import stethoscope

ALLOWED_MB = 16.0
TOLD = 10
LOOKS = 200
LARGEST = ("companion, MB", "sealing, MB", "queue, kB", "disk, MB")
"""Of these the most since it was told last."""


def resident_mb(pid: int | str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def children_mb(pid: int) -> float:
    """Of a process that is copied most pages are shared with the one it was copied from: both are counted in full."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    return sum((resident_mb(child) for child in children), 0.0)


def disk_mb(folder: Path) -> float:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:  # sealed and deleted while we look
            continue
    return total / 1e6


def look(session: Any, folder: Path, step: int, began: float) -> dict[str, float]:
    process = session._recording.companion._process
    counters = session._recording.writer.counters
    return {
        "step": step,
        "training, MB": resident_mb("self"),
        "companion, MB": resident_mb(process.pid) if process is not None else float("nan"),
        "sealing, MB": children_mb(process.pid) if process is not None else float("nan"),
        "queue, kB": session._recording.writer._queue.num_bytes / 1e3,
        "dropped rows": float(counters.get("dropped_rows", 0)),
        "disk, MB": disk_mb(folder),
        "steps a second": step / (time.perf_counter() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--disk", default="64MB")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    folder = Path(tempfile.mkdtemp()) / "run"
    session = stethoscope.watch(model, optimizer, run=folder, disk=asked.disk, quiet=True)
    data, target = torch.randn(64, 16), torch.randn(64, 4)
    looks: list[dict[str, float]] = []
    since: list[dict[str, float]] = []
    began = time.perf_counter()
    for step in range(1, asked.steps + 1):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data), target).backward()
        optimizer.step()
        if step % max(asked.steps // LOOKS, 1) == 0:
            since.append(look(session, folder, step, began))
        if step % max(asked.steps // TOLD, 1) == 0:
            looks.append(since[-1] | {name: max(one[name] for one in since) for name in LARGEST})
            since = []
            print(looks[-1], flush=True)
    budget = session.config.disk / 1e6
    ending = time.perf_counter()
    session.stop()
    print(f"stopped in {time.perf_counter() - ending:.1f} s\n", flush=True)
    names = list(looks[0])
    print(f"{asked.steps:,} steps, disk budget {budget:.0f} MB, torch {torch.__version__}\n")
    print("| " + " | ".join(names) + " |\n|" + " --- |" * len(names))
    for found in looks:
        print("| " + " | ".join(f"{value:,.1f}" for value in found.values()) + " |")
    print(f"\nafter stop: disk {disk_mb(folder):.1f} MB\n")
    for name in ("training, MB", "companion, MB"):
        print(f"{name}: {looks[-1][name] - looks[0][name]:+.1f} from the first tenth to the last")
    for name in ("training, MB", "companion, MB"):
        assert looks[-1][name] - looks[0][name] <= ALLOWED_MB, name
    assert looks[-1]["dropped rows"] == 0
    assert max(found["disk, MB"] for found in looks) <= budget
    assert disk_mb(folder) <= budget


if __name__ == "__main__":
    main()
