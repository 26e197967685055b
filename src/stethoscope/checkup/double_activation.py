"""Is softmax or sigmoid applied before a loss that applies it again?

By the numbers (rows that add up to one, numbers between 0 and 1) and by the graph (the node that made them).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import CRITICAL, found
from stethoscope.checkup.observation import LOSS_PLACE, Softmax
from stethoscope.record import Finding, plural

SQUASHING: Final = ("Sigmoid", "Softmax", "Hardsigmoid", "Clamp", "SafeSoftmax")
UNBOUNDED: Final = (
    "Addmm",
    "Mm",
    "Bmm",
    "Convolution",
    "NativeLayerNorm",
    "NativeBatchNorm",
    "Relu",
    "Gelu",
    "Silu",
    "Linear",
)


def examine(exam: Examination) -> Iterator[Finding]:
    """double_softmax, double_sigmoid."""
    seen = exam.first.observer.softmaxes
    exam.saw(f"{plural(len(seen), 'softmax or sigmoid', 'softmaxes and sigmoids')} on the way to the loss")
    twice = next((s for s in seen if s.name in ("_log_softmax", "logsumexp") and _is_softmaxed(s)), None)
    if twice is not None:
        yield found(
            "double_softmax",
            CRITICAL,
            "What goes into the loss adds up to one in every row, and the loss applies softmax again: it cannot fall far.",
            sites=_sites(exam, twice),
            numbers={"rows add up to": 1.0},
            remedy="return logits  # without softmax: F.cross_entropy applies it",
        )
    again = next((s for s in seen if _is_squashed(s)), None)
    if again is not None:
        yield found(
            "double_sigmoid",
            CRITICAL,
            "Probabilities go into a loss that takes logits: sigmoid is applied twice.",
            sites=_sites(exam, again),
            numbers={"smallest input of the loss": 0.0, "largest input of the loss": 1.0},
            remedy="return logits  # without sigmoid; or F.binary_cross_entropy(output, target)",
        )


def _is_softmaxed(seen: Softmax) -> bool:
    """Rows are distributions, and the graph does not say that a layer without limits made them."""
    by_graph = bool(seen.history) and seen.history[0].startswith(("Softmax", "SafeSoftmax"))
    if seen.name == "logsumexp":
        return by_graph and seen.is_probability
    return seen.is_distribution and (by_graph or (bool(seen.history) and not seen.history[0].startswith(UNBOUNDED)))


def _is_squashed(seen: Softmax) -> bool:
    applies = seen.name in ("binary_cross_entropy_with_logits", "log_sigmoid_forward") or (
        seen.name == "sigmoid" and seen.path == LOSS_PLACE
    )
    by_graph = seen.made_by is not None or (bool(seen.history) and seen.history[0].startswith(SQUASHING))
    return applies and seen.is_probability and by_graph


def _sites(exam: Examination, seen: Softmax) -> list[str]:
    sites = [seen.producer] if seen.producer else []
    return sites or exam.tail()[-1:] or ["(output)"]
