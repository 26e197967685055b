"""Whether two runs' tensors point the same way: the cosine of their sketches, layer by layer, sample by sample.

Both runs draw the same random signs, so the sketches of two tensors of one shape can be set against each other. A
sketch of 64 numbers gives a cosine within about 0.12; a layer's is taken over all its tensors together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypedDict, cast

import numpy as np

from stethoscope.analyse.grouping import row_name
from stethoscope.analyse.tree import Node
from stethoscope.record import Kind, Site, SiteInfo, select
from stethoscope.store import Run
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.packing import floats

Pair = tuple[dict[int, int], Any, Any]
"""The steps at which both runs sketched a tensor, each with its index, and the sketches of both there."""
Pairs = dict[Site, tuple[SiteInfo, Pair]]


class Cosine(TypedDict):
    """The cosine of each row at the steps that both runs sampled."""

    steps: list[int]
    values: str


class Angles(TypedDict):
    """Whether the two runs' rows point the same way."""

    kind: str
    rows: list[int]
    cosine: Cosine | None


MAX_SITES: Final = 400
MAX_LOOKS: Final = 64


def sketches_of(
    a: OpenRun,
    b: OpenRun,
    kind: Kind,
    locked: Callable[[], AbstractContextManager[Any]],
    is_unwanted: Callable[[], bool],
) -> Pairs:
    """The sketches of every tensor that both runs have; kept with the first of the two until one of them changes.

    Once the question is withdrawn, what was read so far; that is not kept.
    """
    key = (str(b.path), a.version, b.version, str(kind))
    if a.angles is not None and a.angles[0] == key:
        return cast(Pairs, a.angles[1])
    with locked():
        other = {info.site: info for info in select(b.run.sites, "*", kind)}
        mine = select(a.run.sites, "*", kind)
        shared = [info for info in mine if info.site in other and other[info.site].shape == info.shape]
    found: Pairs = {}
    for info in shared if len(shared) <= MAX_SITES else ():
        if is_unwanted():
            return found
        with locked():
            pair = _shared_sketches(a.run, b.run, info.site)
        if pair is not None:
            found[info.site] = (info, pair)
    with locked():
        a.angles = (key, found)
    return found


def cosine_data(found: Pairs, nodes: Sequence[Node], window: tuple[int, int]) -> Cosine | None:
    """Looks that both runs took, and the cosine of each row there; None where no sketch can be compared."""
    steps = sorted({int(step) for _, pair in found.values() for step in pair[0] if window[0] <= step <= window[1]})
    steps = steps[:: -(-len(steps) // MAX_LOOKS)] if steps else []
    if not steps:
        return None
    table = np.full((len(nodes), len(steps)), np.nan)
    for row, node in enumerate(nodes):
        mine = [pair for info, pair in found.values() if row_name(info.site, node.depth) == node.path]
        for column, step in enumerate(steps):
            table[row, column] = _joint_cosine([pair for pair in mine if step in pair[0]], step)
    return {"steps": steps, "values": floats(table)}


def _shared_sketches(a: Run, b: Run, site: Site) -> Pair | None:
    """The steps at which both runs sketched a site, each with its index, and the sketches of both there."""
    (steps_a, left), (steps_b, right) = a.vectors("sketch", site), b.vectors("sketch", site)
    if not len(steps_a) or not len(steps_b) or left.shape[1] != right.shape[1]:
        return None
    steps, at_a, at_b = np.intersect1d(steps_a, steps_b, assume_unique=True, return_indices=True)
    indices = {int(step): index for index, step in enumerate(steps)}
    return indices, left[at_a].astype(np.float64), right[at_b].astype(np.float64)


def _joint_cosine(pairs: Sequence[Pair], step: int) -> float:
    """Of several tensors as if they were one; NaN where one side is zero or no number."""
    dot = size_a = size_b = 0.0
    for indices, left, right in pairs:
        x, y = left[indices[step]], right[indices[step]]
        dot, size_a, size_b = dot + float(x @ y), size_a + float(x @ x), size_b + float(y @ y)
    if not (0 < size_a < np.inf and 0 < size_b < np.inf):
        return float("nan")
    return float(np.clip(dot / np.sqrt(size_a * size_b), -1.0, 1.0))
