"""The report of a run of many layers and steps: how large, how long it takes to make, whether it opens without a network."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.screens import large_run
from benchmarks.screens.browsing import browsing

from stethoscope.record import Evidence, Finding, Severity
from stethoscope.store import FindingsWriter

RAW_STEPS, SEGMENT = 4096, 64


def make(folder: Path, num_layers: int, num_steps: int) -> None:
    """A run with a finding, so that every section of the report is there."""
    per_layer = len(large_run.PARTS) * 2 * len(large_run.KINDS)
    steps = -(-num_steps // SEGMENT) * SEGMENT
    last = large_run.make(folder, num_layers * per_layer, RAW_STEPS, steps)
    where = f"layers.{num_layers // 2}.attn.qkv"
    proof = Evidence("gradient norm", 40.0, 1.0, "", f"{where}.weight", "gradient", "norm")
    message = f"Gradients of {where} grow from step {last - 900:,}"
    remedy = "clip_grad_norm_(model.parameters(), 1.0)"
    span = last - 900, last
    FindingsWriter(folder).write(
        [Finding("exploding_gradients", Severity.CRITICAL, message, *span, (f"{where}.weight",), (proof,), remedy)]
    )


def measure(num_layers: int, num_steps: int) -> list[str]:
    """Rows of a table."""
    from stethoscope.cli import main

    with tempfile.TemporaryDirectory() as scratch:
        folder, file = Path(scratch) / "20261116-120000-long-cccccc", Path(scratch) / "report.html"
        make(folder, num_layers, num_steps)
        begun = time.perf_counter()
        kept, sys.stdout = sys.stdout, sys.stderr
        try:
            main(["report", str(folder), "-o", str(file)])
        finally:
            sys.stdout = kept
        made = time.perf_counter() - begun
        asked: list[str] = []
        errors: list[str] = []
        with browsing() as page:
            page.context.set_offline(True)
            page.on("request", lambda request: asked.append(request.url))
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            begun = time.perf_counter()
            page.goto(file.as_uri())
            page.wait_for_selector("html[data-ready]", timeout=60_000)
            opened = time.perf_counter() - begun
            figures = page.locator("figure").count()
        outside = [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
        assert not outside, outside
        assert not errors, errors
        return [
            f"| report of {num_layers} layers x {num_steps:,} steps, made in | {made:,.1f} s | {file.stat().st_size / 1e6:.2f} MB |",
            f"| opened from file://, offline, {figures} figures, no request to elsewhere, no error | {1000 * opened:,.0f} ms | |",
        ]
