"""How fast the page is: a large run's answers and first paint beside TensorBoard's, a report, a live training.

    python -m benchmarks.page [--sites 5000] [--steps 20480] [--part scale|report|live ...]

The large run has a million steps in its rollups and --steps of rows; TensorBoard gets as many series as a kind has
sites, over the last --tensorboard-steps of them (it keeps 1,000 points a series). The report is of a run of 200
layers and 100,000 steps. Live is a real training watched by a session, page open and page shut in turns.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.screens.browsing import ask, browsing, heap_mb, load_average, peak_mb, serving


def head(title: str, note: str) -> None:
    print(
        f"\n## {title}\n\n{note} Load average when it began: {load_average()}.\n\n| what | time | size |\n| --- | ---: | ---: |"
    )


def scale(args: argparse.Namespace) -> None:
    from benchmarks.screens import large_run, tensorboard_page

    from stethoscope.views.server.run_cache import opaque_id

    with tempfile.TemporaryDirectory() as scratch:
        runs = Path(scratch) / "runs"
        folder = runs / "20261116-120000-large-aaaaaa"
        last = large_run.make(folder, args.sites, args.steps)
        amount, key = len(large_run.sites(args.sites)), opaque_id(folder)
        head("Scale", f"{amount:,} sites; {last + 1:,} steps in rollups, {args.steps:,} of them with rows.")
        with serving(runs) as (_, link):
            paint(link, key, "a server that has just started")
        with serving(runs) as (server, link):
            time.sleep(3)  # it opens the newest run while a browser starts
            paint(link, key, "a server that runs")
            answers(link, key, last, args.steps)
            print(f"| server, most memory | | {peak_mb(server.pid) or 0:,.0f} MB |")
        for line in tensorboard_page.measure(
            Path(scratch) / "events", amount // len(large_run.KINDS), args.tensorboard_steps
        ):
            print(line)


def answers(link: str, key: str, last: int, raw: int) -> None:
    """Each question of the page by itself."""

    def heat(first: int, end: int, more: str = "") -> str:
        return f"runs/{key}/heatmap?kind=gradient&first={first}&last={end}&width=370&tree=0{more}"

    middle = last - raw // 2
    for label, path in [
        ("list of runs", "runs"),
        ("run", f"runs/{key}"),
        ("lines, whole run", f"runs/{key}/series?width=550"),
        ("whole run at a glance", f"runs/{key}/minimap"),
        ("heatmap, everything", heat(0, last, "&tree=1")),
        ("heatmap, another kind for the first time", heat(0, last).replace("gradient", "weight")),
        ("heatmap, zoom to 250,000 steps", heat(last - 250_000, last)),
        ("heatmap, zoom to 60,000", heat(last - 60_000, last)),
        ("heatmap, zoom to 10,000", heat(middle - 5_000, middle + 5_000)),
        ("heatmap, zoom to 2,000", heat(middle, middle + 2_000)),
        ("the same, sharpened from the rows", heat(middle, middle + 2_000, "&exact=1")),
        ("heatmap, zoom to 300", heat(middle, middle + 300)),
        ("400 rows opened", heat(0, last, "&rows=0-399")),
        ("layer", f"runs/{key}/layer?path=layers.3.attn.qkv&width=550"),
        ("flow", f"runs/{key}/flow"),
    ]:
        seconds, size = ask(link, path)
        print(f"| {label} | {1000 * seconds:,.0f} ms | {size / 1000:,.0f} kB |")


def paint(link: str, key: str, what: str) -> None:
    """From nothing to the heatmap; then zooming in, each time until the new cells are on the canvas."""
    with browsing() as page:
        begun = time.perf_counter()
        page.goto(f"{link}#/run/{key}/overview")
        page.wait_for_selector(".bar .title", timeout=60_000)
        frame = time.perf_counter() - begun
        page.wait_for_selector("[data-ready]", timeout=60_000)
        print(f"| page of {what}: its frame | {1000 * frame:,.0f} ms | |")
        print(
            f"| page of {what}: from nothing to the heatmap of everything | {1000 * (time.perf_counter() - begun):,.0f} ms | |"
        )
        page.wait_for_timeout(1000)
        times = []
        for _ in range(10):
            with page.expect_response(lambda answer: "/heatmap?" in answer.url) as answer:
                begun = time.perf_counter()
                page.keyboard.press("+")
            answer.value.finished()
            page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            times.append(1000 * (time.perf_counter() - begun))
            page.wait_for_timeout(900)
        times.sort()
        print(
            f"| page, a key of zoom until it is drawn, ten of them | median {times[5]:,.0f} ms, worst {times[-1]:,.0f} ms | |"
        )
        print(f"| browser heap | | {heap_mb(page):.0f} MB |")


def report(args: argparse.Namespace) -> None:
    from benchmarks.screens import long_report

    head("Report", f"{args.layers} layers, {args.report_steps:,} steps.")
    for line in long_report.measure(args.layers, args.report_steps):
        print(line)


def live(args: argparse.Namespace) -> None:
    from benchmarks.screens import live_training

    head("Live", f"A training watched by a session, about {args.rate:.0f} steps a second, {args.seconds:.0f} s a turn.")
    for line in live_training.measure(args.rate, args.seconds, args.turns):
        print(line)


PARTS = {"scale": scale, "report": report, "live": live}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--sites", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=20_480)
    parser.add_argument("--tensorboard-steps", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--report-steps", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    if not shutil.which("chromium"):
        print("There is no Chromium here: the page is not measured.")
        return
    print("# How fast the page is\n\n2 cores; Chromium headless; printed by `python -m benchmarks.page`.")
    for part in args.part or list(PARTS):
        PARTS[part](args)


if __name__ == "__main__":
    main()
