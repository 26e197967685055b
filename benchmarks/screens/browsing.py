"""What the page's benchmarks share: a server of ours, a browser, questions with the clock running."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--enable-precise-memory-info",
]


def load_average() -> str:
    return Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").exists() else "?"


@contextlib.contextmanager
def serving(runs: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`stethoscope ui` over a folder, and its link; it answers when this is entered."""
    command = [sys.executable, "-m", "stethoscope", "ui", str(runs), "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", "".join(server.stdout.readline() for _ in range(2)))
        assert found
        for _ in range(200):
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                ask(found[0], "runs/none")
            time.sleep(0.05)
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(found[0].split("/?")[0] + "/icon.svg", timeout=5).read()
                break
        yield server, found[0]
    finally:
        server.terminate()
        server.wait(10)


def ask(link: str, path: str) -> tuple[float, int]:
    """Seconds and bytes of one answer."""
    root, token = link.split("/?token=")
    request = urllib.request.Request(f"{root}/api/{path}", headers={"Authorization": f"Bearer {token}"})
    begun = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as answer:
        size = len(answer.read())
    return time.perf_counter() - begun, size


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    """A page in Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=shutil.which("chromium") or "chromium", args=FLAGS)
        try:
            yield browser.new_page(viewport={"width": 1440, "height": 900})
        finally:
            browser.close()


def heap_mb(page: Any) -> float:
    """What the page's scripts hold."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return float(session.send("Runtime.getHeapUsage")["usedSize"]) / 1e6


def peak_mb(pid: int) -> float | None:
    """The most memory a process had."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"VmHWM:\s+(\d+)", status.read_text()) if status.exists() else None
    return int(found[1]) / 1000 if found else None
