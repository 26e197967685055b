"""A training with the page open and shut in turns: how far the page is behind, and what it costs the training.

Run by itself it is that training: `python live_training.py DIR LOG RATE` trains a small transformer at about RATE
steps a second and writes, for each step, when it ended, how long it took and how long its thread worked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np


def train(runs: str, log: str, rate: float) -> None:
    import torch
    from torch import nn

    import stethoscope

    torch.manual_seed(0)
    torch.set_num_threads(1)
    block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(32, 32), block, nn.Linear(32, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with stethoscope.watch(model, optimizer, dir=runs, name="live"), Path(log).open("w", buffering=1) as out:
        for step in range(1_000_000):
            begun, worked = time.perf_counter(), time.thread_time()
            tokens = torch.randint(0, 32, (4, 8))
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            took, work = time.perf_counter() - begun, time.thread_time() - worked
            out.write(f"{step} {time.time():.4f} {1000 * took:.4f} {1000 * work:.4f}\n")
            time.sleep(max(0.0, 1 / rate - took))


_TICKS = os.sysconf("SC_CLK_TCK")


def _ticks() -> Counter[str]:
    """Processor time so far of everything that takes part, in ticks."""
    found: Counter[str] = Counter()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            words = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        names = {"live_training.py": "training", "stethoscope.companion": "companion", "chrom": "browser"}
        name = next((name for part, name in names.items() if part in command), None)
        if name is None and "stethoscope\0ui" in command:
            name = "server"
        if name is not None:
            found[name] += int(words[11]) + int(words[12])
    return found


_WATCH = """() => { window.looks = []; setInterval(() => {
  const found = document.querySelector(".stand b");
  if (found) window.looks.push([Date.now() / 1000, Number(found.textContent.replaceAll(",", ""))]); }, 25); }"""


def measure(rate: float, seconds: float, turns: int) -> list[str]:
    """Rows of a table."""
    from benchmarks.screens.browsing import browsing, serving

    from stethoscope.store import find_runs
    from stethoscope.views.server.run_cache import opaque_id

    with tempfile.TemporaryDirectory() as scratch:
        runs, log = Path(scratch) / "runs", Path(scratch) / "steps.log"
        runs.mkdir()
        command = [sys.executable, __file__, str(runs), str(log), str(rate)]
        training = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        looks: list[list[float]] = []
        spans: dict[str, list[tuple[float, float]]] = {"shut": [], "open": []}
        worked: dict[str, Counter[str]] = {"shut": Counter(), "open": Counter()}
        try:
            while not find_runs(runs) or not log.exists() or log.read_text().count("\n") < 200:
                time.sleep(0.2)
                assert training.poll() is None, "the training has ended"
            key = opaque_id(find_runs(runs)[0])
            with serving(runs) as (_, link), browsing() as page:
                for _ in range(turns):
                    page.goto("about:blank")
                    time.sleep(2)
                    begun, before = time.time(), _ticks()
                    time.sleep(seconds)
                    spans["shut"].append((begun, time.time()))
                    worked["shut"] += _ticks() - before
                    page.goto(f"{link}#/run/{key}/overview")
                    page.wait_for_selector("[data-ready]", timeout=60_000)
                    page.wait_for_timeout(2000)
                    page.evaluate(_WATCH)
                    begun, before = time.time(), _ticks()
                    page.wait_for_timeout(1000 * seconds)
                    spans["open"].append((begun, time.time()))
                    worked["open"] += _ticks() - before
                    looks += page.evaluate("() => window.looks")
        finally:
            training.terminate()
            training.wait(20)
        table = np.array([[float(word) for word in line.split()] for line in log.read_text().splitlines()[:-1]])
    shares = [
        f"| page {name}: processor time | "
        + ", ".join(f"{who} {100 * ticks / _TICKS / (turns * seconds):.0f}%" for who, ticks in sorted(of.items()))
        + " of a core | |"
        for name, of in worked.items()
    ]
    return _lines(table, looks, spans) + shares


def _lines(table: np.ndarray, looks: list[list[float]], spans: dict[str, list[tuple[float, float]]]) -> list[str]:
    ended = {int(step): when for step, when, *_ in table}
    delays = np.array([when - ended[int(step)] for when, step in looks if int(step) in ended])
    p50, p99 = np.percentile(delays, [50, 99])
    out = [f"| age of the newest step on the screen | p50 {p50:.2f} s, p99 {p99:.2f} s | {len(delays)} looks |"]
    found = {}
    for name, parts in spans.items():
        inside = np.concatenate([table[(table[:, 1] >= a) & (table[:, 1] < b)] for a, b in parts])
        length = sum(b - a for a, b in parts)
        found[name] = np.median(inside[:, 2]), np.median(inside[:, 3]), inside[:, 2].mean(), inside[:, 3].mean()
        out.append(
            f"| page {name}: {len(inside) / length:.0f} steps/s | a step {found[name][0]:.2f} ms (mean {found[name][2]:.2f}), "
            f"its thread's work {found[name][1]:.2f} ms (mean {found[name][3]:.2f}) | {len(inside):,} steps |"
        )
    slower = [100 * (b / a - 1) for a, b in zip(found["shut"], found["open"], strict=True)]
    out.append(
        f"| the page being open, medians (means) | a step {slower[0]:+.1f}% ({slower[2]:+.1f}%), "
        f"its thread's work {slower[1]:+.1f}% ({slower[3]:+.1f}%) | |"
    )
    return out


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], float(sys.argv[3]))
