"""Small runs with a known story, written through the store's own writer."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stethoscope.kernels.columns import INDEX, NUM_COLUMNS, empty_rows
from stethoscope.record import Evidence, Finding, Kind, Severity, Site, SiteInfo
from stethoscope.store import RunWriter

NUM_ELEMENTS = 64


def row(norm: float, *, num_nan: int = 0, num_inf: int = 0, num_elements: int = NUM_ELEMENTS) -> np.ndarray:
    """The row of a tensor with this norm: half its values +v, half -v, some of them not finite."""
    out = empty_rows(1)[0]
    finite = num_elements - num_nan - num_inf
    out[INDEX["count"]] = num_elements
    out[INDEX["num_nan"]], out[INDEX["num_posinf"]] = num_nan, num_inf
    if finite <= 0:
        return out
    size = norm / np.sqrt(finite)
    out[INDEX["num_zero"]] = finite if norm == 0 else 0
    named = {
        "min": -size,
        "max": size,
        "abs_max": size,
        "abs_min": size if norm else np.nan,
        "mean": 0.0,
        "mean_abs": size,
        "norm": norm,
        "std": size,
        "skewness": 0.0,
        "kurtosis": -2.0,
    }
    for name, value in named.items():
        out[INDEX[name]] = value
    return out


def sites_of(modules: list[str], kinds: tuple[Kind, ...] = (Kind.GRADIENT, Kind.WEIGHT)) -> list[SiteInfo]:
    """A weight of each module, for each kind."""
    return [
        SiteInfo(Site(module, kind, "weight"), (8, 8), "float32", NUM_ELEMENTS) for kind in kinds for module in modules
    ]


MODULES = ["wte", *(f"layers.{n}.{part}" for n in range(4) for part in ("attn", "mlp")), "head"]

Story = Callable[[Site, int], np.ndarray | None]


def healthy(site: Site, step: int) -> np.ndarray | None:
    """Every site near its own size, a little noise."""
    noise = np.random.default_rng(zlib.crc32(str(site).encode()) + step).uniform(0.9, 1.1)
    return row((0.2 + 0.01 * len(site.path)) * noise)


def write_run(
    folder: Path,
    story: Story = healthy,
    *,
    name: str = "gpt-small",
    steps: range = range(1, 201),
    modules: list[str] | None = None,
    metrics: Callable[[int], Mapping[str, float]] | None = None,
    ended: str | None = "finished",
    body: dict[str, Any] | None = None,
    infos: list[SiteInfo] | None = None,
    info: dict[str, Any] | None = None,
) -> Path:
    """Writes a run; `ended=None` leaves it open, as a live run is."""
    infos = sites_of(modules or MODULES) if infos is None else infos
    writer = RunWriter.create(folder, {"name": name, **(info or {})})
    writer.sites(infos)
    for step in steps:
        found = [(place, story(info.site, step)) for place, info in enumerate(infos)]
        kept = [(place, values) for place, values in found if values is not None]
        if kept:
            table = np.array([values for _, values in kept]).reshape(-1, NUM_COLUMNS)
            writer.rows(step, np.array([place for place, _ in kept], np.uint32), table)
        writer.scalars(step, dict(metrics(step)) if metrics else default_metrics(step))
    assert writer.flush()
    if ended is not None:
        writer.close(ended, body or {})
    else:
        _OPEN.append(writer)
    return folder


_OPEN: list[RunWriter] = []
"""Writers of live runs: kept, so that they stay live until the process ends."""


def default_metrics(step: int) -> dict[str, float]:
    return {
        "loss": 1.5 + 3.0 * float(np.exp(-step / 60)),
        "lr": 5.62e-4,
        "grad_norm": 0.9,
        "clip_coef": 1.0,
        "step_ms": 120.0,
        "overhead_ms": 0.84,
        "num_backwards": 1.0,
    }


def exploding(site: Site, step: int) -> np.ndarray | None:
    """layers.2.attn grows from step 150 and takes everything to NaN at 190; clipping starves the others."""
    base = healthy(site, step)
    assert base is not None
    if site.kind != Kind.GRADIENT:
        return base
    norm = float(base[INDEX["norm"]])
    if step >= 190:
        return row(0.0, num_nan=NUM_ELEMENTS)
    if step >= 150 and site.module == "layers.2.attn":
        return row(norm * 2 ** ((step - 150) / 6))
    if step >= 170:
        return row(norm / 2 ** ((step - 170) / 6))
    return base


def exploding_metrics(step: int) -> dict[str, float]:
    """Loss jumps at 185 and is NaN from 190."""
    loss = default_metrics(step)["loss"]
    grown = 2 ** ((min(step, 190) - 150) / 6) if step >= 150 else 1.0
    loss = float("nan") if step >= 190 else 7.86 if step >= 185 else loss
    return default_metrics(step) | {"loss": loss, "grad_norm": 0.9 * grown, "clip_coef": min(1.0, 1 / grown)}


CAUSE = Finding(
    code="exploding_gradients",
    severity=Severity.CRITICAL,
    message="The gradient of layers.2.attn grew without bound from step 150.",
    first_step=150,
    last_step=200,
    sites=("layers.2.attn.weight",),
    evidence=(
        Evidence("gradient norm", 76.8, 0.406, site="layers.2.attn.weight", kind="gradient", stat="norm"),
        Evidence("clip coefficient", 0.0124, 1.0, stat="clip_coef"),
        Evidence("loss", float("nan"), 1.66, stat="loss"),
    ),
    remedy="torch.nn.utils.clip_grad_norm_(model.layers[2].parameters(), 1.0)",
    confidence=0.96,
)
FOLLOWED = (
    Finding(
        "clipping_always_on",
        Severity.WARNING,
        "Clipping leaves the other layers a third of their usual gradient.",
        171,
        200,
    ),
    Finding("loss_spike", Severity.WARNING, "Loss jumps from 1.64 to 7.86 in one step.", 185, 185),
    Finding("nonfinite_origin", Severity.CRITICAL, "NaN in layers.2.attn, then in all 10 sites.", 190, 200),
)
