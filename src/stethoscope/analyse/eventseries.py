"""Series that live in events: the entropy of attention, reported by module now and then."""

from __future__ import annotations

import numpy as np

from stethoscope.record import Series
from stethoscope.record.events import Attention
from stethoscope.store import Run


def entropy(run: Run, module: str) -> Series:
    """The entropy of a module's attention, in nats."""
    found = {
        event.step: attention.modules[module].entropy
        for event, attention in run.events_of(Attention)
        if module in attention.modules
    }
    steps = sorted(found)
    return Series(np.array(steps, np.int64), np.array([found[step] for step in steps]))


def attention_modules(run: Run, path: str) -> list[str]:
    """The modules in (or at) a path whose attention was measured."""
    names = dict.fromkeys(name for _, attention in run.events_of(Attention)[:4] for name in attention.modules)
    return [name for name in names if name == path or name.startswith(path + ".")]
