"""The same series in TensorBoard: its own server, first paint of its scalars page in Chromium."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
from benchmarks.screens.browsing import browsing, heap_mb, peak_mb


def write_events(folder: Path, num_series: int, num_steps: int) -> float:
    """One scalar a series and step, through TensorBoard's own writer; returns how long that took."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    begun = time.perf_counter()
    writer = EventFileWriter(str(folder), max_queue_size=1000, flush_secs=120)
    rng = np.random.default_rng(0)
    names = [f"layers.{n // 12}/site_{n % 12}/norm" for n in range(num_series)]
    for step in range(num_steps):
        values = rng.uniform(0.8, 1.2, num_series).tolist()
        parts = [Summary.Value(tag=name, simple_value=value) for name, value in zip(names, values, strict=True)]
        writer.add_event(Event(step=step, wall_time=1.7e9 + step, summary=Summary(value=parts)))
    writer.close()
    return time.perf_counter() - begun


def measure(folder: Path, num_series: int, num_steps: int) -> list[str]:
    """Rows of a table: what was written, when its page is there, what it takes."""
    wrote = write_events(folder, num_series, num_steps)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        str(folder),
        "--port",
        str(port),
        "--load_fast",
        "false",
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    root = f"http://127.0.0.1:{port}"
    try:
        begun = time.perf_counter()
        _until(f"{root}/data/plugin/scalars/tags", lambda body: body.count(b"norm") >= num_series)
        loaded = time.perf_counter() - begun
        with browsing() as page:
            begun = time.perf_counter()
            page.goto(f"{root}/#timeseries")
            page.wait_for_selector("scalar-card", timeout=120_000)
            first = time.perf_counter() - begun
            page.wait_for_selector("scalar-card line-chart canvas, scalar-card line-chart svg path", timeout=120_000)
            drawn = time.perf_counter() - begun
            shown = page.locator("scalar-card").count()
            heap = heap_mb(page)
        memory = peak_mb(server.pid)
    finally:
        server.terminate()
        server.wait(10)
    return [
        f"| TensorBoard: event file of {num_series:,} series x {num_steps:,} steps written in | {wrote:,.1f} s | |",
        f"| TensorBoard: its server has read them after | {loaded:,.1f} s | {memory or 0:,.0f} MB |",
        f"| TensorBoard: page, from nothing to the first card | {1000 * first:,.0f} ms | |",
        f"| TensorBoard: page, from nothing to the first line ({shown} of {num_series:,} series on the page) | {1000 * drawn:,.0f} ms | |",
        f"| TensorBoard: browser heap | | {heap:.0f} MB |",
    ]


def _until(address: str, done: object, seconds: float = 400.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                if done(answer.read()):  # type: ignore[operator]
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.2)
    raise TimeoutError(address)
