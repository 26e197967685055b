"""Is something frozen by mistake?

Freezing on purpose has a shape: the beginning of the network, everything but small additions, every part of one
kind. What is flagged has none: some of several equal siblings, out of order; a head under a network that learns;
everything.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import torch

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import CRITICAL, WARNING, found, listed
from stethoscope.record import Finding

MIN_SIBLINGS: Final = 3


def examine(exam: Examination) -> Iterator[Finding]:
    """frozen_params."""
    model = exam.subject.model
    parameters = list(model.parameters())
    total = sum(p.numel() for p in parameters)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    if not total:
        return
    exam.saw(f"{trained:,} of {total:,} numbers can learn")
    if not trained:
        yield found(
            "frozen_params",
            CRITICAL,
            "Every parameter of the model is frozen: nothing can learn.",
            sites=[name for name, _ in model.named_parameters()][:8],
            numbers={"share that can learn": 0.0},
            remedy="model.requires_grad_(True)",
        )
        return
    slipped = _uneven_siblings(model)
    if slipped:
        yield found(
            "frozen_params",
            WARNING,
            f"{listed(slipped)} {'is' if len(slipped) == 1 else 'are'} frozen while equal layers beside "
            f"{'it' if len(slipped) == 1 else 'them'} learn.",
            sites=slipped,
            numbers={"layers frozen": len(slipped), "share of parameters that can learn": trained / total},
            remedy=f'model.get_submodule("{slipped[0]}").requires_grad_(True)  # "layers.1" also begins "layers.10"',
            confidence=0.9,
        )
    head = _last_layer(exam) if trained > total / 2 else None
    if head is not None and head not in slipped:
        yield found(
            "frozen_params",
            WARNING,
            f"{head}, the last layer, is frozen while {trained / total:.0%} of the parameters before it learn.",
            sites=[head],
            numbers={"share of parameters that can learn": trained / total},
            remedy=f'model.get_submodule("{head}").requires_grad_(True)',
            confidence=0.85,
        )


def _uneven_siblings(model: torch.nn.Module) -> list[str]:
    """Frozen modules among at least three equal ones of one parent, where the frozen ones are no beginning or pattern."""
    families: dict[Any, list[tuple[str, bool]]] = defaultdict(list)
    for path, module in model.named_modules():
        parameters = list(module.parameters())
        if not path or not parameters or not re.search(r"\d+$", path):
            continue
        asks = {p.requires_grad for p in parameters}
        if len(asks) > 1:
            continue
        stem = re.sub(r"\d+$", "", path)
        shapes = tuple(tuple(p.shape) for p in parameters)
        families[stem, type(module), shapes].append((path, asks.pop()))
    slipped: list[str] = []
    for members in families.values():
        indices = [index for index, (_, learns) in enumerate(members) if not learns]
        if (
            len(members) >= MIN_SIBLINGS
            and indices
            and len(indices) < len(members)
            and not _on_purpose(indices, len(members))
        ):
            slipped += [members[index][0] for index in indices]
    return [path for path in slipped if not any(path.startswith(other + ".") for other in slipped)]


def _on_purpose(indices: list[int], count: int) -> bool:
    """A beginning, an end, all but one stretch, or every n-th."""
    if indices == list(range(len(indices))) or (
        len(indices) > 1 and indices == list(range(count - len(indices), count))
    ):
        return True
    learning = [index for index in range(count) if index not in indices]
    if len(learning) < len(indices) and learning == list(range(learning[0], learning[-1] + 1)):
        return True
    gaps = {b - a for a, b in itertools.pairwise(indices)}
    return len(indices) >= 3 and len(gaps) == 1


def _last_layer(exam: Examination) -> str | None:
    """The layer with weights that feeds the output, where it is frozen."""
    tail = exam.tail()
    module = dict(exam.subject.model.named_modules()).get(tail[0]) if tail else None
    if not isinstance(module, (torch.nn.Linear, torch.nn.modules.conv._ConvNd, torch.nn.Bilinear)):
        return None
    return None if any(p.requires_grad for p in module.parameters()) else tail[0]
