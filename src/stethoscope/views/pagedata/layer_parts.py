"""What a layer is made of, where it was recorded: its attention heads over steps, its units at a step."""

from __future__ import annotations

from typing import Final, TypedDict

import numpy as np

from stethoscope.analyse.eventseries import attention_modules
from stethoscope.record import Kind, Site, SiteInfo
from stethoscope.record.events import Attention
from stethoscope.store import Run
from stethoscope.views.pagedata.packing import floats, text

MAX_LOOKS: Final = 256
MAX_UNIT_LOOKS: Final = 32
MAX_UNITS: Final = 4096


class Heads(TypedDict):
    """The entropy of each attention head at each sampled step."""

    module: str
    steps: list[int]
    num: int
    values: str


class Units(TypedDict):
    """One number a unit at each sampled step."""

    site: str
    what: str
    word: str
    steps: list[int]
    num: int
    values: str


def heads_data(run: Run, path: str, window: tuple[int, int]) -> Heads | None:
    """The entropy of each head of the layer's attention at each sample; None where heads were not told apart."""
    for module in attention_modules(run, path)[:8]:
        looks = {
            event.step: attention.modules[module].heads
            for event, attention in run.events_of(Attention)
            if module in attention.modules and attention.modules[module].heads
        }
        width = max((len(one) for one in looks.values()), default=0)
        steps = [step for step in sorted(looks) if len(looks[step]) == width]
        # The look before the window holds until the first one inside it.
        before = [step for step in steps if step < window[0]][-1:]
        steps = before + [step for step in steps if window[0] <= step <= window[1]]
        steps = steps[:: -(-len(steps) // MAX_LOOKS)] if steps else []
        if steps and width > 1:
            return {
                "module": text(module, 10_000),
                "steps": steps,
                "num": width,
                "values": floats(np.array([looks[step] for step in steps])),
            }
    return None


def units_data(run: Run, inside: list[SiteInfo], tensor: SiteInfo | None, window: tuple[int, int]) -> Units | None:
    """Each unit's largest gradient, or how strongly it fired, at the samples in the window."""
    wanted: list[tuple[str, str, Site]] = []
    if tensor is not None:
        site = Site(tensor.site.module, Kind.GRADIENT, tensor.site.name)
        wanted.append(("unit_gradient", "without a gradient", site))
    wanted += [
        ("unit_activity", "silent", info.site) for info in inside if info.site.kind in (Kind.ACTIVATION, Kind.OUTPUT)
    ]
    for name, word, site in wanted[:16]:
        steps, table = run.vectors(name, site)
        if not len(steps) or not 1 < table.shape[1] <= MAX_UNITS:
            continue
        keep = np.flatnonzero((steps >= window[0]) & (steps <= window[1]))
        keep = keep if len(keep) else np.flatnonzero(steps <= window[1])[-1:]
        keep = keep[:: -(-len(keep) // MAX_UNIT_LOOKS)] if len(keep) else keep
        if len(keep):
            return {
                "site": text(site.path, 10_000),
                "what": name,
                "word": word,
                "steps": steps[keep].tolist(),
                "num": int(table.shape[1]),
                "values": floats(table[keep]),
            }
    return None
