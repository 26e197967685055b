"""The report's data, and the HTML file around it."""

from __future__ import annotations

import base64
import gzip
import html
import json
import time
from pathlib import Path
from typing import Any, Final

from stethoscope.record import ROOT_NAME, Kind, StethoscopeError
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.common.standalone import one_file
from stethoscope.views.pagedata import flow, layer, log, overview
from stethoscope.views.pagedata.heat import heat_data
from stethoscope.views.pagedata.ranks import profile_data, ranks_data

WEB: Final = Path(__file__).parents[1] / "web"
SCHEMA_VERSION: Final = 1
_HEAT_BINS, _TRACK_BINS, _WHOLE_BINS = 400, 300, 400
_MAX_FLOW_BINS: Final = 1
"""The report shows the flow at one step: its history stays in the run."""

_BODY: Final = """<div id="app"></div><noscript><pre>{plain}</pre></noscript>
<script type="application/octet-stream" id="carried">{data}</script>"""


def report_data(viewed: OpenRun, version: str) -> dict[str, Any]:
    """Everything the report shows, as JSON values: the same forms that the page asks for."""
    if not viewed.was_examined and viewed.run.state != "live":
        viewed.examine()
    run = overview.run_data(viewed)
    first, last = run["window"]
    kinds = viewed.kinds()
    kind = overview.heat_kind(viewed)
    begin, end = run["span"]
    whole = overview.tracks_data(viewed, begin, end, _WHOLE_BINS)
    profile = profile_data(viewed, (begin, end, 16))
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run,
        "tracks": overview.tracks_data(viewed, first, last, _TRACK_BINS),
        "whole": whole,
        "heat": heat_data(viewed, kind, "norm", (first, last, _HEAT_BINS)) if kinds else None,
        "layer": _layer(viewed, (first, last, _TRACK_BINS)),
        "profile": {
            "parts": [{k: part[k] for k in ("label", "color", "ms")} for part in profile["parts"]],
            "meanMs": profile["meanMs"],
        },
        "ranks": [{k: row[k] for k in ("rank", "lastLoss", "stepMs")} for row in ranks_data(viewed)["ranks"]],
        "madeAt": time.time(),
        "version": version,
        **_flow(viewed, kinds),
        **_log(viewed),
    }


def _layer(viewed: OpenRun, view: tuple[int, int, int]) -> dict[str, Any] | None:
    """The layer of the first cause, without its distributions; the model's own outputs where the loss went wrong."""
    for cause in viewed.diagnosis.causes[:1]:
        for site in cause.sites[:1]:
            for path in (site, site.rpartition(".")[0] or ROOT_NAME):
                try:
                    found = layer.layer_data(viewed, path, view)
                except StethoscopeError:
                    continue
                return found | {"pictures": None, "heads": None, "units": None} if found["tracks"] else None
    return None


def _flow(viewed: OpenRun, kinds: list[Kind]) -> dict[str, Any]:
    """The gradient on the graph at the step before the first cause ended: the last one that can be drawn."""
    kind = next((one for one in (Kind.ACTIVATION_GRADIENT, Kind.GRADIENT) if one in kinds), None)
    steps = viewed.run.steps
    if kind is None or not len(steps):
        return {"flow": None, "flowStep": 0}
    step = int(steps[-1])
    followed = [int(entry["step"]) for entry in overview.run_data(viewed)["verdict"]["followed"]]
    broken = [at for at in followed if at > int(steps[0])]
    if broken:
        earlier = steps[steps < max(broken)]
        step = int(earlier[-1]) if len(earlier) else step
    return {"flow": flow.flow_data(viewed, kind, (step, step, _MAX_FLOW_BINS)), "flowStep": step}


def _log(viewed: OpenRun) -> dict[str, Any]:
    found = log.log_data(viewed)
    return {"losses": found["losses"], "problems": found["problems"]}


def report_html(viewed: OpenRun, version: str) -> str:
    """The file."""
    from stethoscope.views.report.markdown import report_markdown

    body = json.dumps(report_data(viewed, version), allow_nan=False, separators=(",", ":")).encode()
    data = base64.b64encode(gzip.compress(body, compresslevel=9, mtime=0)).decode("ascii")
    return one_file(
        f"{viewed.run.name} {viewed.run.id}, stethoscope",
        _BODY.format(data=data, plain=html.escape(report_markdown(viewed))),
        style=(WEB / "app.css").read_text("utf-8"),
        script=(WEB / "app.js").read_text("utf-8"),
        images="data: blob:",
    )
