"""Every screen of the page, light and dark, from real runs, into docs/images.

    python -m benchmarks.screens.shoot [--runs DIR] [--out docs/images] [--only run-live,checkup]

Trains the runs of training.py (one sick, one healthy, two with a checkup before them, one that is still live while it is
photographed) where DIR does not hold them yet, serves them, and takes the pictures with Chromium; with --only those alone,
and without what they do not show.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
SICK, HEALTHY, CHECKED, CLEAR = "gpt-12l-fp16", "gpt-12l-qknorm", "gpt-12l-unmasked", "gpt-12l-checked"
ROOT = HERE.parents[1]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
<include>/etc/fonts/fonts.conf</include>
<match target="pattern"><test name="family"><string>system-ui</string></test>
<edit name="family" mode="prepend" binding="strong"><string>Inter</string></edit></match>
<match target="pattern"><test name="family"><string>ui-monospace</string></test>
<edit name="family" mode="prepend" binding="strong"><string>JetBrains Mono</string></edit></match>
<alias binding="strong"><family>sans-serif</family><prefer><family>Inter</family></prefer></alias>
<alias binding="strong"><family>monospace</family><prefer><family>JetBrains Mono</family></prefer></alias></fontconfig>
"""
"""The system's fonts are the page's; in the pictures Inter and JetBrains Mono stand in, where they are installed."""


def train(runs: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(HERE / "training.py"), "--dir", str(runs), "--name", name, *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def have(runs: Path, name: str) -> bool:
    return any(runs.glob(f"*-{name}-*"))


def serve(runs: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "stethoscope", "ui", str(runs), "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    assert server.stdout is not None
    words = "".join(server.stdout.readline() for _ in range(2))
    found = re.search(r"http://\S+", words)
    assert found, words
    return server, found[0]


def keys_of(runs: Path) -> dict[str, str]:
    from stethoscope.store import find_runs, open_run
    from stethoscope.views.server.run_cache import opaque_id

    return {open_run(path).name: opaque_id(path) for path in find_runs(runs)}


def found_live(runs: Path) -> str:
    """The live run's key, as soon as something was found in it that is more than a note; "" where that does not come."""
    from stethoscope.record import RunError, Severity
    from stethoscope.store import find_runs, open_run
    from stethoscope.views.server.run_cache import opaque_id

    for _ in range(240):
        time.sleep(0.5)
        for path in find_runs(runs):
            if "gpt-12l-live" not in path.name:
                continue
            try:
                run = open_run(path)
            except RunError:
                continue
            found = any(one.severity is not Severity.INFO for one in run.findings())
            # Some way after the mistake began, so that the picture shows what it led to.
            if run.state == "live" and found and (run.last_step or 0) >= 110:
                time.sleep(3)
                return opaque_id(path)
    return ""


def shots(sick: str, healthy: str, checked: str, clear: str) -> list[tuple[str, str, tuple[int, int], list[str]]]:
    """Name, address, size, keys pressed before the picture."""
    wide, phone = (1440, 900), (390, 844)
    return [
        ("run", f"#/run/{sick}/overview?step=340&at=layers.7.attn.qkv", wide, []),
        ("layer", f"#/run/{sick}/layers?step=350&at=layers.7.attn", wide, []),
        ("flow", f"#/run/{sick}/flow?step=370&kind=activation_gradient", wide, []),
        ("runs", "#/", wide, ["j", "x", "j", "x"]),
        ("compare", f"#/compare?a={sick}&b={healthy}&step=360", wide, []),
        ("log", f"#/run/{sick}/log", wide, []),
        ("profile", f"#/run/{sick}/profile", wide, []),
        ("ranks", f"#/run/{sick}/ranks", wide, []),
        ("checkup", f"#/run/{checked}/checkup", wide, []),
        ("checkup-clear", f"#/run/{clear}/checkup", wide, []),
        ("healthy", f"#/run/{healthy}/overview?step=200", wide, []),
        ("run-phone", f"#/run/{sick}/overview?step=340", phone, []),
    ]


def shoot(link: str, out: Path, keys: dict[str, str], live: str, report: Path, only: set[str]) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=shutil.which("chromium") or "chromium", args=FLAGS)

        def take(
            name: str, address: str, size: tuple[int, int], keys: list[str], theme: str, wait_ms: int = 900
        ) -> None:
            context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
            page = context.new_page()
            page.goto(address if address.startswith("file:") else link + address)
            page.wait_for_selector(".runlist, [data-ready]", timeout=60_000)
            page.locator("main h1").first.wait_for(
                timeout=60_000
            )  # a screen whose own answer has not come has no sentence yet
            page.wait_for_timeout(wait_ms)
            if name == "healthy":  # nobody had looked at it yet: wait for the look
                page.get_by_text("being looked through").wait_for(state="hidden", timeout=90_000)
            for key in keys:
                page.keyboard.press(key)
            page.wait_for_timeout(300)
            page.screenshot(path=out / f"{name}-{theme}.png")
            print(f"{name}-{theme}.png  {(out / f'{name}-{theme}.png').stat().st_size / 1000:.0f} kB")
            context.close()

        if live:
            for theme in ("dark", "light"):
                take("run-live", f"#/run/{live}/overview", (1440, 900), [], theme, 2500)
        for theme in ("light", "dark"):
            for name, address, size, pressed in shots(*(keys.get(one, "") for one in (SICK, HEALTHY, CHECKED, CLEAR))):
                if not only or name in only:
                    take(name, address, size, pressed, theme)
            if report.exists():
                take("report", report.as_uri(), (1440, 900), [], theme)
        browser.close()


def make_runs(runs: Path, only: set[str]) -> None:
    """Trains what is not there yet and will be seen."""
    if (not only or only - {"run-live", "checkup", "checkup-clear"}) and not have(runs, SICK):
        train(runs, SICK).wait()
    if (not only or "checkup" in only) and not have(runs, CHECKED):
        train(runs, CHECKED, "--careless", "--checkup", "--healthy", "--steps", "40").wait()
    if (not only or "checkup-clear" in only) and not have(runs, CLEAR):
        train(runs, CLEAR, "--checkup", "--healthy", "--steps", "30").wait()
    if (not only or only & {"compare", "healthy", "runs"}) and not have(runs, HEALTHY):
        train(runs, HEALTHY, "--healthy", "--steps", "430").wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--only", default="", help="names of pictures, with commas")
    args = parser.parse_args()
    only = set(args.only.split(",")) - {""}
    with tempfile.TemporaryDirectory() as scratch:
        runs = args.runs or Path(scratch) / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        args.out.mkdir(parents=True, exist_ok=True)
        fonts = Path(scratch) / "fonts.conf"
        fonts.write_text(FONTS)
        os.environ["FONTCONFIG_FILE"] = str(fonts)
        make_runs(runs, only)
        keys = keys_of(runs)
        report = Path(scratch) / "report.html"
        if not only or "report" in only:
            sick = next(runs.glob(f"*-{SICK}-*"))
            subprocess.run([sys.executable, "-m", "stethoscope", "report", str(sick), "-o", str(report)], check=True)
        server, link = serve(runs)
        going = None
        try:
            if not only or "run-live" in only:
                going = train(
                    runs,
                    "gpt-12l-live",
                    "--fault-at",
                    "50",
                    "--growth",
                    "1.025",
                    "--pause-ms",
                    "120",
                    "--steps",
                    "5000",
                )
            shoot(link, args.out, keys, found_live(runs) if going else "", report, only)
        finally:
            server.terminate()
            if going is not None:
                going.terminate()


if __name__ == "__main__":
    main()
