"""What storing costs: bytes a value, time an append, time a question; beside SQLite and TensorBoard.

    python -m benchmarks.store [--sites 2000] [--steps 2000] [--save]

Data: every site has its own size and scale and drifts; every statistic of every step is noisy, so that no
mantissa bit is predictable. All times are of this machine, in this run, with a warm page cache.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zstandard

from stethoscope.kernels.columns import COLUMNS, INDEX, NUM_COLUMNS
from stethoscope.record import Kind, Site, SiteInfo
from stethoscope.store import RunWriter, open_run, seal
from stethoscope.store.encoding import encode_rows
from stethoscope.store.frames import COMPRESSION_LEVEL, FrameKind, build

SQLITE_STEPS = 200
TENSORBOARD_STEPS = 4
PARTS = ("weight", "bias", "gamma", "beta")


class Data:
    """Rows as a training run has them: seeded, made a step at a time."""

    def __init__(self, num_sites: int, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        rng = self._rng
        self.num_sites = num_sites
        self._count = rng.choice([64, 768, 3072, 768 * 768, 768 * 3072, 50257 * 768], num_sites).astype(float)
        self._scale = 10.0 ** rng.uniform(-5, -1, num_sites)
        self._zeros = np.where(rng.random(num_sites) < 0.3, rng.uniform(0, 0.5, num_sites), 0.0)

    def sites(self) -> list[SiteInfo]:
        """Names as in a transformer."""
        return [
            SiteInfo(
                Site(f"model.layers.{n // 40}.block.{n % 40 // 4}", Kind.GRADIENT, PARTS[n % 4]), (768,), "float32", 768
            )
            for n in range(self.num_sites)
        ]

    def step(self, step: int) -> np.ndarray:
        """The table of one step."""
        rng, n = self._rng, self.num_sites
        noise = rng.normal(1.0, 0.1, (n, NUM_COLUMNS))
        std = self._scale * noise[:, 0] * (1 + 0.5 * np.exp(-step / 300))
        table = np.zeros((n, NUM_COLUMNS))
        put = {name: table[:, place] for name, place in INDEX.items()}
        put["count"][:] = self._count
        put["num_zero"][:] = np.floor(self._count * self._zeros * np.clip(noise[:, 1], 0.5, 1.5))
        put["min"][:], put["max"][:] = -4 * std * noise[:, 2], 4 * std * noise[:, 3]
        put["abs_max"][:] = np.maximum(-put["min"], put["max"])
        put["abs_min"][:] = std * 1e-7 * noise[:, 4]
        put["mean"][:] = std * rng.normal(0, 0.02, n)
        put["mean_abs"][:] = std * 0.8 * noise[:, 5]
        put["norm"][:] = std * np.sqrt(self._count)
        put["std"][:] = std
        put["skewness"][:], put["kurtosis"][:] = noise[:, 6] - 1, 3 * noise[:, 7]
        return table


def timed(question: Callable[[], object], repeat: int = 3) -> float:
    """The median time in ms."""
    took = []
    for _ in range(repeat):
        before = time.perf_counter()
        question()
        took.append(1000 * (time.perf_counter() - before))
    return sorted(took)[len(took) // 2]


def size_of(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())


def bench_ours(folder: Path, num_sites: int, num_steps: int) -> list[tuple[str, str]]:
    data = Data(num_sites)
    writer = RunWriter.create(folder, {"name": "bench"}, queue_bytes=256 << 20)
    writer.sites(data.sites())
    index = np.arange(num_sites, dtype=np.uint32)
    took = []
    for step in range(num_steps):
        table = data.step(step)
        before = time.perf_counter()
        writer.rows(step, index, table)
        took.append(1000 * (time.perf_counter() - before))
        if step % 50 == 49:
            assert writer.flush(60)
    writer.close(timeout=60)
    assert not writer.counters["dropped_rows"]
    values = num_sites * num_steps * NUM_COLUMNS
    journal = size_of(folder, "*.stj")
    rows = [
        ("journal", f"{journal / values:.2f} bytes a value"),
        ("append, training thread", f"{np.mean(took):.3f} ms mean, {np.percentile(took, 99):.3f} ms p99"),
        (
            "append, writer thread",
            f"{encode_ms(data, index):.2f} ms mean (encode, compress, checksum; no disk)",
        ),
    ]
    rows += ask_run("journal alone: ", folder, num_steps)
    before = time.perf_counter()
    report = seal(folder, final=True)
    rows.append(
        (
            "sealing",
            f"{1000 * (time.perf_counter() - before) / num_steps:.2f} ms a step, {report.segments} segments",
        )
    )
    sealed = size_of(folder / "rows", "*")
    buckets = size_of(folder / "pyramid", "*")
    rows.append(("sealed rows, with hashes", f"{sealed / values:.2f} bytes a value"))
    rows.append(("buckets, on top", f"{buckets / values:.2f} bytes a value"))
    rows.append(("manifest and run.json", f"{size_of(folder, '*.json') / 1024:.0f} kB"))
    return rows + ask_run("sealed: ", folder, num_steps)


def encode_ms(data: Data, index: np.ndarray) -> float:
    compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
    tables = [data.step(step) for step in range(30)]
    before = time.perf_counter()
    for table in tables:
        build(FrameKind.ROWS, 0, 0.0, encode_rows(index, table), compressor=compressor).pack(b"12345678", 0)
    return 1000 * (time.perf_counter() - before) / len(tables)


def ask_run(label: str, folder: Path, num_steps: int) -> list[tuple[str, str]]:
    def one_site() -> None:
        run = open_run(folder)
        ready = time.perf_counter()
        series = run.series("model.layers.7.block.3.weight")
        took["one"].append(1000 * (time.perf_counter() - ready))
        assert len(next(iter(series.values()))) == num_steps

    def all_sites() -> None:
        run = open_run(folder)
        ready = time.perf_counter()
        matrix = run.matrix("gradient", "norm")
        took["all"].append(1000 * (time.perf_counter() - ready))
        assert matrix.values.shape[0] == num_steps
        ready = time.perf_counter()
        run.matrix("gradient", "norm")
        took["again"].append(1000 * (time.perf_counter() - ready))

    took: dict[str, list[float]] = {"one": [], "all": [], "again": []}
    opening = timed(lambda: open_run(folder))
    timed(one_site, 5)
    timed(all_sites, 3)
    one, every, again = (sorted(took[name])[len(took[name]) // 2] for name in ("one", "all", "again"))
    return [
        (f"{label}opening", f"{opening:.0f} ms"),
        (f"{label}one site's whole history", f"{one:.0f} ms"),
        (f"{label}one statistic of all sites", f"{every:.0f} ms, asked again {again:.0f} ms"),
    ]


def bench_sqlite(folder: Path, num_sites: int, num_steps: int) -> list[tuple[str, str]]:
    data = Data(num_sites)
    path = folder / "rows.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    names = ", ".join(f'"{name}" REAL' for name in COLUMNS)
    connection.execute(
        f"CREATE TABLE rows (step INTEGER, site INTEGER, {names}, PRIMARY KEY (site, step)) WITHOUT ROWID"
    )
    marks = ",".join("?" * (NUM_COLUMNS + 2))
    took = []
    for step in range(num_steps):
        table = data.step(step)
        before = time.perf_counter()
        rows = [(step, site, *values) for site, values in enumerate(table.tolist())]
        connection.executemany(f"INSERT INTO rows VALUES ({marks})", rows)
        connection.commit()
        took.append(1000 * (time.perf_counter() - before))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    values = num_sites * num_steps * NUM_COLUMNS
    one = timed(lambda: connection.execute("SELECT step, norm FROM rows WHERE site = 283").fetchall())
    every = timed(lambda: connection.execute("SELECT step, site, norm FROM rows").fetchall())
    connection.close()
    return [
        ("bytes a value", f"{path.stat().st_size / values:.2f}"),
        ("append", f"{np.mean(took):.1f} ms mean, {np.percentile(took, 99):.1f} ms p99"),
        ("one site's whole history", f"{one:.1f} ms"),
        ("one statistic of all sites", f"{every:.0f} ms"),
    ]


def bench_tensorboard(folder: Path, num_sites: int, num_steps: int) -> list[tuple[str, str]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    data = Data(num_sites)
    paths = [info.site.path for info in data.sites()]
    tags = [f"{path}/{name}" for path in paths for name in COLUMNS]
    writer = EventFileWriter(str(folder), max_queue_size=100_000)
    took = []
    for step in range(num_steps):
        flat = data.step(step).ravel().tolist()
        before = time.perf_counter()
        for tag, value in zip(tags, flat, strict=True):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(step=step, wall_time=0.0, summary=summary))
        took.append(1000 * (time.perf_counter() - before))
    writer.close()
    values = num_sites * num_steps * NUM_COLUMNS

    def load() -> None:
        loaded = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        assert len(loaded.Scalars(tags[0])) == num_steps

    return [
        ("bytes a value", f"{size_of(folder, 'events.*') / values:.1f} (float32)"),
        ("append, training thread", f"{np.mean(took):.0f} ms mean"),
        ("any question (the whole file is read)", f"{timed(load, 1):.0f} ms"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/store.md")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="store-bench-"))
    lines = [
        "# What storing costs",
        "",
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {platform.system()}, Python {platform.python_version()}; "
        f"{options.sites} sites x {options.steps} steps x {NUM_COLUMNS} statistics. "
        f"{os.cpu_count()} cores; load average when it began: {os.getloadavg()[0]:.1f}.",
        "",
    ]
    try:
        sections = [
            ("Stethoscope", options.steps, bench_ours(folder / "run", options.sites, options.steps)),
            (
                "SQLite, WAL, one row a site and step",
                SQLITE_STEPS,
                bench_sqlite(folder, options.sites, SQLITE_STEPS),
            ),
        ]
        (folder / "tb").mkdir()
        tensorboard = bench_tensorboard(folder / "tb", options.sites, TENSORBOARD_STEPS)
        sections.append(("TensorBoard event files, one scalar a value", TENSORBOARD_STEPS, tensorboard))
    finally:
        shutil.rmtree(folder)
    for title, steps, rows in sections:
        fewer = "" if steps == options.steps else f" ({steps} steps only, for time)"
        lines += [f"## {title}{fewer}", "", "| what | measured |", "| --- | --- |"]
        lines += [f"| {name} | {value} |" for name, value in rows] + [""]
    text = "\n".join(lines)
    print(text)
    if options.save:
        place = Path(__file__).parent / "results" / "store.md"
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
