"""One layer: its own quantities on the shared axis, the distribution of its largest tensor, what was found in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, TypedDict

import numpy as np

from stethoscope.analyse.eventseries import attention_modules, entropy
from stethoscope.record import (
    OUTPUT_KINDS,
    ROOT_NAME,
    Kind,
    Series,
    Site,
    SiteInfo,
)
from stethoscope.store import Run
from stethoscope.views.common.evidence import evidence_series
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.histograms import RETURNED, Pictures, one_series, picture_data
from stethoscope.views.pagedata.layer_parts import Heads, Units, heads_data, units_data
from stethoscope.views.pagedata.overview import Limit, Track
from stethoscope.views.pagedata.packing import binned, number, text
from stethoscope.views.pagedata.query import BadQuestionError, QueryParams
from stethoscope.views.pagedata.screens import Screen
from stethoscope.views.pagedata.verdict import FindingRow, finding_row

MAX_TENSORS: Final = 64
_MAX_OUTPUTS: Final = 3


class Source(TypedDict):
    """Where a module was made."""

    file: str
    line: int


class LayerHead(TypedDict):
    """Type, parameters, shape of the output."""

    type: str
    detail: str
    numParameters: int
    shape: list[int]
    dtype: str
    source: Source | None


class LayerData(TypedDict):
    """Everything of the layer screen."""

    version: int
    path: str
    head: LayerHead
    tensors: list[str]
    tensor: str
    tracks: list[Track]
    pictures: Pictures | None
    findings: list[FindingRow]
    heads: Heads | None
    units: Units | None
    numSites: int
    histogramEvery: int | None


_LARGEST: Final = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38}


def layer_data(viewed: OpenRun, path: str, view: tuple[int, int, int], tensor_at: int = -1) -> LayerData:
    """Everything of the layer screen for one module (or what is under it)."""
    run = viewed.run
    path = real_path(run, path)
    inside, weights = sites_of(run, path)
    tensor = weights[tensor_at if 0 <= tensor_at < len(weights) else 0] if weights else None
    return {
        "version": viewed.version,
        "path": text(path, 10_000),
        "head": head_data(run, path, inside),
        "tensors": [text(info.site.path, 10_000) for info in weights],
        "tensor": text(tensor.site.path, 10_000) if tensor else "",
        "tracks": layer_tracks(viewed, path, inside, tensor, view),
        "pictures": picture_data(run, inside, tensor, view),
        "findings": findings_here(viewed, path),
        "heads": heads_data(run, path, view[:2]),
        "units": units_data(run, inside, tensor, view[:2]),
        "numSites": len(inside),
        "histogramEvery": histogram_every(run),
    }


def sites_of(run: Run, path: str) -> tuple[list[SiteInfo], list[SiteInfo]]:
    """The sites in a layer, and its weights, the largest first; BadQuestionError where there is no such layer."""
    inside = [info for info in run.sites if _is_within(info.site, path)]
    if not inside:
        raise BadQuestionError("There is no such layer", where=text(path, 80), do="Choose one from the tree")
    weights = [info for info in inside if info.site.kind is Kind.WEIGHT]
    return inside, sorted(weights, key=lambda info: -info.num_elements)[:MAX_TENSORS]


def real_path(run: Run, shown: str) -> str:
    """The module path that is shown like this, or that holds the tensor of this name.

    Names with control characters are not shown as they are.
    """
    if any(_is_within(info.site, shown) for info in run.sites):
        return shown
    for info in run.sites:
        if shown in info.site.names:
            return info.site.module or ROOT_NAME
    for info in run.sites:
        parts = (info.site.module or info.site.path).split(".")
        for cut in range(1, len(parts) + 1):
            path = ".".join(parts[:cut])
            if text(path, 10_000) == shown:
                return path
    return shown


def _is_within(site: Site, path: str) -> bool:
    """Whether a site is the layer's or of a part of it; of the model as a whole only what is its own."""
    if not site.module:
        return path == ROOT_NAME or (site.path == path and site.kind not in OUTPUT_KINDS)
    return site.module == path or site.module.startswith(path + ".")


def _is_held_by(path: str, site: str) -> bool:
    """Whether what is named so is in the layer."""
    return path == ROOT_NAME or site == path or site.startswith(path + ".")


def _output_sites(path: str, inside: list[SiteInfo]) -> list[SiteInfo]:
    """What the layer itself returns."""
    return [info for info in inside if info.site.kind in RETURNED and (info.site.module or ROOT_NAME) == path]


def head_data(run: Run, path: str, inside: list[SiteInfo]) -> LayerHead:
    """Type, parameters, shape of the output."""
    model: Any = run.info.get("model")
    modules = model.get("modules", []) if isinstance(model, Mapping) else []
    own = [m for m in modules if isinstance(m, Mapping) and (str(m.get("path", "")) or ROOT_NAME) == path]
    under = [m for m in modules if isinstance(m, Mapping) and _is_held_by(path, str(m.get("path", "")))]
    outputs = _output_sites(path, inside)
    return {
        "type": text(str(own[0].get("type", "")), 80) if own else "",
        "detail": text(str(own[0].get("detail", "")), 200) if own else "",
        "numParameters": sum(int(m.get("num_parameters") or 0) for m in under),
        "shape": list(outputs[0].shape) if outputs else [],
        "dtype": text(outputs[0].dtype, 20) if outputs else "",
        "source": _source_lines(own[0].get("source")) if own else None,
    }


def _source_lines(value: Any) -> Source | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("line"), int):
        return None
    return {"file": text(str(value.get("file", ""))), "line": value["line"]}


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class LayerLine:
    """One line of a layer: what it is, its numbers, and a limit they should not pass."""

    label: str
    series: Series
    note: str = ""
    color: str = "s1"
    limit: Limit | None = None
    site: str = ""
    stat: str = ""
    kind: str = ""


def layer_tracks(
    viewed: OpenRun, path: str, inside: list[SiteInfo], tensor: SiteInfo | None, view: tuple[int, int, int]
) -> list[Track]:
    """The lines of `layer_series` over the steps in view; those without a value there are left out."""
    out = [_line_data(track, view) for track in layer_series(viewed, path, inside, tensor, view[:2])]
    return [track for track in out if track["series"]["count"]][:8]


def layer_series(
    viewed: OpenRun, path: str, inside: list[SiteInfo], tensor: SiteInfo | None, window: tuple[int, int] | None = None
) -> list[LayerLine]:
    """The lines: what the findings speak of, the output, update over weight, the weight's norm.

    With a window, of a long run only that is sure to be there.
    """
    run = viewed.run
    out = evidence_tracks(viewed, path, window)
    for module in attention_modules(run, path)[:1]:
        note = text(module.removeprefix(path + "."), 60) if module != path else ""
        out.append(LayerLine("Attention entropy", entropy(run, module), f"{note}, nats".lstrip(", "), "s3"))
    out += _output_tracks(viewed, _output_sites(path, inside), {(track.site, track.stat) for track in out}, window)
    if tensor is not None:
        of = f"of {text(tensor.site.path.removeprefix(path + '.'), 60)}"
        gradient = one_series(run, Site(tensor.site.module, Kind.GRADIENT, tensor.site.name), "norm", window)
        update = one_series(run, Site(tensor.site.module, Kind.UPDATE, tensor.site.name), "norm", window)
        weight = one_series(run, tensor.site, "norm", window)
        if (tensor.site.path, "norm", Kind.GRADIENT) not in {(track.site, track.stat, track.kind) for track in out}:
            out.append(LayerLine("Gradient norm", gradient, of, "s2"))
        out.append(LayerLine("Update / weight", _ratio_series(update, weight), of, "s2"))
        out.append(LayerLine("Weight norm", weight, of, "s4"))
    return out


def _output_tracks(
    viewed: OpenRun, outputs: list[SiteInfo], shown: set[tuple[str, str]], window: tuple[int, int] | None
) -> list[LayerLine]:
    """The largest values of what a layer returns; of several tensors first those that a finding names."""
    named = {site for finding in viewed.diagnosis.findings for site in finding.sites}
    left = [info for info in outputs if (info.site.path, "abs_max") not in shown]
    left.sort(key=lambda info: named.isdisjoint({info.site.path, info.site.name} - {""}))
    return [
        LayerLine(
            "Largest output",
            _largest_size(viewed.run, info.site, window),
            text(info.site.name, 60),
            "s1",
            _dtype_limit(info),
        )
        for info in left[:_MAX_OUTPUTS]
    ]


def _largest_size(run: Run, site: Site, window: tuple[int, int] | None) -> Series:
    """The largest size in a tensor; NaN or Inf at the steps where it held one."""
    series = one_series(run, site, "abs_max", window)
    values = series.values.copy()
    for stat, value in (("num_posinf", np.inf), ("num_neginf", np.inf), ("num_nan", np.nan)):
        counts = one_series(run, site, stat, window)
        values[np.isin(series.steps, counts.steps[counts.values > 0])] = value
    return Series(series.steps, values)


def evidence_tracks(viewed: OpenRun, path: str, window: tuple[int, int] | None = None) -> list[LayerLine]:
    """Lines of the quantities that findings about this layer rest on."""
    out: list[LayerLine] = []
    for finding in viewed.diagnosis.findings:
        for e in finding.evidence:
            if not e.site or not e.kind or not _is_held_by(path, e.site):
                continue
            series = evidence_series(e, viewed.run, window)
            known = {(track.site, track.stat) for track in out}
            if series is None or (e.site, e.stat) in known or e.stat == "num_nonfinite":
                continue
            info = next((i for i in viewed.run.sites if i.site.path == e.site and i.site.kind == e.kind), None)
            label = _capitalized(text(e.label.replace(e.site, e.site.removeprefix(path + ".")), 80))
            out.append(LayerLine(label, series, "", "s1", _dtype_limit(info) if info else None, e.site, e.stat, e.kind))
    return out[:3]


def _capitalized(words: str) -> str:
    return words[:1].upper() + words[1:]


def _dtype_limit(info: SiteInfo) -> Limit | None:
    """The largest number of a narrow type, where a value could come near it."""
    if info.dtype != "float16":
        return None
    return {"value": _LARGEST["float16"], "label": "fp16 overflow, 65,504"}


def _line_data(track: LayerLine, view: tuple[int, int, int]) -> Track:
    series = track.series
    inside = series.values[(series.steps >= view[0]) & (series.steps <= view[1])]
    finite = inside[np.isfinite(inside)]
    log = bool(len(finite) and finite.min() > 0 and finite.max() / finite.min() > 30)
    return {
        "key": f"{track.label} {track.note}".rstrip(),
        "label": track.label,
        "note": ", ".join(part for part in (track.note, "log" if log else "") if part),
        "color": track.color,
        "tall": True,
        "log": log,
        "limits": [track.limit] if track.limit else [],
        "unit": "",
        "site": track.site,
        "stat": track.stat,
        "series": binned(series, *view),
        "last": number(float(series.values[-1])) if len(series) else None,
    }


def _ratio_series(a: Series, b: Series) -> Series:
    steps, at_a, at_b = np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return Series(steps, a.values[at_a] / b.values[at_b])


def findings_here(viewed: OpenRun, path: str) -> list[FindingRow]:
    """Findings that name a site in this layer."""
    return [finding_row(f, viewed.diagnosis) for f in viewed.diagnosis.findings if f.is_about(path)][:64]


def histogram_every(run: Run) -> int | None:
    """How often distributions were recorded, where that was said."""
    config = run.info.get("config")
    every = config.get("histogram_every") if isinstance(config, Mapping) else None
    return int(every) if isinstance(every, int) and every > 0 else None


def _answer_layer(viewed: OpenRun, query: QueryParams) -> LayerData:
    return layer_data(viewed, query.words("path"), query.view(viewed.span), query.whole("step", -1))


SCREEN: Final = Screen(
    name="layers", title="Layers", order=20, key="l", icon="lines", count="modules", questions={"layer": _answer_layer}
)
