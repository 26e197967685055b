"""The gradient's way through training as a page of its own: one file, played and scrubbed, nothing asked of a network.

The file holds its numbers, its style and its script; a policy by hash lets nothing else run or load. Without
scripts it shows the heatmap as text.
"""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from stethoscope.record import FloatArray
from stethoscope.views.common.plot_data import HeatGrid
from stethoscope.views.common.standalone import one_file
from stethoscope.views.common.style import Tokens, log_ratio, tokens
from stethoscope.views.pagedata.packing import floats

_HERE: Final = Path(__file__).parent
SPEEDS: Final = (2, 4, 8, 16, 30)
_NAN: Final = 3
_FAR: Final = 2.0
"""Powers of two from usual that make a row the one to look at first."""

_BODY: Final = """
<h1>{title}</h1>
<p>{note}</p>
<div id="bar"><button id="play" type="button">Play</button><span id="step"></span>
<input id="scrub" type="range" min="0" max="0" value="0" aria-label="Step">
<select id="speed" aria-label="Steps a second">{speeds}</select></div>
<div id="plot"><canvas id="cells" role="img" aria-label="{label}"></canvas></div>
<div id="said" aria-live="off"></div>
<div id="key"><span>1/64 <canvas id="ramp" width="96" height="10" aria-hidden="true"></canvas> ×64 of the layer's own median</span>
<span>slanted lines: NaN</span><span>upright lines: Inf</span><span>dots: missing</span><span>bar: norm now, log; tick: usual</span>
<span>space plays, arrows step, Shift ten at a time, j k rows</span></div>
<noscript><pre>{plain}</pre></noscript>
<script type="application/json" id="carried">{data}</script>"""


def motion_html(grid: HeatGrid, *, title: str, plain: str, last_step: int, speed: float = 8.0) -> str:
    """The page of a grid of layers by steps; `plain` is what it shows where scripts do not run."""
    # `<` is never written as itself: no name can end the block that carries it.
    data = json.dumps(motion_data(grid, last_step, speed), allow_nan=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )
    num_rows, num_columns = grid.norms.shape
    note = f"{num_rows:,} layers, steps {int(grid.first_steps[0]):,} to {last_step:,}, each against its own median."
    label = f"Gradient norm of {num_rows:,} layers over {num_columns:,} steps; the line under it says the chosen layer's value"
    speeds = "".join(f'<option value="{number}">{number} a second</option>' for number in SPEEDS)
    body = _BODY.format(
        title=html.escape(title),
        note=html.escape(note),
        label=html.escape(label, quote=True),
        speeds=speeds,
        data=data,
        plain=html.escape(plain),
    )
    style, script = ((_HERE / name).read_text("utf-8") for name in ("motion.css", "motion.js"))
    return one_file(title, body, style=style, script=script)


def motion_data(grid: HeatGrid, last_step: int, speed: float) -> dict[str, Any]:
    """What the page draws: norms, log2 ratios to the median, the median, and what is no number."""
    norms = np.asarray(grid.norms, dtype=np.float64)
    ratios = log_ratio(norms)
    positive = np.where((norms > 0) & np.isfinite(norms), norms, np.nan)
    usual = np.full(len(norms), np.nan)
    known = ~np.isnan(positive).all(axis=1)
    usual[known] = np.nanmedian(positive[known], axis=1)
    column, row = _first_seen(ratios, grid.state)
    low, high = (float(np.nanmin(positive)), float(np.nanmax(positive))) if known.any() else (1.0, 1.0)
    return {
        "labels": list(grid.labels),
        "steps": [int(step) for step in grid.first_steps],
        "lastStep": int(last_step),
        "values": floats(norms),
        "ratios": floats(ratios),
        "usual": floats(usual),
        "state": base64.b64encode(np.asarray(grid.state, dtype=np.uint8).tobytes()).decode("ascii"),
        "range": [max(low, high * 1e-12), high],
        "column": column,
        "row": row,
        "speed": str(min(SPEEDS, key=lambda one: abs(one - speed))),
        "looks": {"light": _look(tokens(False)), "dark": _look(tokens(True))},
    }


def _first_seen(ratios: FloatArray, state: Any) -> tuple[int, int]:
    """Where to open: the first cell that is no number, else the one farthest from usual, else the end."""
    broken = np.argwhere(np.asarray(state).T == _NAN)
    if len(broken):
        return int(broken[0][0]), int(broken[0][1])
    far = np.nan_to_num(np.abs(ratios), nan=0.0, posinf=0.0)
    if far.size and far.max() > _FAR:
        row, column = np.unravel_index(int(far.argmax()), far.shape)
        return int(column), int(row)
    return max(0, ratios.shape[1] - 1), 0


def _look(look: Tokens) -> dict[str, Any]:
    return {
        "sheet": look.sheet,
        "sunken": look.sunken,
        "mark": look.mark,
        "ink": look.ink,
        "ink2": look.ink2,
        "ink3": look.ink3,
        "crit": look.crit,
        "tint": look.crit_tint,
        "series": look.series[1],
        "history": list(look.history),
    }
