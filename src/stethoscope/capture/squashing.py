"""Softmax and sigmoid in a graph: by their own operations, or written out by hand."""

from __future__ import annotations

from typing import Any, Final

from stethoscope.capture.nodes import PASSING, dimension, kind, only_parent, parents, saved, shape, through

BARELY: Final = ("Clamp", "ClampMin", "ClampMax", "Add")
"""What is done to probabilities to keep them off 0 and 1: a limit, or a constant that is added."""


def squashed_by(node: Any, dim: int | None = None) -> str | None:
    """What made probabilities of the values at this node, "Softmax" or "Sigmoid"; None where nothing did.

    A softmax that was written out must run over `dim`, counted from the front, where one is given.
    """
    for _ in range(4):
        node = through(node)
        if node is None:
            return None
        name = kind(node)
        if name in ("Softmax", "Sigmoid"):
            return name
        if _is_sigmoid(node):
            return "Sigmoid"
        if _is_softmax(node, dim):
            return "Softmax"
        if name not in BARELY or only_parent(node) is None:
            return None
        node = only_parent(node)
    return None


def _is_softmax(node: Any, dim: int | None) -> bool:
    """exp(x) / exp(x).sum(dim)."""
    if kind(node) != "Div" or len(parents(node)) != 2:
        return False
    above, below = (through(parent, (*PASSING, "Expand")) for parent in parents(node))
    if above is None or below is None or kind(above) != "Exp" or kind(below) != "Sum":
        return False
    dims = getattr(below, "_saved_dim", ())
    runs = [dimension(int(n), len(shape(above))) for n in dims]
    return through(parents(below)[0]) is above and len(runs) == 1 and dim in (None, runs[0])


def _is_sigmoid(node: Any) -> bool:
    """1 / (1 + exp(-x)) or exp(x) / (1 + exp(x)): something over a constant and an exponential, between 0 and 1."""
    if kind(node) == "Reciprocal":
        below, values = parents(node)[0], saved(node, "_saved_result")
    elif kind(node) == "Mul" and (one := only_parent(node)) is not None and kind(one) == "Reciprocal":
        below, values = parents(one)[0], saved(one, "_saved_result")
    elif kind(node) == "Div" and len(parents(node)) == 2:
        above, below = parents(node)
        if above is not None and kind(through(above)) != "Exp":
            return False
        over, under = saved(node, "_saved_self"), saved(node, "_saved_other")
        values = None if over is None or under is None else over.detach() / under.detach()
    else:
        return False
    below = through(below)
    if below is None or values is None or kind(below) != "Add":
        return False
    added = only_parent(below)
    is_exponential = added is not None and kind(through(added)) == "Exp"
    return is_exponential and bool(((values >= 0) & (values <= 1)).all())
