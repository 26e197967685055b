"""How fast the page is: a large run's answers and first paint, and a live run's delay.

    python benchmarks/page.py [--sites 4800] [--steps 1000] [--rate 200]

Writes a synthetic run (layers of six modules, four kinds of sites), times each answer of the server, opens the run in
Chromium where there is one, and then follows a run that is being written at --rate steps a second.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np

from stethoscope.kernels.columns import INDEX, NUM_COLUMNS, empty_rows
from stethoscope.record import Kind, Site, SiteInfo
from stethoscope.store import FindingsWriter, RunWriter
from stethoscope.views.server.shelf import opaque_id

KINDS = (Kind.GRADIENT, Kind.WEIGHT, Kind.UPDATE, Kind.OPTIMIZER_STATE)
PARTS = ("ln_1", "attn.qkv", "attn.proj", "ln_2", "mlp.fc", "mlp.proj")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def sites(amount: int) -> list[SiteInfo]:
    per_layer = len(PARTS) * 2 * len(KINDS)
    modules = [f"layers.{n}.{part}" for n in range(max(1, amount // per_layer)) for part in PARTS]
    return [SiteInfo(Site(m, k, name), (8, 8), "float32", 64) for k in KINDS for m in modules for name in ("weight", "bias")]


class Writing:
    """Rows whose norms wander."""

    def __init__(self, folder: Path, infos: list[SiteInfo], name: str) -> None:
        self.writer = RunWriter.create(folder, {"name": name})
        self.writer.sites(infos)
        self.index = np.arange(len(infos), dtype=np.uint32)
        self.rng = np.random.default_rng(0)
        self.table = empty_rows(len(infos))
        self.table[:, : NUM_COLUMNS] = 0.5
        self.table[:, 0] = 64
        self.table[:, 1:7] = 0

    def step(self, step: int) -> None:
        norms = self.rng.uniform(0.8, 1.2, len(self.index))
        self.table[:, INDEX["norm"]], self.table[:, INDEX["abs_max"]] = norms, norms / 8
        self.writer.rows(step, self.index, self.table)
        self.writer.scalars(step, {"loss": 1.5 + 3.0 * float(np.exp(-step / 600)), "lr": 5e-4, "grad_norm": 0.9, "step_ms": 5.0})


def serve(runs: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "stethoscope", "ui", str(runs), "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    assert server.stdout is not None
    found = re.search(r"http://\S+", "".join(server.stdout.readline() for _ in range(2)))
    assert found
    return server, found[0]


def ask(link: str, path: str) -> tuple[float, int]:
    root, token = link.split("/?token=")
    request = urllib.request.Request(f"{root}/api/{path}", headers={"Authorization": f"Bearer {token}"})
    begun = time.perf_counter()
    for attempt in range(100):
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                size = len(answer.read())
            break
        except ConnectionError:
            time.sleep(0.1)
        except urllib.error.URLError:
            if attempt == 99:
                raise
            time.sleep(0.1)
            begun = time.perf_counter()
    return time.perf_counter() - begun, size


def answers(link: str, key: str, steps: int) -> None:
    whole = f"kind=gradient&first=0&last={steps - 1}&width=370"
    zoom = f"kind=gradient&first={steps // 4}&last={steps // 2}&width=370&tree=0"
    for label, path in [
        ("list of runs", "runs"), ("run, first time", f"runs/{key}"), ("run, again", f"runs/{key}"),
        ("lines, whole run", f"runs/{key}/series?width=550"), ("whole run at a glance", f"runs/{key}/minimap"),
        ("heatmap, first time", f"runs/{key}/heatmap?{whole}"), ("heatmap, zoom", f"runs/{key}/heatmap?{zoom}"),
        ("heatmap, zoom again", f"runs/{key}/heatmap?{zoom}&v=2"), ("400 rows opened", f"runs/{key}/heatmap?{whole}&rows=0-399"),
        ("flow", f"runs/{key}/flow"),
    ]:  # fmt: skip
        seconds, size = ask(link, path)
        print(f"| {label} | {1000 * seconds:,.0f} ms | {size / 1000:,.0f} kB |")


def paint(link: str, key: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=shutil.which("chromium") or "chromium", args=FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        begun = time.perf_counter()
        page.goto(f"{link}#/run/{key}/overview")
        page.wait_for_selector("[data-ready]", timeout=60_000)
        print(f"| page, from nothing to the heatmap | {1000 * (time.perf_counter() - begun):,.0f} ms | |")
        begun = time.perf_counter()
        before = page.locator(".axis .gutter").inner_text()
        page.keyboard.press("+")
        while page.locator(".axis .gutter").inner_text() == before:
            page.wait_for_timeout(5)
        print(f"| page, zoom | {1000 * (time.perf_counter() - begun):,.0f} ms | |")
        session = page.context.new_cdp_session(page)
        heap = session.send("Runtime.getHeapUsage")["usedSize"]
        print(f"| browser heap | | {heap / 1e6:.0f} MB |")
        browser.close()


def live(runs: Path, rate: float, seconds: float) -> None:
    """How far the page is behind a run that is being written."""
    from playwright.sync_api import sync_playwright

    folder = runs / "20261116-130000-live-bbbbbb"
    writing = Writing(folder, sites(480), "live")
    written: dict[int, float] = {}
    stop = threading.Event()

    def go() -> None:
        step = 0
        while not stop.wait(1 / rate):
            step += 1
            writing.step(step)
            written[step] = time.perf_counter()

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    server, link = serve(runs)
    delays = []
    try:
        with sync_playwright() as engine:
            browser = engine.chromium.launch(executable_path=shutil.which("chromium") or "chromium", args=FLAGS)
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(f"{link}#/run/{opaque_id(folder)}/overview")
            page.wait_for_selector("[data-ready]", timeout=60_000)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                step = int(page.locator(".stand b").inner_text().replace(",", ""))
                if step in written:
                    delays.append(time.perf_counter() - written[step])
                page.wait_for_timeout(20)
            browser.close()
    finally:
        server.terminate()
        stop.set()
        thread.join()
        writing.writer.close("finished")
    reached = len(written) / (max(written.values()) - min(written.values()))
    p50, p99 = np.percentile(delays, [50, 99])
    what = f"live, written at {reached:.0f} steps/s: age of the newest step on the screen"
    print(f"| {what} | p50 {p50:.2f} s, p99 {p99:.2f} s | {len(delays)} looks |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=4800)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    args = parser.parse_args()
    load = Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").exists() else "?"
    print(f"{args.sites} sites x {args.steps} steps; load average {load}\n\n| what | time | size |\n| --- | ---: | ---: |")
    with tempfile.TemporaryDirectory() as scratch:
        runs = Path(scratch)
        folder = runs / "20261116-120000-large-aaaaaa"
        writing = Writing(folder, sites(args.sites), "large")
        for step in range(args.steps):
            writing.step(step)
            if step % 50 == 49:
                writing.writer.flush()
        writing.writer.flush(60)
        writing.writer.close("finished")
        FindingsWriter(folder).write([])
        server, link = serve(runs)
        try:
            answers(link, opaque_id(folder), args.steps)
            status = Path(f"/proc/{server.pid}/status")
            if status.exists():
                peak = int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 1000  # type: ignore[index]
                print(f"| server, most memory | | {peak:,.0f} MB |")
            if shutil.which("chromium"):
                paint(link, opaque_id(folder))
        finally:
            server.terminate()
        if shutil.which("chromium"):
            live(runs, args.rate, args.seconds)
    print(json.dumps({"peak_of_the_writer_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000}))


if __name__ == "__main__":
    main()
