"""Whether two runs' tensors point the same way: the cosine of their sketches, layer by layer, look by look.

Both runs draw the same random signs, so the sketches of two tensors of one shape can be set against each other. A
sketch of 64 numbers gives a cosine within about 0.12; a layer's is taken over all its tensors together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stethoscope.analyse.grouping import row_name
from stethoscope.analyse.tree import Node
from stethoscope.record import Kind, Site, SiteInfo, select
from stethoscope.store import Run
from stethoscope.views.pagedata.packing import floats

MAX_SITES: Final = 400
MAX_LOOKS: Final = 64


def cosine_data(a: Run, b: Run, kind: Kind, nodes: Sequence[Node], window: tuple[int, int]) -> dict[str, Any] | None:
    """Looks that both runs took, and the cosine of each row there; None where no sketch can be compared."""
    other = {info.site: info for info in select(b.sites, "*", kind)}
    shared = [info for info in select(a.sites, "*", kind) if info.site in other and other[info.site].shape == info.shape]
    if not shared or len(shared) > MAX_SITES:
        return None
    found = {info.site: pair for info in shared if (pair := _sketches(a, b, info.site)) is not None}
    steps = sorted({int(step) for known, _, _ in found.values() for step in known if window[0] <= step <= window[1]})
    steps = steps[:: -(-len(steps) // MAX_LOOKS)] if steps else []
    if not steps:
        return None
    table = np.full((len(nodes), len(steps)), np.nan)
    for row, node in enumerate(nodes):
        mine = [found[info.site] for info in shared if info.site in found and _is_in(info, node)]
        for column, step in enumerate(steps):
            table[row, column] = _cosine([pair for pair in mine if step in pair[0]], step)
    return {"steps": steps, "values": floats(table)}


def _is_in(info: SiteInfo, node: Node) -> bool:
    return row_name(info.site, node.depth) == node.path


def _sketches(a: Run, b: Run, site: Site) -> tuple[dict[int, int], Any, Any] | None:
    """The looks both runs took of a site, each with its place, and the sketches of both there."""
    (steps_a, left), (steps_b, right) = a.vectors("sketch", site), b.vectors("sketch", site)
    if not len(steps_a) or not len(steps_b) or left.shape[1] != right.shape[1]:
        return None
    steps, at_a, at_b = np.intersect1d(steps_a, steps_b, assume_unique=True, return_indices=True)
    places = {int(step): place for place, step in enumerate(steps)}
    return places, left[at_a].astype(np.float64), right[at_b].astype(np.float64)


def _cosine(pairs: Sequence[tuple[dict[int, int], Any, Any]], step: int) -> float:
    """Of several tensors as if they were one; NaN where one side is zero or no number."""
    dot = size_a = size_b = 0.0
    for places, left, right in pairs:
        x, y = left[places[step]], right[places[step]]
        dot, size_a, size_b = dot + float(x @ y), size_a + float(x @ x), size_b + float(y @ y)
    if not (0 < size_a < np.inf and 0 < size_b < np.inf):
        return float("nan")
    return float(np.clip(dot / np.sqrt(size_a * size_b), -1.0, 1.0))
