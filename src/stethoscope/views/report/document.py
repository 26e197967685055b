"""The report's data, and the HTML file around it."""

from __future__ import annotations

import base64
import gzip
import html
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypedDict

from stethoscope.record import ROOT_NAME, Kind, StethoscopeError
from stethoscope.views.common.numbers import strict_json
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.common.standalone import one_file
from stethoscope.views.pagedata import flow, layer, log, overview
from stethoscope.views.pagedata.followed import Followed
from stethoscope.views.pagedata.heat import HeatData, heat_data
from stethoscope.views.pagedata.packing import Number
from stethoscope.views.pagedata.profile import profile_data
from stethoscope.views.pagedata.ranks import ranks_data

WEB: Final = Path(__file__).parents[1] / "web"
SCHEMA_VERSION: Final = 1
_HEAT_BINS, _TRACK_BINS, _WHOLE_BINS = 400, 300, 400
_MAX_FLOW_BINS: Final = 1
"""The report shows the flow at one step: its history stays in the run."""


class ReportPart(TypedDict):
    """A part of the mean step."""

    label: str
    color: str
    ms: Number


class ReportProfile(TypedDict):
    """The mean step by its parts."""

    parts: list[ReportPart]
    meanMs: Number


class ReportRank(TypedDict):
    """A rank in one line."""

    rank: int
    lastLoss: Number
    stepMs: float | None


class ReportData(TypedDict):
    """Everything the report shows: the forms that the page asks for, at one moment."""

    schema_version: int
    run: overview.RunData
    tracks: list[overview.Track]
    whole: list[overview.Track]
    heat: HeatData | None
    layer: layer.LayerData | None
    flow: flow.FlowData | None
    flowStep: int
    profile: ReportProfile
    ranks: list[ReportRank]
    madeAt: float
    version: str
    losses: dict[str, int]
    problems: list[log.Problem]


_BODY: Final = """<div id="app"></div><noscript><pre>{plain}</pre></noscript>
<script type="application/octet-stream" id="carried">{data}</script>"""


def report_data(viewed: OpenRun, version: str) -> ReportData:
    """Everything the report shows."""
    if not viewed.was_examined and viewed.run.state != "live":
        viewed.examine()
    run = overview.run_data(viewed)
    first, last = run["window"]
    kinds = viewed.kinds()
    kind = overview.heat_kind(viewed)
    begin, end = run["span"]
    whole = overview.tracks_data(viewed, begin, end, _WHOLE_BINS)
    profile, found = profile_data(viewed, (begin, end, 16)), log.log_data(viewed)
    step, drawn = _flow_before_cause(viewed, run["verdict"]["followed"])
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run,
        "tracks": overview.tracks_data(viewed, first, last, _TRACK_BINS),
        "whole": whole,
        "heat": heat_data(viewed, kind, "norm", (first, last, _HEAT_BINS)) if kinds else None,
        "layer": _layer_of_cause(viewed, (first, last, _TRACK_BINS)),
        "profile": {
            "parts": [{"label": one["label"], "color": one["color"], "ms": one["ms"]} for one in profile["parts"]],
            "meanMs": profile["meanMs"],
        },
        "ranks": [
            {"rank": row["rank"], "lastLoss": row["lastLoss"], "stepMs": row["stepMs"]}
            for row in ranks_data(viewed)["ranks"]
        ],
        "madeAt": time.time(),
        "version": version,
        "flow": drawn,
        "flowStep": step,
        "losses": found["losses"],
        "problems": found["problems"],
    }


def _layer_of_cause(viewed: OpenRun, view: tuple[int, int, int]) -> layer.LayerData | None:
    """The layer of the first cause, without its distributions; the model's own outputs where the loss went wrong."""
    for cause in viewed.diagnosis.causes[:1]:
        for site in cause.sites[:1]:
            for path in (site, site.rpartition(".")[0] or ROOT_NAME):
                try:
                    found = layer.layer_data(viewed, path, view)
                except StethoscopeError:
                    continue
                return {**found, "pictures": None, "heads": None, "units": None} if found["tracks"] else None
    return None


def _flow_before_cause(viewed: OpenRun, followed: Sequence[Followed]) -> tuple[int, flow.FlowData | None]:
    """The gradient on the graph at the step before the first cause ended: the last one that can be drawn."""
    kinds = viewed.kinds()
    kind = next((one for one in (Kind.ACTIVATION_GRADIENT, Kind.GRADIENT) if one in kinds), None)
    steps = viewed.run.steps
    if kind is None or not len(steps):
        return 0, None
    step = int(steps[-1])
    broken = [entry["step"] for entry in followed if entry["step"] > int(steps[0])]
    if broken:
        earlier = steps[steps < max(broken)]
        step = int(earlier[-1]) if len(earlier) else step
    return step, flow.flow_data(viewed, kind, (step, step, _MAX_FLOW_BINS))


def report_html(viewed: OpenRun, version: str) -> str:
    """The file."""
    from stethoscope.views.report.markdown import report_markdown

    body = strict_json(report_data(viewed, version)).encode()
    data = base64.b64encode(gzip.compress(body, compresslevel=9, mtime=0)).decode("ascii")
    return one_file(
        f"{viewed.run.name} {viewed.run.id}, stethoscope",
        _BODY.format(data=data, plain=html.escape(report_markdown(viewed))),
        style=(WEB / "app.css").read_text("utf-8"),
        script=(WEB / "app.js").read_text("utf-8"),
        images="data: blob:",
    )
