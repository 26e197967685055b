"""A real browser on a real server over real run folders: healthy, sick, live, hostile.

Skipped with the reason where Chromium or playwright is missing; with CI=true that is a failure instead.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from stethoscope.analyse.graph import Edge, Graph, Node
from stethoscope.kernels.histogram import NUM_BINS, ZERO_BIN
from stethoscope.record import Evidence, Finding, Kind, Severity, SiteInfo
from stethoscope.store import RunWriter, process
from stethoscope.views.server.run_cache import opaque_id
from tests.store.run_making import write_findings
from tests.views import synthetic

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HEALTHY = "20261116-120000-gpt-small-aaaaaa"
SICK = "20261116-130000-gpt-fp16-3f9a01"
LIVE = "20261116-140000-gpt-live-bbbbbb"
STALE = "20261116-100000-gpt-quiet-dddddd"
HOSTILE = "20261116-110000-hostile-cccccc"
NASTY = '<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>\u202eevil\x1b[31m' + "n" * 10_000


def missing() -> str:
    """Why there is no browser here, or nothing."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return "" if CHROMIUM else "Chromium is not installed"


def pytest_collection_modifyitems(items):
    reason = missing()
    if reason and os.environ.get("CI") != "true":
        for item in items:
            if "browser" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason=reason))


def transformer_graph() -> dict:
    """The graph of the synthetic model: an embedding, four layers with a residual stream, a head."""
    nodes = [Node(path="(input)", role="input", order=0), Node(path="wte", type="Embedding", order=1)]
    edges, before, order = [Edge(source="(input)", target="wte", gradient="integer")], "wte", 2
    for layer in range(4):
        for part in ("attn", "mlp"):
            module, join = f"layers.{layer}.{part}", f"layers.{layer}:add" + ("" if part == "attn" else "_1")
            nodes += [
                Node(path=module, type=part, order=order),
                Node(path=join, role="join", type="add", order=order + 1),
            ]
            edges += [Edge(source=before, target=module), Edge(source=module, target=join)]
            edges.append(Edge(source=before, target=join, kind="residual"))
            before, order = join, order + 2
    nodes += [Node(path="head", type="Linear", order=order), Node(path="(output)", role="output", order=order + 1)]
    edges += [Edge(source=before, target="head"), Edge(source="head", target="(output)")]
    return Graph(nodes={node.path: node for node in nodes}, edges=tuple(edges)).to_json()


def add_extras(folder: Path, infos: list[SiteInfo], steps: range) -> None:
    """A second process start that adds the graph and some histograms to a run."""
    writer = RunWriter.create(folder, {})
    writer.sites(infos)
    writer.event(steps[0], "graph", transformer_graph())
    index = np.arange(len(infos), dtype=np.uint32)
    rng = np.random.default_rng(0)
    for step in steps[::10]:
        table = np.zeros((len(infos), NUM_BINS), np.uint32)
        table[:, ZERO_BIN + 80 : ZERO_BIN + 90] = rng.integers(1, 40, (len(infos), 10))
        table[:, ZERO_BIN - 90 : ZERO_BIN - 80] = rng.integers(1, 40, (len(infos), 10))
        writer.vectors(step, "histogram", index, table)
        writer.vectors(step, "sketch", index, rng.normal(size=(len(infos), 64)).astype(np.float32))
        units = rng.uniform(0.1, 1.0, (len(infos), 8)).astype(np.float32)
        units[:, 3] = 0.0
        writer.vectors(step, "unit_gradient", index, units)
        heads = [2.0, 1.9, 0.1, 2.1]
        writer.event(step, "attention", {"modules": {"layers.1.attn": {"entropy": 1.5, "heads": heads}}})
    assert writer.flush()
    writer.close("finished")


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    infos = synthetic.sites_of(synthetic.MODULES, (Kind.GRADIENT, Kind.WEIGHT, Kind.UPDATE))
    synthetic.write_run(folder / HEALTHY, infos=infos)
    add_extras(folder / HEALTHY, infos, range(1, 201))
    write_findings(folder / HEALTHY, [])
    synthetic.write_run(
        folder / SICK, synthetic.exploding, name="gpt-fp16", metrics=synthetic.exploding_metrics, infos=infos
    )
    writer = RunWriter.create(folder / SICK, {})
    writer.sites(infos)
    writer.event(1, "graph", transformer_graph())
    sketches = np.random.default_rng(0).normal(size=(len(infos), 64)).astype(np.float32)
    for step in range(1, 201, 10):
        writer.vectors(step, "sketch", np.arange(len(infos), dtype=np.uint32), sketches)
    assert writer.flush()
    writer.close("exception", {"exception": "FloatingPointError"})
    write_findings(folder / SICK, [synthetic.CAUSE, *synthetic.FOLLOWED])
    write_stale(folder / STALE)
    evidence = (Evidence(NASTY, 1.0, 2.0, unit=NASTY[:40], site="ok"),)
    synthetic.write_run(folder / HOSTILE, name=NASTY, modules=[NASTY, "ok"], steps=range(1, 40))
    write_findings(
        folder / HOSTILE, [Finding(NASTY, Severity.CRITICAL, f"{NASTY} broke", 5, 9, (NASTY,), evidence, NASTY)]
    )
    return folder


def write_stale(folder: Path) -> None:
    """A run of another machine that has said nothing for an hour and may be alive."""
    now, here = time.time, process.describe()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now() - 3600)
        patch.setattr(process, "describe", lambda: here | {"host": "elsewhere"})
        synthetic.write_run(folder, name="gpt-quiet", steps=range(1, 40), ended=None)
        writer = synthetic._OPEN.pop()
        writer._is_inert = True  # as a process that can no longer be seen: nothing more is written, not even an end
        writer._thread.join()
        writer._spool.close()


class LiveRun:
    """A run that goes on being written, a step every tenth of a second, until it is stopped."""

    def __init__(self, folder: Path) -> None:
        self.infos = synthetic.sites_of(synthetic.MODULES)
        self.writer = RunWriter.create(folder, {"name": "gpt-live"})
        self.writer.sites(self.infos)
        self.step = 0
        self._stop = threading.Event()
        for _ in range(60):
            self.write()
        assert self.writer.flush()
        self._thread = threading.Thread(target=self._go, daemon=True)
        self._thread.start()

    def write(self) -> None:
        self.step += 1
        table = np.array([synthetic.healthy(info.site, self.step) for info in self.infos])
        self.writer.rows(self.step, np.arange(len(self.infos), dtype=np.uint32), table)
        self.writer.scalars(self.step, synthetic.default_metrics(self.step))

    def _go(self) -> None:
        while not self._stop.wait(0.1):
            self.write()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self.writer.close("finished")


@pytest.fixture(scope="session")
def live(base):
    run = LiveRun(base / LIVE)
    yield run
    run.stop()


@pytest.fixture(scope="session")
def link(base, live):
    """The server's link, with its token."""
    command = [sys.executable, "-m", "stethoscope", "ui", str(base), "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    words = "".join(server.stdout.readline() for _ in range(2))
    found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=\S+", words)
    assert found, words
    yield found[0]  # the socket listened before the link was printed: who asks early waits
    server.terminate()
    server.communicate(timeout=60)


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        found = engine.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


class Watched:
    """A page, and everything that must not happen on it."""

    def __init__(self, page, link: str) -> None:
        self.page, self.link = page, link
        self.host = link.split("/?")[0]
        self.violations: list[str] = []
        self.errors: list[str] = []
        self.foreign: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        self._asked: list = []
        self._num_asked = 0
        page.on("request", self._request)
        page.on("requestfinished", self._answered)
        page.on("requestfailed", self._answered)
        page.on("dialog", lambda dialog: (self.errors.append("a dialog opened"), dialog.dismiss()))

    def _console(self, message) -> None:
        if "Content Security Policy" in message.text or "TrustedHTML" in message.text:
            self.violations.append(message.text)
        elif message.type == "error" and "404" not in message.text:
            self.errors.append(message.text)

    def _request(self, request) -> None:
        if not request.url.startswith((self.host, "data:", "blob:")):
            self.foreign.append(request.url)
        if "/api/" in request.url and "/stream" not in request.url:
            self._num_asked += 1
            self._asked.append(request)

    def _answered(self, request) -> None:
        if request in self._asked:
            self._asked.remove(request)

    def open(self, where: str = "#/", *, ready: str = "[data-ready]") -> None:
        self.page.goto(f"{self.link}{where}")
        self.page.wait_for_selector(ready, timeout=60_000)
        self.drawn()

    def drawn(self) -> None:
        """Waits until what is known so far is drawn, and what follows from drawing it is done."""
        self.page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
        )

    def settle(self) -> None:
        """Waits until every question is answered and drawn, and no answer raised another: not for a run that moves."""
        before = -1
        while before != self._num_asked:
            before = self._num_asked
            self.until(lambda: not self._asked)
            self.drawn()

    def until(self, is_so, timeout_s: float = 60.0) -> None:
        """Waits without evaluating anything in the page: its policy forbids that."""
        end = time.monotonic() + timeout_s
        while not is_so():
            assert time.monotonic() < end, "it never came"
            self.page.wait_for_timeout(50)

    def check(self) -> None:
        assert self.violations == []
        assert self.errors == []
        assert self.foreign == []


@pytest.fixture
def watched(browser, link):
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    page = context.new_page()
    found = Watched(page, link)
    yield found
    context.close()


def run_hash(name: str, screen: str = "overview", words: str = "") -> str:
    return f"#/run/{opaque_id(Path(name))}/{screen}{'?' + words if words else ''}"
