"""A run of 5,000 sites and a million steps, made in a minute: the last 20,480 steps with their rows, the rest as rollups.

Rows and buckets are written by the store's own table writers; a few different segments stand for all of them (files
are linked, not copied), because what is measured is reading. The rollups over the rows are built by the store itself;
below it, over the million steps, lie others of the same form. A real run of that length has its scalars in many files.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from stethoscope.kernels.columns import INDEX, NUM_COLUMNS
from stethoscope.record import Kind, Site, SiteInfo
from stethoscope.store import FindingsWriter, RunWriter, seal
from stethoscope.store.downsample.buckets import BASE_LEVEL, buckets_table, fold_rows
from stethoscope.store.downsample.building import TOGETHER, build_rollups
from stethoscope.store.downsample.dense import STATS, DenseBuckets
from stethoscope.store.downsample.rollup import LEVELS_PER_HEIGHT, Rollup, RollupWriter
from stethoscope.store.manifest import Manifest, Segment, pack_runs
from stethoscope.store.pieces import StartKey
from stethoscope.store.seal import BUCKET_GROUP_ROWS
from stethoscope.store.sealed_file import SUFFIX, Sealed, write_sealed
from stethoscope.store.tables import SortedRows, rows_table, to_parquet

KINDS = (Kind.GRADIENT, Kind.WEIGHT, Kind.UPDATE, Kind.OPTIMIZER_STATE)
PARTS = ("ln_1", "attn.qkv", "attn.proj", "ln_2", "mlp.fc", "mlp.proj")
SEGMENT_STEPS = 64
VARIANTS = 4
METRICS = ("loss", "lr", "grad_norm", "step_ms")


def sites(amount: int) -> list[SiteInfo]:
    """Layers of six modules, each with weight and bias, four kinds of each."""
    per_layer = len(PARTS) * 2 * len(KINDS)
    modules = [f"layers.{n}.{part}" for n in range(max(1, -(-amount // per_layer))) for part in PARTS]
    return [
        SiteInfo(Site(m, k, name), (8, 8), "float32", 64) for k in KINDS for m in modules for name in ("weight", "bias")
    ]


def table_of(num_rows: int, rng: np.random.Generator) -> np.ndarray:
    """Rows whose norms wander; what else varies is the largest value, the mean and the spread."""
    table = np.full((num_rows, NUM_COLUMNS), 0.5)
    table[:, 0], table[:, 1:7] = 64, 0
    norms = rng.uniform(0.8, 1.2, num_rows).astype(np.float32)
    table[:, INDEX["norm"]], table[:, INDEX["abs_max"]] = norms, (norms / 8).astype(np.float32)
    table[:, INDEX["mean"]] = rng.normal(0, 1e-3, num_rows)
    table[:, INDEX["std"]] = (norms / 16).astype(np.float32)
    return table


def make(folder: Path, amount: int = 5000, raw_steps: int = 20_480, all_steps: int = 1 << 20) -> int:
    """Writes the run; returns its last step."""
    infos = sites(amount)
    writer = RunWriter.create(folder, {"name": "large"})
    writer.sites(infos)
    writer.event(0, "began", {})
    writer.flush(30)
    writer.close("finished")
    FindingsWriter(folder).write([])
    seal(folder, final=True)
    place = folder / "rank-0"
    manifest = Manifest.load(place)
    manifest.sites = infos
    key = manifest.segments[0].key
    old_steps = all_steps - raw_steps
    num_old = old_steps // SEGMENT_STEPS
    manifest.segments.append(_scalars(folder, key, all_steps, num_old))
    _raw(folder, manifest, key, old_steps, raw_steps, num_old)
    build_rollups(folder, 0, place, manifest)
    if old_steps:
        _old_rollups(folder, manifest, key, len(infos), old_steps)
    manifest.save(place)
    return all_steps - 1


def _scalars(folder: Path, key: StartKey, all_steps: int, num_old: int) -> Segment:
    steps = np.repeat(np.arange(all_steps, dtype=np.int64), len(METRICS))
    names = pa.DictionaryArray.from_arrays(
        pa.array(np.tile(np.arange(len(METRICS), dtype=np.int32), all_steps)), pa.array(METRICS)
    )
    rng = np.random.default_rng(1)
    values = np.empty((all_steps, len(METRICS)))
    at = np.arange(all_steps)
    values[:, 0] = 1.5 + 3 * np.exp(-at / (all_steps / 8)) + rng.normal(0, 0.05, all_steps)
    values[:, 1], values[:, 2], values[:, 3] = 5e-4, rng.uniform(0.8, 1.0, all_steps), rng.uniform(4.5, 5.5, all_steps)
    table = pa.table({"step": steps, "name": names, "start": np.zeros(len(steps), np.int32), "value": values.ravel()})
    parts = range(1, 1 + max(1, num_old))
    sealed = write_sealed(folder, f"scalars/rank=0/{part_name(key, parts[0], parts[-1])}", to_parquet(table))
    return Segment(key, list(parts), [], [], 0, True, {"scalars": sealed})


def _raw(folder: Path, manifest: Manifest, key: StartKey, old_steps: int, raw_steps: int, num_old: int) -> None:
    infos, rng = manifest.sites, np.random.default_rng(0)
    kept: list[dict[str, Sealed]] = []
    for number in range(raw_steps // SEGMENT_STEPS):
        first = old_steps + number * SEGMENT_STEPS
        steps = np.arange(first, first + SEGMENT_STEPS, dtype=np.int64)
        stem = part_name(key, num_old + 1 + number, num_old + 1 + number)
        files = {}
        if number < VARIANTS:
            count = len(infos) * SEGMENT_STEPS
            rows = SortedRows(
                np.tile(steps, len(infos)),
                np.repeat(np.arange(len(infos)), SEGMENT_STEPS),
                table_of(count, rng),
                np.ones(count, np.int64),
            )
            files["rows"] = write_sealed(folder, f"rows/rank=0/{stem}", to_parquet(rows_table(rows, infos, 0)))
            kept.append(files)
        else:
            files["rows"] = linked(folder, kept[number % VARIANTS]["rows"], f"rows/rank=0/{stem}")
            rows = None
        # Buckets carry their steps, so each is its own; the rows of a dense segment are found by counting.
        if rows is None:
            count = len(infos)
            rows = SortedRows(
                np.repeat(steps[:1], count), np.arange(count), table_of(count, rng), np.ones(count, np.int64)
            )
        buckets = to_parquet(buckets_table(fold_rows(rows), infos, 0), row_group_rows=BUCKET_GROUP_ROWS)
        files["pyramid"] = write_sealed(folder, f"pyramid/rank=0/{stem}", buckets)
        manifest.segments.append(
            Segment(
                key,
                [num_old + 1 + number],
                pack_runs(steps),
                pack_runs(range(len(infos))),
                len(infos) * SEGMENT_STEPS,
                True,
                files,
            )
        )


def _old_rollups(folder: Path, manifest: Manifest, key: StartKey, num_sites: int, old_steps: int) -> None:
    rng, units = np.random.default_rng(2), 1
    for height in (1, 2, 3):
        units *= TOGETHER
        level, steps = BASE_LEVEL + LEVELS_PER_HEIGHT * (height - 1), units * SEGMENT_STEPS
        count, sealed = steps >> level, None
        group = max(1, (32 << 10) // count)
        for number in range(old_steps // steps):
            parts = [1 + number * units, (number + 1) * units]
            path = f"ladder/rank=0/rung-{key.ordinal:04d}-{key.token}-{height}-{parts[0]:06d}-{parts[1]:06d}.parquet"
            if sealed is None:
                folded = DenseBuckets.empty(level, 0, num_sites, count, len(STATS))
                folded.mean[:] = rng.uniform(0.9, 1.1, folded.mean.shape)
                folded.low[:], folded.high[:] = folded.mean * 0.9, folded.mean * 1.1
                folded.rows[:] = 1 << level
                writer = RollupWriter(count)
                writer.write(folded, group)
                file = sealed = write_sealed(folder, path, writer.close())
            else:
                file = linked(folder, sealed, path)
            manifest.rollups.append(Rollup(key, height, level, parts, number * count, count, num_sites, group, file))


def part_name(key: StartKey, first: int, last: int) -> str:
    """What the store calls a sealed file of these parts."""
    return f"part-{key.ordinal:04d}-{key.token}-{first:06d}-{last:06d}.parquet"


def linked(folder: Path, of: Sealed, path: str) -> Sealed:
    """The same file under another name."""
    for suffix in ("", SUFFIX):
        os.link(folder / (of.path + suffix), folder / (path + suffix))
    return Sealed(path, of.num_bytes, of.sha256, of.sums_sha256)


if __name__ == "__main__":
    import sys
    import time

    begun = time.perf_counter()
    make(Path(sys.argv[1]))
    print(f"{time.perf_counter() - begun:.0f} s")
